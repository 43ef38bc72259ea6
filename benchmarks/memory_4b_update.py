"""The update that `memory_4b` compiles; imported once the number of devices is set."""

import argparse
from dataclasses import replace
from functools import partial

import jax

from benchmarks.batch_shapes import batch_shapes, planned
from ogrpo.learner import sharding
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.policy import Params
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.shapes import SHAPES
from ogrpo.trainer import Schedule
from ogrpo.trainer.build import find_devices, make_optimizer, make_recipe
from ogrpo.trainer.config import Model, Rollout, TrainConfig
from ogrpo.trainer.config_update import Kernels, Lora, Mesh, Optimizer
from ogrpo.trainer.devices import own_options, state_layout, trained_and_frozen
from ogrpo.trainer.method import knobs
from ogrpo.trainer.model import DTYPES
from ogrpo.trainer.presets import main_study

QWEN3_4B = SHAPES["qwen3-4b"]


def make_config(options: argparse.Namespace) -> TrainConfig:
    """The run whose update this is; the objective and the optimizer are the defaults."""
    return main_study(
        model=Model(dtype=options.dtype, remat=options.remat, compute_dtype=options.compute_dtype),
        lora=Lora(rank=options.lora_rank),
        kernels=Kernels(log_probs=options.log_probs),
        rollout=Rollout(group_size=options.group, max_tokens=options.completion),
        schedule=Schedule(prompts=options.prompts),
        optimizer=Optimizer(microbatches=options.microbatches),
        mesh=Mesh(data=options.data, fsdp=options.fsdp, tensor=options.tensor),
    )


def analyse(options: argparse.Namespace) -> dict[str, int]:
    config = make_config(options)
    optimizer, dtype = make_optimizer(config), DTYPES[options.dtype]
    to = state_layout(config, QWEN3_4B, optimizer)
    shapes = jax.tree.map(lambda x: x.update(dtype=dtype), param_shapes(QWEN3_4B))

    def first_state(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        return init_state(trained, optimizer, frozen=frozen)

    state = jax.eval_shape(first_state, shapes)
    state = jax.tree.map(placed_shape, state, to.state)
    sizes = (options.prompts, options.group, options.prompt, options.completion)
    batch = jax.tree.map(partial(placed_shape, where=to.batch), batch_shapes(*sizes))
    given = hypers(1e-6, 1.0, knobs(config))
    given = jax.tree.map(partial(placed_shape, where=to.everywhere), given)
    recipe = make_recipe(config, find_devices(config, QWEN3_4B).policy_fn)
    step = sharding.jit_step(optimizer, recipe, to, options=own_options(config))
    lowered = step.lower(replace(state, frozen=()), state.frozen, batch, given)
    return {"state": sharding.bytes_per_device(state), **figures(planned(lowered))}


def figures(analysis) -> dict[str, int]:
    held, freed = analysis.argument_size_in_bytes, analysis.alias_size_in_bytes
    temporary, out = analysis.temp_size_in_bytes, analysis.output_size_in_bytes
    return {
        "arguments": held,
        "temporary": temporary,
        "outputs": out,
        "of which alias arguments": freed,
        "peak": held + temporary + out - freed,
    }


def placed_shape(leaf, where) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)
