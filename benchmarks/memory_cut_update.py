"""The update that `memory_cut` compiles; imported once the platform is set."""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.batch_shapes import temporary_bytes
from ogrpo.batch import Batch, tokens_only
from ogrpo.learner.state import hypers, init_state
from ogrpo.learner.update import jit_step
from ogrpo.policy import DecoderConfig
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.shapes import SHAPES
from ogrpo.trainer import Schedule
from ogrpo.trainer.batches import make_batch
from ogrpo.trainer.build import find_devices, make_optimizer, make_packer, make_recipe
from ogrpo.trainer.config import Data, Model, Rollout, TrainConfig
from ogrpo.trainer.config_update import Optimizer
from ogrpo.trainer.devices import own_options
from ogrpo.trainer.method import knobs
from ogrpo.trainer.model import DTYPES
from ogrpo.trainer.presets import main_study


class Found(NamedTuple):
    """What a layout costs."""

    parts: int
    row: int
    padding: float
    temporary: int
    """Bytes beside the state."""


def layouts(options: argparse.Namespace) -> Iterator[tuple[str, Optimizer]]:
    """Names and options of the ways to lay the batch out."""
    yield "padded", Optimizer(microbatches=options.prompts)
    yield "packed", Optimizer(microbatches=options.prompts, batching="packed")
    for tokens in options.tokens:
        yield f"packed, cut at {tokens:,}", Optimizer(batching="packed", microbatch_tokens=tokens)


def groups(options: argparse.Namespace) -> Batch[np.ndarray]:
    """Short completions, and one of the full length."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(*options.short, (options.prompts, options.group))
    lengths[options.prompts // 2, options.group // 2] = options.completion
    prompts = rng.integers(options.prompt // 4, options.prompt + 1, options.prompts)
    at, along = np.arange(options.prompt), np.arange(options.completion)
    batch = tokens_only(
        prompt_ids=np.zeros((options.prompts, options.prompt), np.int32),
        prompt_mask=at < prompts[:, None],
        completion_ids=np.zeros((*lengths.shape, options.completion), np.int32),
        completion_mask=along < lengths[..., None],
    )
    rewards = np.arange(lengths.size, dtype=np.float32) % 2
    return batch._replace(rewards=rewards.reshape(lengths.shape))


def make_config(options: argparse.Namespace, optimizer: Optimizer) -> TrainConfig:
    """The run whose update this is."""
    return main_study(
        data=Data(prompt_length=options.prompt),
        model=Model(dtype=options.dtype, remat=options.remat),
        rollout=Rollout(group_size=options.group, max_tokens=options.completion),
        schedule=Schedule(prompts=options.prompts),
        optimizer=optimizer,
    )


def analyse(options: argparse.Namespace, optimizer: Optimizer) -> Found:
    """Compiles the update of one layout."""
    return analyse_run(make_config(options, optimizer), SHAPES[options.shape], groups(options))


def analyse_run(config: TrainConfig, decoder: DecoderConfig, found: Batch[np.ndarray]) -> Found:
    """Compiles the update of a run on groups, as its packer lays them out."""
    made = make_batch(found, make_packer(config), for_update=True)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), made.batch)
    policy, direction = find_devices(config, decoder).policy_fn, make_optimizer(config)
    dtype = DTYPES[config.model.dtype]
    shapes = jax.tree.map(lambda x: x.update(dtype=dtype), param_shapes(decoder))
    state = jax.eval_shape(lambda params: init_state(params, direction), shapes)
    step = jit_step(direction, make_recipe(config, policy), own_options(config))
    given = jax.tree.map(jnp.asarray, hypers(1e-6, 1.0, knobs(config)))
    lowered = step.lower(replace(state, frozen=()), state.frozen, batch, given)
    prompts, group, length = found.completion_ids.shape
    padded = found.prompt_ids.shape[1] + group * length
    return Found(
        parts=made.shape.parts if made.shape else prompts,
        row=made.shape.row if made.shape else padded,
        padding=made.padding,
        temporary=temporary_bytes(lowered),
    )
