"""Log-probs in plain XLA by one pass over slices of the vocabulary forward, one backward.

    forward:  z = E h / temperature of a slice -> its sums -> merged sums -> log-probs, entropy
    backward: z of a slice again -> its gradient -> a share of dL/dh, that slice's rows of dL/dE

with, for a row, m = max z, s = sum e^(z - m), u = sum e^(z - m) (z - m):

    log pi_v = z_v - m - log s          H = log s - u / s
    dL/dz_v = sum_a g_a [v = token_a] - pi_v (sum_a g_a + k (log pi_v + H))

for cotangents g of the log-probs and k of the entropy H. Where memory allows, the forward pass
keeps z of the last few slices for the backward one. Sums of two slices merge by rescaling to
the larger maximum (the online softmax of Milakov and Gimelshein 2018), and sums on two devices by
the same rule, so that a vocabulary cut over devices costs two small all-reduces.

z is homogeneous of degree 1 in h and of degree -1 in the temperature, hence
dL/dtemperature = -h . dL/dh / temperature, which needs no pass of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ogrpo.batch import PolicyOutput
from ogrpo.kernels.varying import vary_alike, varying
from ogrpo.policy.log_probs import HeadFn

Tree = TypeVar("Tree")
Offset = jax.Array | int
HeadGrads = tuple[jax.Array, jax.Array]

WIDTH = 1024
KEPT_BYTES = 1 << 29
CPU_ROWS = 2048
"""Rows at a time there: a slice of them stays in the cache between the passes over it."""
_LOW = -1e38  # below every logit; unlike -inf, its difference with any is a number


def chunked_log_probs(
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
    *,
    width: int = WIDTH,
    kept_bytes: int = KEPT_BYTES,
    axis_name: str | None = None,
    block: int | None = None,
) -> PolicyOutput[jax.Array]:
    """Log-probs of A tokens under each of M next-token distributions, with their entropy.

    log_probs[m, a] = log_softmax(E h_m / temperature)[token_ids[m, a]], entropy[m] = -sum p log p,
    accumulated in float32, a slice of `width` tokens of the vocabulary at a time. The backward pass
    has the logits of as many slices as `kept_bytes` hold, and computes those of the others again,
    one matrix product more: no [M, V] in either pass, but where it fits.
    Differentiable, once and in reverse, with respect to hidden, embedding and temperature, through
    the log-probs and the entropy alike (formulas above).

    With bfloat16 inputs the gradient of a slice's logits is rounded to bfloat16 before its two
    products, as everything that enters a bfloat16 product is; these accumulate in float32.

    Inside `jax.shard_map`, `axis_name` names the mesh axis that the vocabulary is cut over: each
    device passes its own rows of the embedding, in order and equally many, with the whole hidden
    states and global token ids. Rows of hidden may vary over other axes.

    Args:
      hidden: [M, d].
      embedding: [V, d] of hidden's dtype: the head's own, or the tied input embedding.
      token_ids: int [M, A]; a token outside of the vocabulary has log-prob -inf.
      temperature: scalar > 0; may be traced.
      width: tokens of the vocabulary at a time; float32 [M, width], or of one block of rows, is the
        memory needed.
      kept_bytes: for float32 logits from the forward to the backward pass; where no gradient is
        asked for, nothing is kept.
      axis_name: mesh axis of the vocabulary, or None where each device has all of it.
      block: rows at a time; by default `CPU_ROWS` on a CPU, and all elsewhere.

    Returns:
      float32 [M, A] and [M].

    Raises:
      ValueError: the embedding is not cut over axis_name.
    """
    chex.assert_rank([hidden, embedding, token_ids, temperature], [2, 2, 2, 0])
    if axis_name is not None and axis_name not in varying(embedding):
        raise ValueError(
            f"the embedding does not vary over mesh axis {axis_name!r}: call this inside "
            "jax.shard_map (with its check_vma=True), the embedding cut over that axis; or leave "
            "out axis_name"
        )
    size = hidden.shape[0]
    kept = kept_bytes // (4 * width * max(size, 1))
    block = CPU_ROWS if block is None and jax.default_backend() == "cpu" else block
    number = 1 if block is None else max(1, -(-size // block))
    blocks = _Blocks(number, -(-size // number))
    alike = vary_alike(hidden, embedding, jnp.asarray(temperature, jnp.float32))
    rest = number * blocks.size - size
    padded = (jnp.pad(x, ((0, rest), (0, 0))) if rest else x for x in (alike[0], token_ids))
    hidden, token_ids = padded
    plan = _Plan(width, kept, blocks, axis_name)
    out: Any = _swept(plan, hidden, alike[1], token_ids, alike[2])
    return jax.tree.map(lambda x: x[:size], out) if rest else out


def log_probs_over_mesh(
    mesh: Mesh,
    *,
    vocabulary: str,
    rows: str | tuple[str, ...] = (),
    width: int = WIDTH,
    kept_bytes: int = KEPT_BYTES,
    block: int | None = None,
) -> HeadFn:
    """`chunked_log_probs`, each device with its slice of the embedding and its share of the rows.

    No device holds more of the embedding, or of its gradient, than its slice. Left to itself, XLA
    would gather the embedding, since a sweep takes slices of it at traced places.

    Args:
      mesh: of the arguments.
      vocabulary: axis that V is cut over, which must divide it.
      rows: axes that M is cut over, whose product must divide it; none by default.
      width: tokens of a device's share of the vocabulary at a time.
      kept_bytes: for logits on each device, as `chunked_log_probs` has it.
      block: of a device's rows at a time, as there.
    """
    by_row = P(rows or None)
    return jax.shard_map(
        partial(
            chunked_log_probs, width=width, kept_bytes=kept_bytes, block=block, axis_name=vocabulary
        ),
        mesh=mesh,
        in_specs=(by_row, P(vocabulary), by_row, P()),
        out_specs=by_row,
    )


class _Blocks(NamedTuple):
    """All rows as so many blocks of a size, one after the other; one alone is never sliced."""

    number: int
    size: int

    def over(self, step: Callable[[Offset, Tree], Tree], carry: Tree) -> Tree:
        """Returns `carry` after a step for each block."""
        return step(0, carry) if self.number == 1 else lax.fori_loop(0, self.number, step, carry)

    def read(self, block: Offset, arrays: Tree) -> Tree:
        """Returns a block's rows of arrays [M, ...]."""
        if self.number == 1:
            return arrays
        start = block * self.size
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, self.size), arrays)

    def write(self, block: Offset, arrays: Tree, new: Tree) -> Tree:
        """Returns arrays [M, ...] with new rows in the block's place."""
        if self.number == 1:
            return new
        start = block * self.size
        return jax.tree.map(
            lambda x, mine: lax.dynamic_update_slice_in_dim(x, mine, start, 0), arrays, new
        )


