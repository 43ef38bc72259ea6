"""One pass over slices of the vocabulary forward, one backward, never [M, V].

    forward:  z = E h / temperature of a slice -> its sums -> merged sums -> log-probs, entropy
    backward: z of a slice again -> its gradient -> a share of dL/dh, that slice's rows of dL/dE

Where memory allows, the forward pass keeps z of the last few slices for the backward one.

with, for a row, m = max z, s = sum e^(z - m), u = sum e^(z - m) (z - m):

    log pi_v = z_v - m - log s          H = log s - u / s
    dL/dz_v = sum_a g_a [v = token_a] - pi_v (sum_a g_a + k (log pi_v + H))

for cotangents g of the log-probs and k of the entropy H. Sums of two slices merge by rescaling to
the larger maximum (the online softmax of Milakov and Gimelshein 2018), and sums on two devices by
the same rule, so that a vocabulary cut over devices costs two small all-reduces.

z is homogeneous of degree 1 in h and of degree -1 in the temperature, hence
dL/dtemperature = -h . dL/dh / temperature, which needs no pass of its own.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

from ogrpo.batch import PolicyOutput
from ogrpo.kernels.log_probs.cuts import Block, Blocks, blocks, cut
from ogrpo.kernels.varying import vary_alike, varying

_LOW = -1e38  # below every logit; unlike -inf, its difference with any is a number


class Sums(NamedTuple):
    """Sums that a slice of the vocabulary adds to each row's softmax; float32."""

    peak: jax.Array
    """Shape [M]: m."""
    mass: jax.Array
    """Shape [M]: s."""
    moment: jax.Array
    """Shape [M]: u."""
    logits: jax.Array
    """Shape [M, A]: logits of the tokens in the slice, -inf for the others."""


class Known(NamedTuple):
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


Grads = tuple[jax.Array, jax.Array]


class Slice(NamedTuple):
    """A part of the vocabulary, against all rows."""

    hidden: jax.Array
    """Shape [M, d]."""
    rows: jax.Array
    """Shape [C, d]: of E, the embedding."""
    token_ids: jax.Array
    """Int [M, A]: relative to the slice."""
    temperature: jax.Array  # []


ScoresFn = Callable[[Slice], jax.Array]
"""z, float32 [M, C]."""
SumsFn = Callable[[Slice, jax.Array | None], Sums]
"""A slice's sums, of its z where that is given."""
ScoresGradFn = Callable[[Slice, Known, jax.Array | None], jax.Array]
"""dL/d(E h) [M, C] in hidden's dtype, that of the products it enters; of z where it is given."""


class SweepPlan(NamedTuple):
    """The functions and widths of a sweep; static."""

    sums_fn: SumsFn
    scores_grad_fn: ScoresGradFn
    forward_width: int  # slice of the vocabulary at a time
    backward_width: int
    axis_name: str | None  # mesh axis that the vocabulary is cut over
    scores_fn: ScoresFn | None = None  # how z is computed that is to be kept
    kept: int = 0  # slices whose z is kept, both widths being one
    block: int | None = None  # rows at a time, at most; None takes all


