"""One update on many devices: a mesh, where each array lies on it, and the update jitted so.

    data    the batch's prompts are cut; parameters are repeated
    fsdp    the batch's prompts are cut; so is each matrix, along the hidden size, and gathered
            layer by layer as it is used (Rajbhandari et al. 2020, arXiv:1910.02054, stage 3)
    tensor  matrices are cut along heads, MLP units and vocabulary (Shoeybi et al. 2019,
            arXiv:1909.08053)

Nothing here communicates by hand: arrays are given a place and XLA does the rest, so that the
mathematics stays that of `update.py`, and a mesh of one device is the same program.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ogrpo.batch import Batch, Frozen, PolicyOutput
from ogrpo.learner.hosts import several
from ogrpo.learner.memory import CompilerOptions
from ogrpo.learner.metrics import Metrics
from ogrpo.learner.state import Hypers, Params, TrainState, init_state, join
from ogrpo.learner.update import PolicyFn, StepFn, UpdateFn, UpdateSpec, jit_step, join_frozen
from ogrpo.policy.log_probs import HeadFn
from ogrpo.policy.params import Axes, Axis

BATCH_AXES = ("data", "fsdp")
# The mesh axis that cuts each parameter axis; axes that are not named here are never cut.
RULES: Mapping[str, str] = {
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "embed": "fsdp",
}


def make_mesh(*, data: int, fsdp: int, tensor: int) -> Mesh:
    """Returns a mesh over the first data * fsdp * tensor devices.

    Raises:
      ValueError: a size below 1, more devices than there are, or, with several processes, fewer.
    """
    sizes = {"data": data, "fsdp": fsdp, "tensor": tensor}
    needed, there = math.prod(sizes.values()), jax.device_count()
    shown = " x ".join(f"{name} {size}" for name, size in sizes.items())
    if min(sizes.values()) < 1:
        raise ValueError(f"a mesh of {shown}: each size must be at least 1")
    if needed > there or (jax.process_count() > 1 and needed != there):
        raise ValueError(
            f"a mesh of {shown} takes {needed} devices, and there are {there}"
            f" ({jax.default_backend()}): choose sizes whose product fits; on a CPU,"
            f" XLA_FLAGS=--xla_force_host_platform_device_count={needed} makes {needed}"
        )
    devices = jax.devices()[:needed]
    kinds = (AxisType.Auto,) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), kinds, devices=devices)


def part_spec(axes: Axes, mesh: Mesh) -> PartitionSpec:
    """Returns the mesh axis that cuts each axis of a parameter; None where it does not divide."""
    return PartitionSpec(*(RULES.get(a.name) if _divides(a, mesh) else None for a in axes.axes))


def places(axes: Frozen, mesh: Mesh) -> Params:
    """Returns a sharding for each parameter."""
    return jax.tree.map(lambda leaf: NamedSharding(mesh, part_spec(leaf, mesh)), axes)


def _divides(axis: Axis, mesh: Mesh) -> bool:
    return axis.name in RULES and axis.blocks % mesh.shape[RULES[axis.name]] == 0


def whole_axes(axes: Params, mesh: Mesh) -> list[str]:
    """Lists the axes that the mesh cannot cut, so that its devices repeat the parameter."""
    return [
        f"{jax.tree_util.keystr(path, simple=True, separator='.')}: {axis.blocks} {axis.name}"
        f" cannot be cut into {RULES[axis.name]} = {mesh.shape[RULES[axis.name]]}"
        for path, leaf in jax.tree.leaves_with_path(axes)
        for axis in leaf.axes
        if axis.name in RULES and not _divides(axis, mesh)
    ]


class MeshLayout(NamedTuple):
    """Shardings of everything that an update touches."""

    mesh: Mesh
    state: Any
    """A `TrainState` with a `NamedSharding` for each array."""
    batch: NamedSharding
    """Cuts the first axis, prompts."""
    everywhere: NamedSharding
    """Repeats an array on every device."""
    tables: Params
    """Those of all the policy's parameters while it is computed: vocabulary tables are whole along
    `fsdp`."""


def make_layout(
    axes: Params,
    params: Params,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    frozen_axes: Frozen = (),
) -> MeshLayout:
    """Returns the layout of a train state: moments lie where their parameters do.

    Factors of moments, which are small, are everywhere.

    Args:
      axes: the parameters' tree with an `Axes` for each array.
      params: the parameters, or their shapes.
      frozen_axes: those of `TrainState.frozen`.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    placed, frozen = places(axes, mesh), places(frozen_axes, mesh)
    state = jax.eval_shape(partial(init_state, optimizer=optimizer), params)
    moments = optax.tree.map_params(
        optimizer,
        lambda leaf, place, param: place if leaf.shape == param.shape else everywhere,
        state.opt_state,
        placed,
        params,
        transform_non_params=lambda _: everywhere,
    )
    batch = NamedSharding(mesh, PartitionSpec(BATCH_AXES))

    def gathered(leaf: Axes) -> NamedSharding:
        is_table, spec = any(axis.name == "vocab" for axis in leaf.axes), part_spec(leaf, mesh)
        cut = [None if is_table and name == "fsdp" else name for name in spec]
        return NamedSharding(mesh, PartitionSpec(*cut))

    tables = jax.tree.map(gathered, join(axes, frozen_axes))
    placed_state = TrainState(placed, moments, cast(Any, everywhere), frozen=frozen)
    return MeshLayout(mesh, placed_state, batch, everywhere, tables)


