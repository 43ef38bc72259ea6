"""One pass over slices of the vocabulary forward, one backward, never [M, V].

    forward:  z = E h / temperature of a slice -> its sums -> merged sums -> log-probs, entropy
    backward: z of a slice again -> its gradient -> a share of dL/dh, that slice's rows of dL/dE

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
from typing import NamedTuple, TypeVar

import chex
import jax
import jax.numpy as jnp
from jax import lax

from ogrpo.policy.head import HeadOutput

Carry = TypeVar("Carry")


class Sums(NamedTuple):
    """What a slice of the vocabulary adds to each row's softmax; float32."""

    peak: jax.Array  # [M], m
    mass: jax.Array  # [M], s
    moment: jax.Array  # [M], u
    asked: jax.Array  # [M, A], logits of the asked tokens in the slice, -inf for the others


class Known(NamedTuple):
    """What the backward pass knows of each row beside its logits; float32."""

    peak: jax.Array  # [M], m; subtracted before log s, since m + log s would round
    log_mass: jax.Array  # [M], log s
    entropy: jax.Array  # [M], H
    d_log_probs: jax.Array  # [M, A], g
    d_entropy: jax.Array  # [M], k


# (hidden [M, d], rows of E [C, d], token ids relative to the slice [M, A], temperature) -> Sums
SumsFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array], Sums]
# The same and what is known -> dL/d(E h) [M, C] in hidden's dtype, that of the products it enters
ScoresGradFn = Callable[[jax.Array, jax.Array, jax.Array, jax.Array, Known], jax.Array]


class Plan(NamedTuple):
    """How a sweep is carried out; static."""

    sums_fn: SumsFn
    scores_grad_fn: ScoresGradFn
    forward_width: int  # slice of the vocabulary at a time
    backward_width: int
    axis_name: str | None  # mesh axis that the vocabulary is cut over


