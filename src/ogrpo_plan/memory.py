"""Memory of a training device and of an NPU, in bytes.

Weights, gradients and moments lie where `ogrpo.learner.sharding` puts them. Counted from shapes
(`ogrpo.policy.flops`), except for the row "working": what a backward pass holds for a moment, twice
the logits, or what a layer holds in float32, whichever is more: five times its MLP's units (of one
part of the tokens where `decoder.MANY_UNITS` cuts them), and four times its attention scores, or
without scores fourteen arrays as wide as the queries. Those factors were read off XLA's memory
analysis of the update on a CPU (2026-11-22; `benchmarks/memory.py`), and another compiler may
do better or worse.
"""

from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from ogrpo.kernels import attention
from ogrpo.learner.sharding import bytes_per_device, part_spec
from ogrpo.learner.state import factored_rms
from ogrpo.policy import DecoderConfig, flops
from ogrpo.policy.decoder import MANY_UNITS, param_shapes
from ogrpo.policy.lora import split, split_axes
from ogrpo.policy.params import Axes, param_axes
from ogrpo_plan.config import GIB, ITEMSIZE, Plan

TOKEN_STEP, FILLED = 1024, 0.9
WORKING_LOGITS, WORKING_SCORES, WORKING_UNITS, WORKING_QUERIES = 2, 4, 5, 14


class Budget(NamedTuple):
    """One machine's memory: what lies in it, and how much it may hold."""

    name: str
    rows: dict[str, int]
    capacity: int
    remedy: str

    @property
    def total(self) -> int:
        """Sum of the rows, in bytes."""
        return sum(self.rows.values())

    @property
    def fits(self) -> bool:
        """Whether the sum is at most the capacity."""
        return self.total <= self.capacity


def cut_weight_bytes(config: DecoderConfig, itemsize: int, *, fsdp: int, tensor: int) -> int:
    """Bytes of the parameters on one device of a mesh."""
    kind = np.dtype(f"u{itemsize}")
    shapes = jax.tree.map(lambda leaf: leaf.update(dtype=kind), param_shapes(config))
    return _cut_bytes(param_axes(config), shapes, fsdp, tensor)


def _cut_bytes(axes: Any, shapes: Any, fsdp: int, tensor: int) -> int:
    mesh: Any = AbstractMesh((fsdp, tensor), ("fsdp", "tensor"))

    def placed(axes: Axes, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return leaf.update(sharding=NamedSharding(mesh, part_spec(axes, mesh)))

    return bytes_per_device(jax.tree.map(placed, axes, shapes))


def gathered_bytes(
    config: DecoderConfig, *, computed: int, kept: int, fsdp: int, tensor: int
) -> int:
    """Returns bytes that FSDP makes whole for a moment: a layer or an embedding, and its gradient.

    A vocabulary table's gradient is whole before it is summed (docs/sharding.md), in `kept` bytes a
    number: those of the parameters, or 0 where the table is frozen.
    """
    if fsdp == 1:
        return 0
    table = config.vocab_size * config.hidden_size
    tables = table if config.tie_embeddings else 2 * table
    layer = (flops.parameters(config) - tables) // config.num_layers
    return (computed * max(layer, table) + kept * table) // tensor


def trained_shapes(plan: Plan) -> Any:
    """Returns the shapes of the trained parameters: all of them, or float32 adapters alone."""
    adapter = plan.adapter
    kind = plan.model.dtype if adapter is None else "float32"
    shapes = jax.tree.map(lambda leaf: leaf.update(dtype=kind), param_shapes(plan.decoder()))
    if adapter is None:
        return shapes
    how = {"rank": adapter.rank, "alpha": 1.0, "targets": adapter.targets}
    return jax.eval_shape(partial(split, key=jax.random.key(0), **how), shapes).trained


def trained_bytes(plan: Plan) -> int:
    """Returns the bytes of the trained parameters on one device."""
    axes, adapter = param_axes(plan.decoder()), plan.adapter
    axes = axes if adapter is None else split_axes(axes, adapter.targets).trained
    return _cut_bytes(axes, trained_shapes(plan), plan.mesh.fsdp, plan.mesh.tensor)


def moments_bytes(plan: Plan) -> int:
    """Returns the bytes that Adam's moments add to the peak on one device.

    They are counted on one device and cut in proportion to the parameters, but for factored second
    moments, which are whole on every device.
    """
    moments, trained = plan.optimizer.moments, trained_bytes(plan)
    kind = plan.model.dtype if plan.adapter is None else "float32"
    small = trained * 2 // ITEMSIZE[kind]
    if moments == "factored":
        second = jax.eval_shape(factored_rms(b2=0.98, eps=1e-8).init, trained_shapes(plan))
        return small + sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(second))
    return 2 * trained if moments == "full" else trained + small


