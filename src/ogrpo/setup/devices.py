"""Functions on a run's train state: on one device, or cut over the mesh of --mesh."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Sharding, SingleDeviceSharding
from optax import GradientTransformation

from ogrpo.batch import Batch, Frozen, PolicyOutput
from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Mesh
from ogrpo.core.algorithms import VALUES
from ogrpo.core.trust_region import RegionState
from ogrpo.kernels import attention
from ogrpo.kernels.attention.blocked import attention_over_mesh
from ogrpo.kernels.log_probs import choose, kernel
from ogrpo.kernels.log_probs.chunked import log_probs_over_mesh
from ogrpo.learner import sharding
from ogrpo.learner.examine import TokensFn, make_tokens
from ogrpo.learner.hosts import several
from ogrpo.learner.memory import CompilerOptions, compiler_options
from ogrpo.learner.sharding import MeshLayout
from ogrpo.learner.state import TrainState, init_state, join
from ogrpo.learner.update import PolicyFn, UpdateFn, UpdateSpec, compute_in, in_order, make_update
from ogrpo.loop.batches import to_device
from ogrpo.loop.parts import ScoreFn, stream_seed
from ogrpo.loop.state import snapshot
from ogrpo.policy import DecoderConfig, Params, completion_log_probs_and_entropy
from ogrpo.policy.decoder import keep_nothing, keep_products, param_shapes
from ogrpo.policy.lora import TARGETS, split, split_axes
from ogrpo.policy.packing import packed_log_probs_and_entropy
from ogrpo.policy.params import param_axes, with_value_head

DTYPES = {"float32": jnp.float32, "bfloat16": jnp.bfloat16}
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "products": keep_products,
    "full": keep_nothing,
}


class Devices(NamedTuple):
    """The functions of a run that depend on where its arrays lie."""

    policy_fn: PolicyFn
    place_params: Callable[[Params], Params]
    place_prompts: Callable[[Any], Any]
    place_batch: Callable[[Batch[np.ndarray]], Batch[Array]]
    init: Callable[[Params], TrainState]
    shapes: Callable[[Params], TrainState]
    """The shapes of what `init` would make, with their places; frozen parameters as they are."""
    make_update: Callable[[UpdateSpec], UpdateFn]
    make_tokens: Callable[[UpdateSpec], TokensFn]
    make_score: Callable[[PolicyFn], ScoreFn]
    make_values: Callable[[PolicyFn], ScoreFn]
    """V before each token, of parameters with a value head."""
    whole_axes: list[str]
    """Axes that the mesh was to cut and cannot."""


def on_one_device(config: TrainConfig) -> bool:
    """Whether there is no mesh."""
    mesh = config.mesh
    return mesh.data * mesh.fsdp * mesh.tensor == 1


def data_shards(config: TrainConfig) -> int:
    """Returns how many devices a batch is cut over."""
    return config.mesh.data * config.mesh.fsdp


def open_mesh(mesh: Mesh) -> jax.sharding.Mesh:
    """Makes the mesh of devices; a ValueError where there are too few for it."""
    return sharding.make_mesh(data=mesh.data, fsdp=mesh.fsdp, tensor=mesh.tensor)


def make_policy_fn(decoder: DecoderConfig, *, together: int = 1, **functions: Any) -> PolicyFn:
    """Returns the decoder as the update sees it.

    Args:
      together: parts of packed batches that are computed at a time.
      functions: as `completion_log_probs_and_entropy` has them.
    """

    def policy_fn(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        packing = batch.packing
        if packing is None:
            arguments = (params, decoder, batch, temperature)
            return completion_log_probs_and_entropy(*arguments, **functions)
        arguments = (params, decoder, packing, temperature, batch.top_ids)
        output = packed_log_probs_and_entropy(*arguments, **functions, together=together)
        return output if packing.groups is None else in_order(output, packing, len(batch.rewards))

    return policy_fn


def make_devices(
    config: TrainConfig,
    decoder: DecoderConfig,
    optimizer: GradientTransformation,
    region: RegionState,
) -> Devices:
    """Makes these functions for a mesh; one of 1 x 1 x 1 is a device without a mesh.

    Args:
      config: brings mesh, kernels, adapters and precision.
      region: the trust region's state before the first update; () where it has none. Each train
        state has a copy, whose buffers the first update takes.
    """
    if on_one_device(config):
        return _one_device(config, decoder, optimizer, region)
    return _many_devices(config, decoder, optimizer, region)


def _one_device(
    config: TrainConfig,
    decoder: DecoderConfig,
    optimizer: GradientTransformation,
    region: RegionState,
) -> Devices:
    name = choose(config.kernels.log_probs, decoder.vocab_size)
    policy_fn = make_policy_fn(
        decoder,
        keep_fn=REMAT[config.model.remat],
        log_probs_fn=kernel(name, kept_bytes=config.kernels.kept_mib << 20),
        attention_fn=attention.kernel(config.kernels.attention),
    )
    device = SingleDeviceSharding(jax.devices()[0])

    def init(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        state = init_state(trained, optimizer, frozen=frozen)
        return replace(state, region=snapshot(region))

    def shapes(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        bare = jax.eval_shape(partial(init_state, optimizer=optimizer), trained)
        return _placed(bare, jax.tree.map(lambda _: device, bare), frozen, region)

    return Devices(
        policy_fn=in_compute_dtype(config, policy_fn),
        place_params=lambda params: params,
        place_prompts=jnp.asarray,
        place_batch=to_device,
        init=init,
        shapes=shapes,
        make_update=partial(make_update, optimizer, options=options_of_compiler(config)),
        make_tokens=make_tokens,
        make_score=lambda policy: jax.jit(lambda *args: policy(*args).log_probs),
        make_values=lambda policy: jax.jit(lambda *args: policy(*args).values),
        whole_axes=[],
    )


def _many_devices(
    config: TrainConfig,
    decoder: DecoderConfig,
    optimizer: GradientTransformation,
    region: RegionState,
) -> Devices:
    axes, to = state_axes(config, decoder), state_layout(config, decoder, optimizer)
    if config.trust_region.kind in ("penalty", "clip"):
        to = to._replace(state=to.state.replace(region=to.everywhere))
    region = sharding.place(region, to.everywhere)

    def init(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        state = sharding.init_placed(trained, optimizer, to, frozen=frozen)
        return replace(state, region=snapshot(region))

    def shapes(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        bare = jax.eval_shape(partial(init_state, optimizer=optimizer), trained)
        where = replace(to.state, region=(), frozen=())
        return _placed(bare, where, sharding.place(frozen, to.state.frozen), region)

    def no_values(_policy: PolicyFn) -> ScoreFn:
        raise ValueError(
            "values are learned on one device: leave --mesh.data, .fsdp and .tensor at 1"
        )

    return Devices(
        policy_fn=in_compute_dtype(config, _mesh_policy(config, decoder, to)),
        place_params=partial(sharding.place, where=sharding.places(param_axes(decoder), to.mesh)),
        place_prompts=partial(sharding.place, where=to.batch),
        place_batch=partial(sharding.place, where=to.batch) if several() else to_device,
        init=init,
        shapes=shapes,
        make_update=lambda spec: sharding.shard_update(
            optimizer, spec, to, options=options_of_compiler(config)
        ),
        make_tokens=partial(sharding.shard_examine, make_tokens, to=to),
        make_score=partial(sharding.shard_score, to=to),
        make_values=no_values,
        whole_axes=sharding.whole_axes(join(*axes), to.mesh),
    )


def _placed(bare: TrainState, where: TrainState, frozen: Frozen, region: RegionState) -> TrainState:
    """Returns shapes of a train state with their places; its trust region is everywhere."""

    def at(leaf: jax.ShapeDtypeStruct, place: Sharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)

    placed = jax.tree.map(at, bare, where)
    region = jax.tree.map(partial(at, place=placed.updates.sharding), region)
    return replace(placed, frozen=frozen, region=region)


def state_axes(config: TrainConfig, decoder: DecoderConfig) -> tuple[Params, Any]:
    """Returns the axes of the trained parameters, and of the frozen ones."""
    base = param_axes(decoder)
    if config.lora.rank is None:
        return base, ()
    return split_axes(base, TARGETS[config.lora.targets])


def state_layout(
    config: TrainConfig, decoder: DecoderConfig, optimizer: GradientTransformation
) -> MeshLayout:
    """Returns where the train state lies on the mesh."""
    (axes, frozen_axes), mesh = state_axes(config, decoder), open_mesh(config.mesh)
    shapes, _ = jax.eval_shape(partial(trained_and_frozen, config), param_shapes(decoder))
    return sharding.make_layout(axes, shapes, optimizer, mesh, frozen_axes=frozen_axes)


def trained_and_frozen(config: TrainConfig, params: Params) -> tuple[Params, Any]:
    """Splits a policy's parameters into two trees; without adapters all are trained."""
    lora = config.lora
    if VALUES in algorithm(config).reads:
        return with_value_head(params), ()
    if lora.rank is None:
        return params, ()
    key = jax.random.key(stream_seed(config.seed, "lora", 0))
    return split(params, key, rank=lora.rank, alpha=lora.alpha, targets=TARGETS[lora.targets])