def check_prompts(mesh: Mesh, prompts: int, microbatches: int) -> None:
    """Raises ValueError where a microbatch's prompts do not divide among the batch's devices."""
    ways = math.prod(mesh.shape[name] for name in BATCH_AXES)
    if prompts % (microbatches * ways):
        raise ValueError(
            f"{prompts} prompts in {microbatches} microbatches cannot be cut among data * fsdp ="
            f" {ways} devices: make the prompts a multiple of {microbatches * ways}"
        )


def place(tree: Any, where: Any) -> Any:
    """Puts arrays where a tree (or one for all) of shardings says.

    With several processes each has the whole of `tree`, the same in all of them, and puts its own
    share on its own devices; arrays that are cut over the processes already are cut anew.
    """
    if not several():
        return jax.device_put(tree, where)

    def share(to: NamedSharding, leaf: Any) -> Array:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            return leaf if leaf.sharding == to else jax.jit(jnp.copy, out_shardings=to)(leaf)
        host = np.asarray(leaf)
        return jax.make_array_from_callback(host.shape, to, lambda index: host[index])

    return jax.tree.map(lambda to, part: jax.tree.map(partial(share, to), part), where, tree)


def init_placed(
    params: Params, optimizer: optax.GradientTransformation, to: MeshLayout, *, frozen: Frozen = ()
) -> TrainState:
    """Returns the first state, no device ever holding more than its share of moments.

    As with `init_state`, the state may own the buffers of `params`: the first update frees them.
    """
    params = place(params, to.state.params)
    opt_state = jax.jit(optimizer.init, out_shardings=to.state.opt_state)(params)
    updates = place(jnp.zeros((), jnp.int32), to.everywhere)
    return TrainState(params, opt_state, updates, frozen=place(frozen, to.state.frozen))