def train_budget(plan: Plan) -> Budget:
    """Returns the memory of one training device."""
    config, optimizer, adapts = plan.decoder(), plan.optimizer, plan.adapter is not None
    kept, used = ITEMSIZE[plan.model.dtype], ITEMSIZE[plan.compute]
    mesh = {"fsdp": plan.mesh.fsdp, "tensor": plan.mesh.tensor}
    weights = cut_weight_bytes(config, kept, **mesh)
    cast = weights * used // kept if used != kept else 0
    policies = plan.schedule.sync_offset + 1 + plan.reference
    trained = trained_bytes(plan)
    gathered = gathered_bytes(config, computed=used, kept=0 if adapts else kept, **mesh)
    tokens = optimizer.microbatch_tokens
    several = optimizer.microbatches > 1 if tokens is None else tokens < device_tokens(plan)
    widest = max(sides.inputs * sides.outputs for sides in config.projections.values())
    merged = kept * config.num_layers * widest // (plan.mesh.fsdp * plan.mesh.tensor)
    rows = {
        "weights": weights + adapts * trained,
        "gradients": trained * (2 if several else 1),
        "optimizer": moments_bytes(plan),
        "computing copy and its gradient": cast if adapts else 2 * cast,
        "policies kept for the servers": policies * trained,
        "gathered along fsdp": gathered,
        "a matrix merged for a push": adapts * merged,
        "activations": activation_bytes(plan),
        "working": working_bytes(plan),
    }
    remedy = (
        "raise optimizer.microbatches (at most the prompts of a device), or give "
        "optimizer.microbatch-tokens (a prompt and a completion at least), choose model.remat full "
        "or kernels.attention blocked, or raise mesh.fsdp"
    )
    return Budget("training device", rows, int(plan.train.memory_gib * GIB), remedy)


def device_tokens(plan: Plan) -> int:
    """Number of tokens in a device's share of the padded batch."""
    shape = plan.shape
    share = shape["n"] // (plan.mesh.data * plan.mesh.fsdp)
    return share * (shape["p"] + shape["g"] * shape["t"])


def device_shape(plan: Plan) -> dict[str, int]:
    """Returns n, g, p and t of one microbatch on one device."""
    optimizer, shape, ways = plan.optimizer, plan.shape, plan.mesh.data * plan.mesh.fsdp
    if optimizer.microbatch_tokens is not None:
        return {"n": 1, "g": 1, "p": shape["p"], "t": optimizer.microbatch_tokens - shape["p"]}
    return {**shape, "n": shape["n"] // (ways * optimizer.microbatches)}


def proposed_tokens(plan: Plan) -> int | None:
    """The most `microbatch-tokens` that leave a tenth of the training device free, None if none do.

    A multiple of `TOKEN_STEP`, unless a prompt with a completion, or a device's whole share, is
    the number.
    """
    least, most = plan.keys, device_tokens(plan)
    packed = replace(plan.optimizer, microbatches=1, batching="packed")

    def fits(tokens: int) -> bool:
        optimizer = replace(packed, microbatch_tokens=tokens)
        budget = train_budget(replace(plan, optimizer=optimizer, measure=False))
        return budget.total <= FILLED * budget.capacity

    if not fits(least):
        return None
    steps = [least, *range((least // TOKEN_STEP + 1) * TOKEN_STEP, most, TOKEN_STEP), most]
    return steps[bisect_left(steps, True, key=lambda tokens: not fits(tokens)) - 1]


def activation_bytes(plan: Plan) -> int:
    """Bytes that layers keep; across `tensor` hidden states are repeated, the rest is cut.

    Adapters add one number a rank, projection and token.
    """
    config, remat, adapter = plan.decoder(), plan.model.remat, plan.adapter
    size = ITEMSIZE[plan.compute]
    step = attention.step_of(plan.kernels.attention, plan.keys, "gpu")
    layout = flops.padded(**device_shape(plan), step=step)
    hidden = flops.activation_bytes(config, layout, itemsize=size, remat="full")
    if remat == "full":
        return hidden
    whole = flops.activation_bytes(config, layout, itemsize=size, remat=remat)
    width = 0 if adapter is None else adapter.rank * len(adapter.targets)
    narrow = size * config.num_layers * layout.tokens * width
    return 2 * hidden + (whole - 2 * hidden) // plan.mesh.tensor + narrow


def working_bytes(plan: Plan) -> int:
    """Bytes that a backward pass holds for a moment, by the factors in the module's docstring."""
    config, tensor, keys = plan.decoder(), plan.mesh.tensor, plan.keys
    layout = flops.padded(**device_shape(plan), step=None)
    logits, tokens = flops.logits_bytes(config, layout), layout.tokens
    units = tokens * config.intermediate_size
    units = min(units, MANY_UNITS) if plan.model.remat == "full" else units
    scores = min(4 * config.num_heads * tokens * keys, flops.score_bytes(config, layout))
    queries = WORKING_QUERIES * 4 * tokens * config.num_heads * config.head_dim
    mixing = queries if attention.blocks(plan.kernels.attention, keys) else WORKING_SCORES * scores
    layer = (mixing + WORKING_UNITS * 4 * units) // tensor
    return max(WORKING_LOGITS * logits // tensor, layer)


def serve_budget(plan: Plan) -> Budget:
    """Returns the memory of one NPU whose calls are all at their longest."""
    config, serve, shape = plan.decoder(), plan.serve, plan.shape
    size = ITEMSIZE[serve.dtype]
    token = flops.cache_bytes_per_token(config, size) // min(serve.tensor, config.num_kv_heads)
    group = shape["p"] + shape["g"] * shape["t"]
    rows = {
        "weights": cut_weight_bytes(config, size, fsdp=1, tensor=serve.tensor),
        "keys and values": serve.calls * serve.groups_per_call * group * token,
    }
    capacity = int(serve.memory_gib * serve.utilisation * GIB)
    remedy = "lower serve.calls or serve.groups-per-call, or raise serve.tensor"
    return Budget("NPU", rows, capacity, remedy)
