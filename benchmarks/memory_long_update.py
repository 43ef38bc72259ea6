"""The update that `memory_long` compiles; imported once the platform is set."""

import argparse
from dataclasses import replace

import jax
import jax.numpy as jnp

from benchmarks.batch_shapes import batch_shapes, temporary_bytes
from ogrpo.learner import sharding
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.learner.update import jit_step
from ogrpo.policy import Params
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.shapes import SHAPES
from ogrpo.trainer import Schedule
from ogrpo.trainer.build import find_devices, make_optimizer, make_recipe
from ogrpo.trainer.config import Model, Rollout, TrainConfig
from ogrpo.trainer.config_update import Kernels, Lora, Optimizer
from ogrpo.trainer.devices import own_options, trained_and_frozen
from ogrpo.trainer.method import knobs
from ogrpo.trainer.model import DTYPES
from ogrpo.trainer.presets import main_study


def make_config(options: argparse.Namespace, length: int) -> TrainConfig:
    """The run whose update this is; the objective and the optimizer are the defaults."""
    return main_study(
        model=Model(dtype=options.dtype, remat=options.remat, compute_dtype=options.compute_dtype),
        lora=Lora(rank=options.lora_rank),
        kernels=Kernels(
            attention=options.attention, log_probs=options.log_probs, kept_mib=options.kept_mib
        ),
        rollout=Rollout(group_size=options.group, max_tokens=length),
        schedule=Schedule(prompts=1),
        optimizer=Optimizer(microbatches=1, moments=options.moments),
    )


def analyse(options: argparse.Namespace, length: int) -> tuple[int, int]:
    """Bytes of the state, and of what lives between."""
    config, decoder = make_config(options, length), SHAPES[options.shape]
    decoder = replace(decoder, max_positions=max(decoder.max_positions, options.prompt + length))
    optimizer, dtype = make_optimizer(config), DTYPES[options.dtype]
    shapes = jax.tree.map(lambda x: x.update(dtype=dtype), param_shapes(decoder))

    def first_state(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        return init_state(trained, optimizer, frozen=frozen)

    state = jax.eval_shape(first_state, shapes)
    there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=there), state)
    batch = batch_shapes(1, options.group, options.prompt, length)
    recipe = make_recipe(config, find_devices(config, decoder).policy_fn)
    step = jit_step(optimizer, recipe, own_options(config))
    given = jax.tree.map(jnp.asarray, hypers(1e-6, 1.0, knobs(config)))
    lowered = step.lower(replace(state, frozen=()), state.frozen, batch, given)
    return sharding.bytes_per_device(placed), temporary_bytes(lowered)
