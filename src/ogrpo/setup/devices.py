"""Where a run's train state lies: on one device, or cut over the mesh that --mesh asks for."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import SingleDeviceSharding

from ogrpo.batch import Batch
from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Mesh
from ogrpo.core.algorithms import VALUES
from ogrpo.kernels import attention
from ogrpo.kernels.attention.sharded import attention_over_mesh
from ogrpo.kernels.log_probs import choose, kernel
from ogrpo.kernels.log_probs.sharded import log_probs_over_mesh
from ogrpo.learner import sharding
from ogrpo.learner.examine import ExamineFn, make_examine
from ogrpo.learner.hosts import several
from ogrpo.learner.memory import CompilerOptions, check_host_memory, compiler_options, on_host
from ogrpo.learner.sharding import MeshLayout
from ogrpo.learner.state import TrainState, init_state, join
from ogrpo.learner.update import PolicyFn, Recipe, UpdateFn, compute_in, make_update
from ogrpo.loop import stream_seed
from ogrpo.loop.batches import to_device
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.attention import AttentionFn
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.head import HeadFn
from ogrpo.policy.lora import TARGETS, split, split_axes
from ogrpo.policy.params import param_axes, with_value_head
from ogrpo.setup.model import DTYPES, REMAT, make_policy_fn

ScoreFn = Callable[[Params, Batch[Array], Array], Array]


class Devices(NamedTuple):
    """The functions of a run that depend on where its arrays lie."""

    policy_fn: PolicyFn
    place_params: Callable[[Params], Params]
    place_prompts: Callable[[Any], Any]
    place_batch: Callable[[Batch[np.ndarray]], Batch[Array]]
    init: Callable[[Params], TrainState]
    shapes: Callable[[Params], TrainState]
    """Of what `init` would make, each with its place; its frozen parameters are there."""
    make_update: Callable[[Recipe], UpdateFn]
    make_examine: Callable[[Recipe], ExamineFn]
    make_score: Callable[[PolicyFn], ScoreFn]
    make_values: Callable[[PolicyFn], ScoreFn]
    """V before each token, of parameters with a value head."""
    whole_axes: list[str]
    """Axes that the mesh was to cut and cannot."""


def on_one_device(config: TrainConfig) -> bool:
    """Whether there is no mesh."""
    mesh = config.mesh
    return mesh.data * mesh.fsdp * mesh.tensor == 1


def ways(config: TrainConfig) -> int:
    """Devices that a batch is cut over."""
    return config.mesh.data * config.mesh.fsdp


def open_mesh(wanted: Mesh) -> jax.sharding.Mesh:
    """The mesh that is asked for; a ValueError where there are not the devices for it."""
    return sharding.make_mesh(data=wanted.data, fsdp=wanted.fsdp, tensor=wanted.tensor)


def make_devices(
    config: TrainConfig, decoder: DecoderConfig, optimizer: Any, region: Any
) -> Devices:
    """One device for a mesh of 1 x 1 x 1, exactly as if there were no mesh.

    Args:
      config: whose mesh, kernels, adapters and precision are read.
      decoder: the policy's shape.
      optimizer: of the trained parameters.
      region: the trust region's state before the first update; () where it has none.
    """
    if config.optimizer.offload:
        check_host_memory()
    if on_one_device(config):
        return _one_device(config, decoder, optimizer, region)
    return _many_devices(config, decoder, optimizer, region)


def _one_device(
    config: TrainConfig, decoder: DecoderConfig, optimizer: Any, region: Any
) -> Devices:
    name = choose(config.kernels.log_probs, decoder.vocab_size)
    head = kernel(name, kept_bytes=config.kernels.kept_mib << 20)
    policy_fn = make_policy_fn(
        decoder,
        keep_fn=REMAT[config.model.remat],
        log_probs_fn=head,
        attention_fn=attention.kernel(config.kernels.attention),
    )
    return Devices(
        policy_fn=in_compute_dtype(config, policy_fn),
        place_params=_as_it_is,
        place_prompts=jnp.asarray,
        place_batch=to_device,
        init=lambda params: replace(_init_on_one(config, optimizer, params), region=_own(region)),
        shapes=lambda params: with_region(_shapes_on_one(config, optimizer, params), region),
        make_update=partial(make_update, optimizer, options=own_options(config)),
        make_examine=partial(make_examine, optimizer),
        make_score=lambda policy: jax.jit(lambda *args: policy(*args).log_probs),
        make_values=lambda policy: jax.jit(lambda *args: policy(*args).values),
        whole_axes=[],
    )


def _many_devices(
    config: TrainConfig, decoder: DecoderConfig, optimizer: Any, region: Any
) -> Devices:
    axes, to = state_axes(config, decoder), state_layout(config, decoder, optimizer)
    if config.trust_region.kind in ("penalty", "clip"):
        to = to._replace(state=to.state.replace(region=to.everywhere))
    region = sharding.place(region, to.everywhere)
    return Devices(
        policy_fn=in_compute_dtype(config, mesh_policy(config, decoder, to)),
        place_params=partial(sharding.place, where=sharding.places(param_axes(decoder), to.mesh)),
        place_prompts=partial(sharding.place, where=to.batch),
        place_batch=partial(sharding.place, where=to.batch) if several() else to_device,
        init=lambda params: replace(
            _init_on_mesh(config, optimizer, to, params), region=_own(region)
        ),
        shapes=lambda params: with_region(_shapes_on_mesh(config, optimizer, to, params), region),
        make_update=lambda recipe: sharding.shard_update(
            optimizer, recipe, to, options=own_options(config)
        ),
        make_examine=lambda recipe: sharding.shard_examine(optimizer, recipe, to),
        make_score=partial(sharding.shard_score, to=to),
        make_values=_no_values,
        whole_axes=sharding.whole_axes(join(*axes), to.mesh),
    )


def _no_values(_policy: PolicyFn) -> ScoreFn:
    raise ValueError("values are learned on one device: leave --mesh.data, .fsdp and .tensor at 1")


def _own(region: Any) -> Any:
    """A copy for one train state, whose buffers the first update takes."""
    return jax.tree.map(jnp.copy, region)


def with_region(shapes: TrainState, region: Any) -> TrainState:
    """Shapes of a train state with those of its trust region, which is everywhere."""
    everywhere = shapes.updates.sharding
    placed = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), region
    )
    return replace(shapes, region=placed)


def state_axes(config: TrainConfig, decoder: DecoderConfig) -> tuple[Params, Any]:
    """The axes of the trained parameters, and of the frozen ones."""
    base = param_axes(decoder)
    if config.lora.rank is None:
        return base, ()
    return split_axes(base, TARGETS[config.lora.targets])


def state_layout(config: TrainConfig, decoder: DecoderConfig, optimizer: Any) -> MeshLayout:
    """Where the train state lies on the mesh."""
    (axes, frozen_axes), mesh = state_axes(config, decoder), open_mesh(config.mesh)
    shapes, _ = jax.eval_shape(partial(trained_and_frozen, config), param_shapes(decoder))
    to = sharding.make_layout(axes, shapes, optimizer, mesh, frozen_axes=frozen_axes)
    return to._replace(state=on_host(to.state)) if config.optimizer.offloads_moments else to


def trained_and_frozen(config: TrainConfig, params: Params) -> tuple[Params, Any]:
    """A policy's parameters in two trees; without adapters all are trained."""
    wanted = config.lora
    if VALUES in algorithm(config).reads:
        return with_value_head(params), ()
    if wanted.rank is None:
        return params, ()
    key = jax.random.key(stream_seed(config.seed, "lora", 0))
    return split(params, key, rank=wanted.rank, alpha=wanted.alpha, targets=TARGETS[wanted.targets])