def pinned(policy_fn: PolicyFn, to: MeshLayout) -> PolicyFn:
    """Returns the policy with its batch spread over the mesh and gradients laid out as parameters.

    A microbatch is a slice of the batch and would otherwise stay on the devices it was cut from;
    the gradient summed over microbatches would otherwise be whole on every device.
    """
    keep = jax.lax.with_sharding_constraint

    def policy(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        params, batch = keep(params, to.state.whole()), keep(batch, to.batch)
        return keep(policy_fn(params, batch, temperature), to.batch)

    return policy


def shard_update(
    optimizer: optax.GradientTransformation,
    spec: UpdateSpec,
    to: MeshLayout,
    *,
    options: CompilerOptions | None = None,
) -> UpdateFn:
    """Returns `make_update` on a mesh: the same function of the same arguments, state donated.

    The batch may lie anywhere: it is placed here.

    Raises:
      ValueError: when called with prompts that do not divide among the devices.
    """
    jitted = join_frozen(shard_step(optimizer, spec, to, options=options))

    def update(
        state: TrainState, batch: Batch[Array], hypers: Hypers
    ) -> tuple[TrainState, Metrics]:
        check_prompts(to.mesh, batch.prompt_ids.shape[0], spec.microbatches)
        return jitted(state, place(batch, to.batch), place(hypers, to.everywhere))

    return update


def shard_step(
    optimizer: optax.GradientTransformation,
    spec: UpdateSpec,
    to: MeshLayout,
    *,
    options: CompilerOptions | None = None,
) -> StepFn:
    """Returns the jitted step on a mesh, whose arguments must lie where the layout says."""
    spec = spec._replace(policy_fn=pinned(spec.policy_fn, to))
    how = {"out_shardings": (replace(to.state, frozen=()), to.everywhere)}
    return jit_step(optimizer, spec, **how, compiler_options=options)


def shard_examine(
    make: Callable[..., Callable], spec: UpdateSpec, to: MeshLayout
) -> Callable[[TrainState, Batch[Array], Hypers], Any]:
    """Returns `make(spec)` on a mesh, of `make_examine` or `make_tokens`.

    The findings are whole on every device.
    """
    spec = spec._replace(policy_fn=pinned(spec.policy_fn, to))
    jitted = make(spec, out_shardings=to.everywhere)

    def examine(state: TrainState, batch: Batch[Array], hypers: Hypers) -> Any:
        return jitted(state, place(batch, to.batch), place(hypers, to.everywhere))

    return examine


def shard_score(
    policy_fn: PolicyFn, to: MeshLayout
) -> Callable[[Params, Batch[Array], Array], Array]:
    """Returns the jitted log-probs of a batch on the mesh, cut along prompts."""
    policy = pinned(policy_fn, to)
    jitted = jax.jit(lambda *args: policy(*args).log_probs, out_shardings=to.batch)

    def score(params: Params, batch: Batch[Array], temperature: Array) -> Array:
        check_prompts(to.mesh, batch.prompt_ids.shape[0], 1)
        return jitted(params, place(batch, to.batch), place(temperature, to.everywhere))

    return score


def whole_tables(policy_fn: PolicyFn, to: MeshLayout) -> PolicyFn:
    """Returns the policy with its vocabulary tables gathered along `fsdp` before look-ups.

    Cut along the hidden size, a table would give embeddings cut along it, and every device would
    have to gather all of the batch's to keep its own prompts.
    """

    def policy(params: Params, batch: Batch[Array], temperature: Array) -> PolicyOutput[Array]:
        return policy_fn(jax.lax.with_sharding_constraint(params, to.tables), batch, temperature)

    return policy


def by_rows(head_fn: HeadFn, to: MeshLayout) -> HeadFn:
    """Returns a head whose rows [M, d] stay on the device that has them.

    The vocabulary's cut along `tensor` is left to XLA. The table enters in float32, so that its
    gradient is summed over devices in float32 whatever the head computes in (XLA's CPU compiler
    cannot sum it in bfloat16 at all: it dies of "Invalid binary instruction opcode copy").
    """
    rows, whole = PartitionSpec(BATCH_AXES), PartitionSpec()

    def local(
        hidden: Array, table: Array, token_ids: Array, temperature: Array
    ) -> PolicyOutput[Array]:
        table = jax.lax.pcast(table, BATCH_AXES, to="varying").astype(hidden.dtype)
        return head_fn(hidden, table, token_ids, temperature)

    spread_head = jax.shard_map(
        local,
        mesh=to.mesh,
        in_specs=(rows, whole, rows, whole),
        out_specs=rows,
        axis_names=set(BATCH_AXES),
    )

    def head(
        hidden: Array, table: Array, token_ids: Array, temperature: Array
    ) -> PolicyOutput[Array]:
        return spread_head(hidden, table.astype(jnp.float32), token_ids, temperature)

    return head


def bytes_per_device(tree: Any) -> int:
    """Returns the bytes of arrays, or of shapes with a sharding, on one device of their mesh."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )
