"""Log-probs without logits as Pallas kernels for NVIDIA GPUs, through Triton.

The sweep is that of `sweep`; here are its two parts that touch logits, each fused with the matrix
product that makes them:

    sums          a block of rows walks a share of the vocabulary, online; logits stay in registers
    scores' grad  a tile of logits becomes a tile of their gradient before it is written

The two products that follow in the backward pass are left to XLA (cuBLAS), slice by slice.

UNMEASURED: no GPU was at hand. It is tested against the oracle in interpret mode, and its lowering
for CUDA is tested; neither speed nor the compiled kernels' results are known. `chunked` is the
version to compare it with, the one to use until then, and the one for a mesh.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from ogrpo.batch import PolicyOutput
from ogrpo.kernels.log_probs.chunked import chunked_log_probs
from ogrpo.kernels.log_probs.sweep import Known, Slice, Sums, SweepPlan, swept_log_probs

WIDTH = 16_384
_LOW = -1e30  # below every logit; unlike -inf, its difference with itself is a number


class Tile(NamedTuple):
    """Sizes of a block, powers of 2 of at least 16, and the shares the vocabulary is walked in."""

    rows: int = 64
    columns: int = 128
    depth: int = 64
    shares: int = 16


def pallas_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    width: int = WIDTH,
    tile: Tile = Tile(),  # noqa: B008
    interpret: bool = False,
) -> PolicyOutput[jax.Array]:
    """`chunked_log_probs` with fused kernels; float32 products are exact float32, not TF32.

    Args:
      hidden: [M, d].
      embedding: [V, d] of hidden's dtype.
      token_ids: int [M, A]; a token outside of the vocabulary has log-prob -inf.
      temperature: scalar > 0; may be traced.
      width: tokens of the vocabulary at a time in the backward pass, which holds [M, width] of
        hidden's dtype; the forward pass holds no logits.
      tile: sizes of the blocks.
      interpret: run in the interpreter, on any device, slowly: for tests.

    Returns:
      float32 [M, A] and [M].

    Raises:
      ValueError: this device cannot run it.
    """
    if not interpret and (reason := unavailable()) is not None:
        raise ValueError(f"the pallas log-probs {reason}: choose chunked, which runs anywhere")
    return lowered_log_probs(hidden, embedding, token_ids, temperature, width, tile, interpret)


def unavailable() -> str | None:
    """Returns why the default device cannot run these kernels; None where it can."""
    device = jax.devices()[0]
    if device.platform != "gpu" or not hasattr(device, "compute_capability"):
        return f"need an NVIDIA GPU, and the default device is {device.device_kind}"
    if float(device.compute_capability) < 8:
        return f"need compute capability 8.0 (Ampere), and {device.device_kind} is older"
    return None


def lowered_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    width: int,
    tile: Tile,
    interpret: bool,
) -> PolicyOutput[jax.Array]:
    """`pallas_log_probs` whatever the device, for lowering to a GPU from elsewhere."""
    if hidden.shape[0] == 0:  # a kernel cannot have an empty grid, and there is nothing to compute
        return chunked_log_probs(hidden, embedding, token_ids, temperature)
    sums_fn = partial(_sums, tile, interpret)
    grad_fn = partial(_scores_grad, tile, interpret)
    whole = min(embedding.shape[0], (2**31 - 1) // embedding.shape[1])  # a kernel counts in int32
    plan = SweepPlan(sums_fn, grad_fn, whole, width, None)
    return swept_log_probs(plan, hidden, embedding, token_ids, temperature)


def _sums(tile: Tile, interpret: bool, here: Slice, _scores: jax.Array | None) -> Sums:
    hidden, rows, token_ids, temperature = here
    blocks = pl.cdiv(rows.shape[0], tile.columns)
    per_share = pl.cdiv(blocks, min(tile.shares, blocks))
    shares = pl.cdiv(blocks, per_share)
    per_row = jax.ShapeDtypeStruct((shares, hidden.shape[0]), jnp.float32)
    per_token = jax.ShapeDtypeStruct((shares, *token_ids.shape), jnp.float32)
    parts = pl.pallas_call(
        partial(_sums_kernel, tile=tile, per_share=per_share),
        out_shape=[per_row, per_row, per_row, per_token],
        grid=(pl.cdiv(hidden.shape[0], tile.rows), shares),
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        name="log_probs_sums",
    )(hidden, rows, token_ids, temperature[None])
    peak, mass, moment, logits = parts
    top = jnp.max(peak, axis=0)
    shift = peak - top[None]
    scale = jnp.exp(shift)
    moment = jnp.sum(scale * (moment + mass * shift), axis=0)
    return Sums(top, jnp.sum(scale * mass, axis=0), moment, jnp.max(logits, axis=0))


def _scores_grad(
    tile: Tile, interpret: bool, here: Slice, known: Known, _scores: jax.Array | None
) -> jax.Array:
    hidden, rows, token_ids, temperature = here
    m, v = hidden.shape[0], rows.shape[0]
    return pl.pallas_call(
        partial(_scores_grad_kernel, tile=tile),
        out_shape=jax.ShapeDtypeStruct((m, v), hidden.dtype),
        grid=(pl.cdiv(m, tile.rows), pl.cdiv(v, tile.columns)),
        interpret=interpret,
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        name="log_probs_scores_grad",
    )(hidden, rows, token_ids, temperature[None], *known)


def _sums_kernel(
    hidden: Any,
    embedding: Any,
    token_ids: Any,
    temperature: Any,
    peak_out: Any,
    mass_out: Any,
    moment_out: Any,
    logits_out: Any,
    *,
    tile: Tile,
    per_share: int,
) -> None:
    share = pl.program_id(1)
    row, rows_in = _span(pl.program_id(0), tile.rows, hidden.shape[0])
    blocks = pl.cdiv(embedding.shape[0], tile.columns)

    def clear(a: jax.Array, _: None) -> None:
        plgpu.store(logits_out.at[share, row, a], jnp.full(tile.rows, -jnp.inf), mask=rows_in)

    def step(j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        peak, mass, moment = carry
        z, columns, valid = _scores_tile(
            hidden, embedding, temperature, row, rows_in, share * per_share + j, tile
        )

        def ask(a: jax.Array, _: None) -> None:
            hit = _hits(token_ids, row, rows_in, a, columns) & valid
            highest = jnp.max(jnp.where(hit, z, -jnp.inf), axis=1)
            plgpu.store(logits_out.at[share, row, a], highest, mask=rows_in & (highest > -jnp.inf))

        lax.fori_loop(0, token_ids.shape[1], ask, None)
        top = jnp.maximum(peak, jnp.max(z, axis=1))
        shift, shifted = peak - top, z - top[:, None]
        scale, weight = jnp.exp(shift), jnp.where(valid, jnp.exp(shifted), 0.0)
        moment = scale * (moment + mass * shift) + jnp.sum(
            jnp.where(valid, weight * shifted, 0.0), axis=1
        )
        return top, scale * mass + jnp.sum(weight, axis=1), moment

    lax.fori_loop(0, token_ids.shape[1], clear, None)
    nothing = jnp.zeros(tile.rows, jnp.float32)
    begin = (jnp.full(tile.rows, _LOW, jnp.float32), nothing, nothing)
    steps = jnp.minimum(per_share, blocks - share * per_share)
    for out, value in zip(
        (peak_out, mass_out, moment_out), lax.fori_loop(0, steps, step, begin), strict=True
    ):
        plgpu.store(out.at[share, row], value, mask=rows_in)


def _scores_grad_kernel(
    hidden: Any,
    embedding: Any,
    token_ids: Any,
    temperature: Any,
    peak: Any,
    log_mass: Any,
    entropy: Any,
    d_log_probs: Any,
    d_entropy: Any,
    out: Any,
    *,
    tile: Tile,
) -> None:
    row, rows_in = _span(pl.program_id(0), tile.rows, hidden.shape[0])
    z, columns, valid = _scores_tile(
        hidden, embedding, temperature, row, rows_in, pl.program_id(1), tile
    )
    width, tokens = embedding.shape[0], token_ids.shape[1]

    def known(ref: Any) -> jax.Array:
        return plgpu.load(ref.at[row], mask=rows_in, other=0.0)

    def ask(a: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        grad, total = carry
        pull = plgpu.load(d_log_probs.at[row, a], mask=rows_in, other=0.0)
        hit = _hits(token_ids, row, rows_in, a, columns)
        return grad + jnp.where(hit, pull[:, None], 0.0), total + pull

    nothing = jnp.zeros_like(z), jnp.zeros(tile.rows, jnp.float32)
    direct, total = lax.fori_loop(0, tokens, ask, nothing)
    log_p = z - known(peak)[:, None] - known(log_mass)[:, None]
    pull = known(d_entropy)[:, None] * (log_p + known(entropy)[:, None])
    p = jnp.where(valid, jnp.exp(log_p), 0.0)
    grad = (direct - p * (total[:, None] + pull)) / temperature[0]
    column = pl.ds(pl.program_id(1) * tile.columns, tile.columns)
    mask = rows_in[:, None] & (columns < width)[None]
    plgpu.store(out.at[row, column], grad.astype(out.dtype), mask=mask)


def _scores_tile(
    hidden: Any,
    embedding: Any,
    temperature: Any,
    row: Any,
    rows_in: jax.Array,
    block: jax.Array,
    tile: Tile,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Logits [rows, columns] of a tile, its columns' numbers, and which entries there are."""
    size, depth = embedding.shape
    column, columns_in = _span(block, tile.columns, size)

    def step(i: jax.Array, z: jax.Array) -> jax.Array:
        span, inside = _span(i, tile.depth, depth)
        left = rows_in[:, None] & inside[None]
        right = columns_in[:, None] & inside[None]
        h = plgpu.load(hidden.at[row, span], mask=left, other=0.0)
        e = plgpu.load(embedding.at[column, span], mask=right, other=0.0)
        return z + plgpu.dot(h, e, trans_b=True, allow_tf32=False)

    zeros = jnp.zeros((tile.rows, tile.columns), jnp.float32)
    z = lax.fori_loop(0, pl.cdiv(depth, tile.depth), step, zeros) / temperature[0]
    valid = jnp.broadcast_to(columns_in[None], z.shape)
    return jnp.where(valid, z, _LOW), block * tile.columns + jnp.arange(tile.columns), valid


def _span(block: jax.Array, length: int, size: int) -> tuple[Any, jax.Array]:
    """The block-th stretch of an axis of `size`, and which of its places exist."""
    start = block * length
    return pl.ds(start, length), start + jnp.arange(length) < size


def _hits(
    token_ids: Any, row: Any, rows_in: jax.Array, a: jax.Array, columns: jax.Array
) -> jax.Array:
    """Returns where a tile's column is the row's a-th token."""
    ids = plgpu.load(token_ids.at[row, a], mask=rows_in, other=-1)
    return ids[:, None] == columns[None]