class _Plan(NamedTuple):
    """The widths of a sweep over the vocabulary and the rows; static."""

    width: int
    """Tokens of a slice."""
    kept: int
    """Slices whose z is kept for the backward pass, if there are so many."""
    blocks: _Blocks
    axis_name: str | None
    """Mesh axis that the vocabulary is cut over."""

    def cut(self, size: int) -> tuple[int, int, int, int]:
        """Cuts a vocabulary into size mod width tokens (or width of them) and slices of width.

        Returns:
          The tokens of the first part, the width, the number of slices after it, and the first of
          these that is kept.
        """
        width = min(self.width, size)
        steps = -(-size // width) - 1
        return size - steps * width, width, steps, max(0, steps - self.kept)


class _Slice(NamedTuple):
    """A part of the vocabulary, against a block of rows."""

    hidden: jax.Array
    """Shape [B, d]."""
    token_ids: jax.Array
    """Int [B, A]: relative to the slice."""
    rows: jax.Array
    """Shape [C, d]: of E, the embedding."""
    temperature: jax.Array

    def scores(self) -> jax.Array:
        """Returns z, float32 [B, C]."""
        return _product("md,vd->mv", self.hidden, self.rows) / self.temperature


class _Sums(NamedTuple):
    """Sums that a part of the vocabulary adds to each row's softmax; float32."""

    peak: jax.Array
    """Shape [M]: m."""
    mass: jax.Array
    """Shape [M]: s."""
    moment: jax.Array
    """Shape [M]: u."""
    logits: jax.Array
    """Shape [M, A]: logits of the tokens in the part, -inf for the others."""

    def at(self, peak: jax.Array) -> "_Sums":
        """Returns the same sums relative to a maximum that is at least as large."""
        shift = self.peak - peak
        scale = jnp.exp(shift)
        moment = scale * (self.moment + self.mass * shift)
        return _Sums(peak, scale * self.mass, moment, self.logits)

    def merged(self, other: "_Sums") -> "_Sums":
        """Returns the sums of two parts together."""
        peak = jnp.maximum(self.peak, other.peak)
        a, b = self.at(peak), other.at(peak)
        return _Sums(peak, a.mass + b.mass, a.moment + b.moment, jnp.maximum(a.logits, b.logits))


class _Known(NamedTuple):
    """Each row as the backward pass needs it beside its logits; float32."""

    peak: jax.Array
    """Shape [M]: m; subtracted before log s, since m + log s would round."""
    log_mass: jax.Array
    """Shape [M]: log s."""
    entropy: jax.Array
    """Shape [M]: H."""
    d_log_probs: jax.Array
    """Shape [M, A]: g."""
    d_entropy: jax.Array
    """Shape [M]: k."""


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _swept(
    plan: _Plan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> PolicyOutput[jax.Array]:
    return _forward(plan._replace(kept=0), hidden, embedding, token_ids, temperature)[0]


def _forward(
    plan: _Plan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> tuple[PolicyOutput[jax.Array], tuple[Any, ...]]:
    first, width, steps, first_kept = plan.cut(embedding.shape[0])
    blocks, local_ids = plan.blocks, _local_ids(plan, embedding, token_ids)

    def add(start: Offset, width: int, sums: _Sums, kept: Any = None, place: Offset = 0) -> Any:
        """Adds a slice's sums; its z stands at `place` of those that are kept, if any are."""
        rows, ids = lax.dynamic_slice_in_dim(embedding, start, width), local_ids - start

        def one(block: Offset, carry: tuple[_Sums, Any]) -> tuple[_Sums, Any]:
            sums, kept = carry
            here = _Slice(*blocks.read(block, (hidden, ids)), rows, temperature)
            z = here.scores()
            merged = blocks.read(block, sums).merged(_sums(here, z))
            if kept is not None:
                kept = lax.dynamic_update_slice(kept, z[None], (place, block * blocks.size, 0))
            return blocks.write(block, sums, merged), kept

        return blocks.over(one, (sums, kept))

    row = jnp.zeros_like(hidden[:, 0], jnp.float32)
    logits = row[:, None] + jnp.full(token_ids.shape, -jnp.inf, jnp.float32)
    sums, kept = add(0, first, _Sums(row + _LOW, row, row, logits))
    sums = lax.fori_loop(
        0, first_kept, lambda i, sums: add(first + i * width, width, sums)[0], sums
    )
    if first_kept < steps:
        empty = jnp.empty((steps - first_kept, len(hidden), width), jnp.float32)
        sums, kept = lax.fori_loop(
            first_kept,
            steps,
            lambda i, carry: add(first + i * width, width, carry[0], carry[1], i - first_kept),
            (sums, vary_alike(empty, hidden)[0]),
        )
    if plan.axis_name is not None:
        here = sums.at(lax.pmax(sums.peak, plan.axis_name))
        mass, moment = lax.psum((here.mass, here.moment), plan.axis_name)
        sums = _Sums(here.peak, mass, moment, lax.pmax(here.logits, plan.axis_name))
    log_mass = jnp.log(sums.mass)
    log_probs = (sums.logits - sums.peak[:, None]) - log_mass[:, None]
    entropy = log_mass - sums.moment / sums.mass
    out = PolicyOutput(log_probs=log_probs, entropy=entropy)
    inputs = hidden, embedding, token_ids, temperature
    return out, (inputs, (sums.peak, log_mass, out.entropy), kept)


def _backward(
    plan: _Plan, saved: tuple[Any, ...], cotangent: PolicyOutput[jax.Array]
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    (hidden, embedding, token_ids, temperature), (peak, log_mass, entropy), kept = saved
    known = _Known(peak, log_mass, entropy, cotangent.log_probs, cotangent.entropy)
    first, width, steps, first_kept = plan.cut(embedding.shape[0])
    blocks, local_ids = plan.blocks, _local_ids(plan, embedding, token_ids)

    def add(start: Offset, width: int, grads: HeadGrads, place: Offset | None = None) -> HeadGrads:
        """Adds a slice's gradients, of its z at `place` of those that were kept, or anew."""
        rows, ids = lax.dynamic_slice_in_dim(embedding, start, width), local_ids - start

        def one(block: Offset, grads: HeadGrads) -> HeadGrads:
            here = _Slice(*blocks.read(block, (hidden, ids)), rows, temperature)
            if place is None:
                z = here.scores()
            else:
                corner, size = (place, block * blocks.size, 0), (1, blocks.size, width)
                z = lax.dynamic_slice(kept, corner, size)[0]
            d_scores = _scores_grad(here, blocks.read(block, known), z)
            so_far = blocks.read(block, grads[0])
            d_hidden = so_far + _product("mv,vd->md", d_scores, here.rows)
            # Transposed, [d, C]: turning the narrower factor is a third faster on a CPU.
            d_rows = lax.optimization_barrier(_product("md,mv->dv", here.hidden, d_scores))
            return blocks.write(block, grads[0], d_hidden), grads[1] + d_rows

        none = vary_alike(jnp.zeros(rows.shape[::-1], jnp.float32), hidden)[0]
        d_hidden, d_rows = blocks.over(one, (grads[0], none))
        d_rows = d_rows.T.astype(embedding.dtype)
        return d_hidden, lax.dynamic_update_slice_in_dim(grads[1], d_rows, start, 0)

    grads = jnp.zeros_like(hidden, jnp.float32), jnp.zeros_like(embedding)
    grads = add(0, first, grads)
    grads = lax.fori_loop(
        0, first_kept, lambda i, grads: add(first + i * width, width, grads), grads
    )
    if first_kept < steps:
        grads = lax.fori_loop(
            first_kept,
            steps,
            lambda i, grads: add(first + i * width, width, grads, i - first_kept),
            grads,
        )
    d_hidden, d_embedding = grads
    d_temperature = -jnp.sum(hidden.astype(jnp.float32) * d_hidden) / temperature
    return d_hidden.astype(hidden.dtype), d_embedding, None, d_temperature


_swept.defvjp(_forward, _backward)


def _sums(here: _Slice, z: jax.Array) -> _Sums:
    peak = jnp.max(z, axis=-1)
    shifted = z - peak[:, None]
    weight = jnp.exp(shifted)
    inside = (here.token_ids >= 0) & (here.token_ids < here.rows.shape[0])
    logits = jnp.take_along_axis(z, jnp.where(inside, here.token_ids, 0), axis=-1)
    logits = jnp.where(inside, logits, -jnp.inf)
    return _Sums(peak, jnp.sum(weight, axis=-1), jnp.sum(weight * shifted, axis=-1), logits)


def _scores_grad(here: _Slice, known: _Known, z: jax.Array) -> jax.Array:
    """Returns dL/d(E h) [B, C] in hidden's dtype, that of the products it enters."""
    log_p = z - known.peak[:, None] - known.log_mass[:, None]
    pull = known.d_entropy[:, None] * (log_p + known.entropy[:, None])
    through_mass = -jnp.exp(log_p) * (jnp.sum(known.d_log_probs, axis=-1)[:, None] + pull)
    # Out of bounds is dropped, but -1 would be the last column.
    column = jnp.where(here.token_ids < 0, here.rows.shape[0], here.token_ids)
    row = jnp.arange(here.hidden.shape[0])[:, None]
    direct = known.d_log_probs / here.temperature
    d_scores = (through_mass / here.temperature).at[row, column].add(direct, mode="drop")
    return d_scores.astype(here.hidden.dtype)


def _local_ids(plan: _Plan, embedding: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Returns token ids relative to this device's first row of the vocabulary."""
    if plan.axis_name is None:
        return token_ids
    first = lax.axis_index(plan.axis_name) * embedding.shape[0]
    return token_ids - first.astype(token_ids.dtype)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