def _mesh_policy(config: TrainConfig, decoder: DecoderConfig, to: MeshLayout) -> PolicyFn:
    """Returns the decoder with its activations pinned to the mesh.

    Each device attends over its own prompts and heads; log-probs are computed where the rows, and
    the vocabulary if its cut is even, are cut over the mesh.
    """
    rows = sharding.BATCH_AXES
    blocked = attention_over_mesh(to.mesh, rows=rows, heads="tensor")
    name = choose(config.kernels.log_probs, decoder.vocab_size)
    tensor, kept = config.mesh.tensor, config.kernels.kept_mib << 20
    if name == "chunked" and tensor > 1 and decoder.vocab_size % tensor == 0:
        head = log_probs_over_mesh(to.mesh, vocabulary="tensor", rows=rows, kept_bytes=kept)
    else:
        head = kernel(name, kept_bytes=kept)
        # XLA cannot cut the reference over axes of one device.
        if data_shards(config) > 1 or name != "reference":
            head = sharding.by_rows(head, to)
    policy_fn = make_policy_fn(
        decoder,
        together=data_shards(config),
        keep_fn=REMAT[config.model.remat],
        spread_fn=lambda x: jax.lax.with_sharding_constraint(x, to.batch),
        log_probs_fn=head,
        attention_fn=attention.kernel(config.kernels.attention, blocked=blocked),
    )
    return sharding.whole_tables(policy_fn, to)