def swept_log_probs(
    plan: SweepPlan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> PolicyOutput[jax.Array]:
    """Log-probs [M, A] and entropies [M] by `plan`; see `chunked_log_probs`."""
    chex.assert_rank([hidden, embedding, token_ids, temperature], [2, 2, 2, 0])
    if plan.axis_name is not None and plan.axis_name not in varying(embedding):
        raise ValueError(
            f"the embedding does not vary over mesh axis {plan.axis_name!r}: call this inside "
            "jax.shard_map (with its check_vma=True), the embedding cut over that axis; or leave "
            "out axis_name"
        )
    alike = vary_alike(hidden, embedding, jnp.asarray(temperature, jnp.float32))
    size = hidden.shape[0]
    rest = blocks(size, plan.block).total - size
    padded = (jnp.pad(x, ((0, rest), (0, 0))) if rest else x for x in (alike[0], token_ids))
    hidden, token_ids = padded
    out: Any = _swept(plan, hidden, alike[1], token_ids, alike[2])
    return jax.tree.map(lambda x: x[:size], out) if rest else out


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _swept(
    plan: SweepPlan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> PolicyOutput[jax.Array]:
    nothing_kept = plan._replace(kept=0)
    return _forward(nothing_kept, hidden, embedding, token_ids, temperature)[0]


def _forward(
    plan: SweepPlan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> tuple[PolicyOutput[jax.Array], tuple[Any, ...]]:
    slices = cut(embedding.shape[0], plan.forward_width, plan.kept)
    rows = blocks(len(hidden), plan.block)
    part = _slicer(embedding, (hidden, _local_ids(plan, embedding, token_ids)), temperature)

    def again(start: jax.Array | int, width: int, sums: Sums) -> Sums:
        here = part(start, width)
        return rows.over(
            lambda block, sums: rows.change(
                block,
                sums,
                lambda sums: _merged(sums, plan.sums_fn(_block_of(rows, block, here), None)),
            ),
            sums,
        )

    def keep(i: jax.Array, carry: tuple[Sums, jax.Array]) -> tuple[Sums, jax.Array]:
        here = part(slices.start(i), slices.width)

        def one(block: Block, carry: tuple[Sums, jax.Array]) -> tuple[Sums, jax.Array]:
            mine = _block_of(rows, block, here)
            scores = _known_scores(plan, mine)
            sums = rows.change(
                block, carry[0], lambda sums: _merged(sums, plan.sums_fn(mine, scores))
            )
            corner = (i - slices.first_kept, rows.start(block), 0)
            return sums, lax.dynamic_update_slice(carry[1], scores[None], corner)

        return rows.over(one, carry)

    sums = again(0, slices.first, _no_sums(hidden, token_ids))
    sums = lax.fori_loop(
        0, slices.first_kept, lambda i, sums: again(slices.start(i), slices.width, sums), sums
    )
    kept = None
    if slices.kept:
        empty = jnp.empty((slices.kept, hidden.shape[0], slices.width), jnp.float32)
        empty = vary_alike(empty, hidden)[0]
        sums, kept = lax.fori_loop(slices.first_kept, slices.steps, keep, (sums, empty))
    sums = sums if plan.axis_name is None else _merged_over_devices(sums, plan.axis_name)
    log_mass = jnp.log(sums.mass)
    log_probs = (sums.logits - sums.peak[:, None]) - log_mass[:, None]
    entropy = log_mass - sums.moment / sums.mass
    out = PolicyOutput(log_probs=log_probs, entropy=entropy)
    inputs = hidden, embedding, token_ids, temperature
    return out, (inputs, (sums.peak, log_mass, out.entropy), kept)


def _backward(
    plan: SweepPlan, saved: tuple[Any, ...], cotangent: PolicyOutput[jax.Array]
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    (hidden, embedding, token_ids, temperature), (peak, log_mass, entropy), kept = saved
    known = Known(peak, log_mass, entropy, cotangent.log_probs, cotangent.entropy)
    slices = cut(embedding.shape[0], plan.backward_width, plan.kept)
    rows = blocks(len(hidden), plan.block)
    part = _slicer(embedding, (hidden, _local_ids(plan, embedding, token_ids)), temperature)

    def add(grads: Grads, start: jax.Array | int, width: int, step: jax.Array | None) -> Grads:
        here = part(start, width)

        def one(block: Block, grads: Grads) -> Grads:
            mine = _block_of(rows, block, here)
            scores = None
            if step is not None:
                corner, size = (step, rows.start(block), 0), (1, rows.size, width)
                scores = lax.dynamic_slice(kept, corner, size)[0]
            d_scores = plan.scores_grad_fn(mine, rows.read(block, known), scores)
            d_hidden = rows.change(
                block, grads[0], lambda x: x + _product("mv,vd->md", d_scores, mine.rows)
            )
            return d_hidden, grads[1] + _rows_grad(d_scores, mine.hidden)

        none = vary_alike(jnp.zeros(here.rows.shape[::-1], jnp.float32), hidden)[0]
        d_hidden, d_rows = rows.over(one, (grads[0], none))
        d_rows = d_rows.T.astype(embedding.dtype)
        return d_hidden, lax.dynamic_update_slice_in_dim(grads[1], d_rows, start, 0)

    def again(i: jax.Array, grads: Grads) -> Grads:
        return add(grads, slices.start(i), slices.width, None)

    def use(i: jax.Array, grads: Grads) -> Grads:
        return add(grads, slices.start(i), slices.width, i - slices.first_kept)

    grads = jnp.zeros_like(hidden, jnp.float32), jnp.zeros_like(embedding)
    grads = add(grads, 0, slices.first, None)
    grads = lax.fori_loop(0, slices.first_kept, again, grads)
    if slices.kept:
        grads = lax.fori_loop(slices.first_kept, slices.steps, use, grads)
    d_hidden, d_embedding = grads
    d_temperature = -jnp.sum(hidden.astype(jnp.float32) * d_hidden) / temperature
    return d_hidden.astype(hidden.dtype), d_embedding, None, d_temperature


_swept.defvjp(_forward, _backward)


def _slicer(
    embedding: jax.Array, per_row: tuple[jax.Array, jax.Array], temperature: jax.Array
) -> Callable[[jax.Array | int, int], Slice]:
    """`(start, width) -> Slice` of the vocabulary against all rows: hidden states, token ids."""
    hidden, token_ids = per_row

    def part(start: jax.Array | int, width: int) -> Slice:
        rows = lax.dynamic_slice_in_dim(embedding, start, width)
        return Slice(hidden, rows, token_ids - start, temperature)

    return part


def _block_of(rows: Blocks, block: Block, here: Slice) -> Slice:
    hidden, token_ids = rows.read(block, (here.hidden, here.token_ids))
    return here._replace(hidden=hidden, token_ids=token_ids)


def _no_sums(hidden: jax.Array, token_ids: jax.Array) -> Sums:
    """Those of no token."""
    row = jnp.zeros_like(hidden[:, 0], jnp.float32)
    logits = row[:, None] + jnp.full(token_ids.shape, -jnp.inf, jnp.float32)
    return Sums(row + _LOW, row, row, logits)


def _known_scores(plan: SweepPlan, here: Slice) -> jax.Array:
    assert plan.scores_fn is not None  # who keeps slices says how they are computed
    return plan.scores_fn(here)


def _rows_grad(d_scores: jax.Array, hidden: jax.Array) -> jax.Array:
    """(d_scores^T h)^T, [d, C]: transposing the narrower factor is a third faster on a CPU."""
    return lax.optimization_barrier(_product("md,mv->dv", hidden, d_scores))


def _rescaled(sums: Sums, peak: jax.Array) -> Sums:
    """The same sums relative to a maximum that is at least as large."""
    shift = sums.peak - peak
    scale = jnp.exp(shift)
    moment = scale * (sums.moment + sums.mass * shift)
    return Sums(peak, scale * sums.mass, moment, sums.logits)


def _merged(a: Sums, b: Sums) -> Sums:
    peak = jnp.maximum(a.peak, b.peak)
    a, b = _rescaled(a, peak), _rescaled(b, peak)
    return Sums(peak, a.mass + b.mass, a.moment + b.moment, jnp.maximum(a.logits, b.logits))


def _merged_over_devices(sums: Sums, axis_name: str) -> Sums:
    here = _rescaled(sums, lax.pmax(sums.peak, axis_name))
    mass, moment = lax.psum((here.mass, here.moment), axis_name)
    return Sums(here.peak, mass, moment, lax.pmax(here.logits, axis_name))


def _local_ids(plan: SweepPlan, embedding: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Token ids relative to this device's first row of the vocabulary."""
    if plan.axis_name is None:
        return token_ids
    first = lax.axis_index(plan.axis_name) * embedding.shape[0]
    return token_ids - first.astype(token_ids.dtype)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)