def swept_log_probs(
    plan: Plan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> HeadOutput:
    """Log-probs [M, A] and entropies [M] by `plan`; see `chunked_log_probs`."""
    chex.assert_rank([hidden, embedding, token_ids, temperature], [2, 2, 2, 0])
    if plan.axis_name is not None and plan.axis_name not in _varying(embedding):
        raise ValueError(
            f"the embedding does not vary over mesh axis {plan.axis_name!r}: call this inside "
            "jax.shard_map (with its check_vma=True), the embedding cut over that axis; or leave "
            "out axis_name"
        )
    alike = _vary_alike(hidden, embedding, jnp.asarray(temperature, jnp.float32))
    return _swept(plan, alike[0], alike[1], token_ids, alike[2])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _swept(
    plan: Plan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> HeadOutput:
    return _forward(plan, hidden, embedding, token_ids, temperature)[0]


def _forward(
    plan: Plan,
    hidden: jax.Array,
    embedding: jax.Array,
    token_ids: jax.Array,
    temperature: jax.Array,
) -> tuple[HeadOutput, tuple[jax.Array, ...]]:
    ids = _local_ids(plan, embedding, token_ids)

    def begin(rows: jax.Array) -> Sums:
        return plan.sums_fn(hidden, rows, ids, temperature)

    def step(sums: Sums, rows: jax.Array, start: jax.Array | int) -> Sums:
        return _merged(sums, plan.sums_fn(hidden, rows, ids - start, temperature))

    sums = _over_slices(embedding, plan.forward_width, begin, step)
    sums = sums if plan.axis_name is None else _merged_over_devices(sums, plan.axis_name)
    log_mass = jnp.log(sums.mass)
    log_probs = (sums.asked - sums.peak[:, None]) - log_mass[:, None]
    out = HeadOutput(log_probs, log_mass - sums.moment / sums.mass)
    return out, (hidden, embedding, token_ids, temperature, sums.peak, log_mass, out.entropy)


def _backward(
    plan: Plan, saved: tuple[jax.Array, ...], cotangent: HeadOutput
) -> tuple[jax.Array, jax.Array, None, jax.Array]:
    hidden, embedding, token_ids, temperature, peak, log_mass, entropy = saved
    known = Known(peak, log_mass, entropy, cotangent.log_probs, cotangent.entropy)
    ids = _local_ids(plan, embedding, token_ids)

    def step(
        carry: tuple[jax.Array, jax.Array], rows: jax.Array, start: jax.Array | int
    ) -> tuple[jax.Array, jax.Array]:
        d_hidden, d_embedding = carry
        d_scores = plan.scores_grad_fn(hidden, rows, ids - start, temperature, known)
        d_rows = _product("mv,md->vd", d_scores, hidden).astype(embedding.dtype)
        d_hidden = d_hidden + _product("mv,vd->md", d_scores, rows)
        return d_hidden, lax.dynamic_update_slice_in_dim(d_embedding, d_rows, start, 0)

    nothing = jnp.zeros_like(hidden, jnp.float32), jnp.zeros_like(embedding)
    d_hidden, d_embedding = _over_slices(
        embedding, plan.backward_width, lambda rows: step(nothing, rows, 0), step
    )
    d_temperature = -jnp.sum(hidden.astype(jnp.float32) * d_hidden) / temperature
    return d_hidden.astype(hidden.dtype), d_embedding, None, d_temperature


_swept.defvjp(_forward, _backward)


def _over_slices(
    embedding: jax.Array,
    width: int,
    begin: Callable[[jax.Array], Carry],
    step: Callable[[Carry, jax.Array, jax.Array], Carry],
) -> Carry:
    """`begin` on the first V mod width rows (or width of them), then `step` on each width more."""
    size = embedding.shape[0]
    width = min(width, size)
    steps = -(-size // width) - 1
    first = size - steps * width

    def body(i: jax.Array, carry: Carry) -> Carry:
        start = first + i * width
        return step(carry, lax.dynamic_slice_in_dim(embedding, start, width), start)

    return lax.fori_loop(0, steps, body, begin(embedding[:first]))


def _rescaled(sums: Sums, peak: jax.Array) -> Sums:
    """The same sums relative to a maximum that is at least as large."""
    shift = sums.peak - peak
    scale = jnp.exp(shift)
    moment = scale * (sums.moment + sums.mass * shift)
    return Sums(peak, scale * sums.mass, moment, sums.asked)


def _merged(a: Sums, b: Sums) -> Sums:
    peak = jnp.maximum(a.peak, b.peak)
    a, b = _rescaled(a, peak), _rescaled(b, peak)
    return Sums(peak, a.mass + b.mass, a.moment + b.moment, jnp.maximum(a.asked, b.asked))


def _merged_over_devices(sums: Sums, axis_name: str) -> Sums:
    here = _rescaled(sums, lax.pmax(sums.peak, axis_name))
    mass, moment = lax.psum((here.mass, here.moment), axis_name)
    return Sums(here.peak, mass, moment, lax.pmax(here.asked, axis_name))


def _local_ids(plan: Plan, embedding: jax.Array, token_ids: jax.Array) -> jax.Array:
    """Token ids relative to this device's first row of the vocabulary."""
    if plan.axis_name is None:
        return token_ids
    first = lax.axis_index(plan.axis_name) * embedding.shape[0]
    return token_ids - first.astype(token_ids.dtype)


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _varying(x: jax.Array) -> frozenset[str]:
    """Mesh axes over which a value inside shard_map differs."""
    return jax.typeof(x).manual_axis_type.varying


def _vary_alike(*values: jax.Array) -> list[jax.Array]:
    """All values varying over the axes of any, so that shard_map sums each one's gradient."""
    axes = frozenset[str]().union(*map(_varying, values))
    return [_vary_over(value, tuple(axes - _varying(value))) for value in values]


def _vary_over(x: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """x varying over more axes; its gradient is summed over them in float32, whatever its dtype."""
    if not axes:
        return x
    return lax.pcast(x.astype(jnp.float32), axes, to="varying").astype(x.dtype)