def options_of_compiler(config: TrainConfig) -> CompilerOptions | None:
    """Returns the compiler's options for an update in this precision."""
    return compiler_options(DTYPES[config.model.compute_dtype or config.model.dtype])


def in_compute_dtype(config: TrainConfig, policy_fn: PolicyFn) -> PolicyFn:
    """Returns the policy computed in `model.compute-dtype`, where that is not its parameters'."""
    dtype = config.model.compute_dtype or config.model.dtype
    return policy_fn if dtype == config.model.dtype else compute_in(policy_fn, DTYPES[dtype])


def memory_lines(config: TrainConfig, state: TrainState, devices: Devices) -> list[str]:
    """Returns bytes of parameters and optimizer on each device, and what could not be cut.

    Shapes do for the state.
    """
    lora, mesh, lines = config.lora, config.mesh, []
    if lora.rank is not None:
        trained, frozen = (
            sum(leaf.size for leaf in jax.tree.leaves(tree))
            for tree in (state.params, state.frozen)
        )
        lines.append(
            f"lora: rank {lora.rank}, alpha {lora.alpha:g}, targets {lora.targets}:"
            f" {trained:,} weights trained beside {frozen:,}"
        )
    trees = (state.whole(), state.opt_state)
    params, moments = (sharding.bytes_per_device(tree) / 2**20 for tree in trees)
    leaves = jax.tree.leaves(trees)
    total = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) / 2**20
    lines.append(
        f"mesh data {mesh.data} x fsdp {mesh.fsdp} x tensor {mesh.tensor}:"
        f" parameters {params:,.1f} MiB and optimizer {moments:,.1f} MiB"
        f" on each device ({total:,.1f} MiB in all)"
    )
    return [*lines, *(f"repeated, {line}" for line in devices.whole_axes)]