def _init_on_one(config: TrainConfig, optimizer: Any, params: Params) -> TrainState:
    trained, frozen = trained_and_frozen(config, params)
    state = init_state(trained, optimizer, frozen=frozen)
    if not config.optimizer.offloads_moments:
        return state
    moments = jax.device_put(state.opt_state, _on_one(config, state).opt_state)
    return replace(state, opt_state=moments)


def _on_one(config: TrainConfig, state: TrainState) -> TrainState:
    """Where each array of a state on one device lies."""
    there = SingleDeviceSharding(jax.devices()[0])
    placed = jax.tree.map(lambda _: there, replace(state, frozen=()))
    return on_host(placed) if config.optimizer.offloads_moments else placed


def _init_on_mesh(
    config: TrainConfig, optimizer: Any, to: MeshLayout, params: Params
) -> TrainState:
    trained, frozen = trained_and_frozen(config, params)
    return sharding.init_placed(trained, optimizer, to, frozen=frozen)


def _shapes_on_one(config: TrainConfig, optimizer: Any, params: Params) -> TrainState:
    trained, frozen = trained_and_frozen(config, params)
    shapes = jax.eval_shape(partial(init_state, optimizer=optimizer), trained)
    placed = jax.tree.map(_placed, shapes, _on_one(config, shapes))
    return replace(placed, frozen=frozen)


