"""The update that `memory_4b` compiles; imported once the number of devices is set."""

import argparse
from functools import partial

import jax
import jax.numpy as jnp

from experiments.models import DTYPES, REMAT, make_policy_fn
from ogrpo.core import advantages, aggregate
from ogrpo.core.objectives import exact_center, off_policy_grpo
from ogrpo.policy import DecoderConfig
from ogrpo.policy.axes import param_axes
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.head import token_log_probs
from ogrpo.training import sharding
from ogrpo.training.metrics import summarize
from ogrpo.training.precision import compute_in
from ogrpo.training.state import TrainState, adam, hypers, init_state
from ogrpo.training.update import Batch, Recipe

QWEN3_4B = DecoderConfig(
    architecture="Qwen3ForCausalLM",
    vocab_size=151_936,
    hidden_size=2560,
    intermediate_size=9728,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    rope_theta=1_000_000.0,
    rms_norm_eps=1e-6,
    tie_embeddings=True,
    max_positions=40_960,
)
KNOBS = {"eps_low": 0.2, "eps_high": 0.2, "beta": 0.0}


def batch_shapes(options: argparse.Namespace) -> Batch:
    n, g, p, t = options.prompts, options.group, options.prompt, options.completion
    of = jax.ShapeDtypeStruct
    return Batch(
        prompt_ids=of((n, p), jnp.int32),
        prompt_mask=of((n, p), jnp.bool_),
        completion_ids=of((n, g, t), jnp.int32),
        completion_mask=of((n, g, t), jnp.bool_),
        behavior_log_probs=of((n, g, t), jnp.float32),
        rewards=of((n, g), jnp.float32),
    )


def make_recipe(options: argparse.Namespace, to: sharding.Layout) -> Recipe:
    policy_fn = make_policy_fn(
        QWEN3_4B,
        keep_fn=REMAT[options.remat],
        spread_fn=partial(sharding.spread, to=to),
        log_probs_fn=sharding.by_rows(token_log_probs, to),
    )
    return Recipe(
        policy_fn=compute_in(sharding.whole_tables(policy_fn, to), DTYPES[options.compute_dtype]),
        objective_fn=off_policy_grpo,
        advantage_fn=advantages.centered,
        total_fn=aggregate.sequence_total,
        metrics_fn=partial(summarize, center_fn=exact_center),
        mask_zero_variance=True,
        count_masked=True,
        microbatches=options.microbatches,
    )


def analyse(options: argparse.Namespace) -> dict[str, int]:
    mesh = sharding.make_mesh(data=options.data, fsdp=options.fsdp, tensor=options.tensor)
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    shapes = param_shapes(QWEN3_4B)
    to = sharding.make_layout(param_axes(QWEN3_4B), shapes, optimizer, mesh)
    state = placed_shapes(
        jax.eval_shape(partial(init_state, optimizer=optimizer), shapes), to.state
    )
    batch = jax.tree.map(partial(placed_shape, where=to.batch), batch_shapes(options))
    knobs = jax.tree.map(partial(placed_shape, where=to.everywhere), hypers(1e-6, 1.0, KNOBS))
    step = sharding.jit_step(optimizer, make_recipe(options, to), to)
    compiled = step.lower(state, batch, knobs).compile()
    return {"state": sharding.bytes_per_device(state), **figures(compiled.memory_analysis())}


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


def placed_shapes(state: TrainState, where: TrainState) -> TrainState:
    return jax.tree.map(placed_shape, state, where)