def _shapes_on_mesh(
    config: TrainConfig, optimizer: Any, to: MeshLayout, params: Params
) -> TrainState:
    trained, frozen = trained_and_frozen(config, params)
    shapes = jax.eval_shape(partial(init_state, optimizer=optimizer), trained)
    where = replace(to.state, region=(), frozen=())
    placed = jax.tree.map(_placed, shapes, where)
    return replace(placed, frozen=sharding.place(frozen, to.state.frozen))


def _placed(leaf: jax.ShapeDtypeStruct, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def mesh_policy(config: TrainConfig, decoder: DecoderConfig, to: MeshLayout) -> PolicyFn:
    """The decoder with its activations pinned to the mesh."""
    policy_fn = make_policy_fn(
        decoder,
        together=ways(config),
        keep_fn=REMAT[config.model.remat],
        spread_fn=partial(sharding.spread, to=to),
        log_probs_fn=mesh_head(config, decoder, to),
        attention_fn=mesh_attention(config, to),
    )
    return sharding.whole_tables(policy_fn, to)


def mesh_attention(config: TrainConfig, to: MeshLayout) -> AttentionFn:
    """The attention of each device's own prompts and heads."""
    blocked = attention_over_mesh(to.mesh, rows=sharding.BATCH_AXES, heads="tensor")
    return attention.kernel(config.kernels.attention, blocked=blocked)


def mesh_head(config: TrainConfig, decoder: DecoderConfig, to: MeshLayout) -> HeadFn:
    """The log-probs where rows, and the vocabulary if its cut is even, are cut over the mesh."""
    name = choose(config.kernels.log_probs, decoder.vocab_size)
    if name == "pallas":
        raise ValueError(
            "the pallas log-probs run on one device, and a mesh has several: choose chunked"
        )
    tensor, kept = config.mesh.tensor, config.kernels.kept_mib << 20
    if name == "chunked" and tensor > 1 and decoder.vocab_size % tensor == 0:
        return log_probs_over_mesh(
            to.mesh, vocabulary="tensor", rows=sharding.BATCH_AXES, kept_bytes=kept
        )
    return sharding.by_rows(kernel(name, kept_bytes=kept), to)


def own_options(config: TrainConfig) -> CompilerOptions | None:
    """The compiler's, for an update in this precision."""
    return compiler_options(DTYPES[config.model.compute_dtype or config.model.dtype])


def in_compute_dtype(config: TrainConfig, policy_fn: PolicyFn) -> PolicyFn:
    """The policy computed in `model.compute-dtype`, where it is not that of the parameters."""
    wanted = config.model.compute_dtype or config.model.dtype
    return policy_fn if wanted == config.model.dtype else compute_in(policy_fn, DTYPES[wanted])


def _as_it_is(tree: Any) -> Any:
    return tree


def memory_lines(config: TrainConfig, state: TrainState, devices: Devices) -> list[str]:
    """Bytes of parameters and optimizer on each device, and what could not be cut.

    The state may be its shapes.
    """
    mesh = config.mesh
    shown = f"mesh data {mesh.data} x fsdp {mesh.fsdp} x tensor {mesh.tensor}"
    policy = state.whole()
    params, moments = (
        sharding.bytes_per_device(tree) / 2**20 for tree in (policy, state.opt_state)
    )
    leaves = jax.tree.leaves((policy, state.opt_state))
    total = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) / 2**20
    return [
        *lora_lines(config, state),
        f"{shown}: parameters {params:,.1f} MiB and optimizer {moments:,.1f} MiB"
        f" {'in the host memory of ' if config.optimizer.offloads_moments else 'on '}each device"
        f" ({total:,.1f} MiB in all)",
        *reference_lines(config, state),
        *(f"repeated, {line}" for line in devices.whole_axes),
    ]


def reference_lines(config: TrainConfig, state: TrainState) -> list[str]:
    """Where the reference policy is, if not on the devices."""
    if not config.optimizer.offloads_reference:
        return []
    size = sharding.bytes_per_device(state.params) / 2**20
    return [f"reference policy: {size:,.1f} MiB in the host memory of each device"]


def lora_lines(config: TrainConfig, state: TrainState) -> list[str]:
    """What the adapters are, if there are any."""
    wanted = config.lora
    if wanted.rank is None:
        return []
    trained, frozen = (
        sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (state.params, state.frozen)
    )
    return [
        f"lora: rank {wanted.rank}, alpha {wanted.alpha:g}, targets {wanted.targets}:"
        f" {trained:,} weights trained beside {frozen:,}"
    ]
