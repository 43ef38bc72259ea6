"""Traces: products of cut-off ratios along a sequence, and the targets made of them.

Arrays are [..., T] unless they say otherwise, log-ratios log pi - log mu; results are detached.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import Scalar, check_masked, check_nonnegative
from ogrpo.core.ratios import exp_ratio


def trace_coefficient(log_ratio: jax.Array, *, decay: Scalar, cap: Scalar) -> jax.Array:
    """c_t = decay min(cap, rho_t).

    Source: Retrace(lambda) (Munos et al. 2016, arXiv:1606.02647) with cap 1; V-trace (Espeholt et
    al. 2018, arXiv:1802.01561), c-bar.

    Args:
      decay: lambda in [0, 1].
      cap: largest ratio that is passed on.
    """
    check_nonnegative(decay=decay, cap=cap)
    return jax.lax.stop_gradient(decay * jnp.minimum(exp_ratio(log_ratio), cap))


def trace_weight(log_ratio: jax.Array, mask: jax.Array, *, decay: Scalar, cap: Scalar) -> jax.Array:
    """Trace at every token: w_t = prod_{u <= t} decay min(cap, rho_u).

    A `weight_fn`. With decay 1 and no cap it is the per-decision weight; a cap of 1 bounds its
    variance, and E_mu[prod min(1, rho_t)] = prod (1 - TV_t) for independent tokens.

    Args:
      mask: [..., T] bool; a masked token leaves the product as it is.
      decay: lambda in [0, 1].
      cap: largest factor before decay.
    """
    check_masked("T", mask, log_ratio=log_ratio)
    factors = jnp.where(mask, trace_coefficient(log_ratio, decay=decay, cap=cap), 1)
    return exp_ratio(jnp.cumsum(jnp.log(factors), axis=-1))


def vtrace_weight(
    log_ratio: jax.Array, mask: jax.Array, *, decay: Scalar, ratio_cap: Scalar, trace_cap: Scalar
) -> jax.Array:
    """w_t such that w_t (R - b) is `vtrace`'s advantage for one reward R at the end and values b.

    w_t = rho_t (prod_{t < u < T} c_u) rho_T and w_T = rho_T, rho = min(ratio_cap, .), c from
    `trace_coefficient`. Source: V-trace (Espeholt et al. 2018, arXiv:1802.01561), eq. 1, without
    discount; the value function is a baseline b that is constant over the completion.

    Args:
      decay: lambda in [0, 1].
      ratio_cap: rho-bar, >= 0.
      trace_cap: c-bar, >= 0.

    Returns:
      [..., T] detached, 0 where masked.
    """
    check_masked("T", mask, log_ratio=log_ratio)
    check_nonnegative(ratio_cap=ratio_cap, trace_cap=trace_cap)
    traces = trace_coefficient(log_ratio, decay=decay, cap=trace_cap)
    ratio = trace_coefficient(log_ratio, decay=1.0, cap=ratio_cap)
    remaining = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1]
    factors = jnp.where(mask, jnp.where(remaining == 1, ratio, traces), 1)
    sums = jnp.cumsum(jnp.log(factors)[..., ::-1], axis=-1)[..., ::-1]
    later = jnp.concatenate([sums[..., 1:], jnp.zeros_like(sums[..., :1])], axis=-1)
    return jnp.where(mask, exp_ratio(jnp.log(ratio) + later), 0)


def generalized_advantages(
    rewards: jax.Array, values: jax.Array, mask: jax.Array, *, discount: Scalar, decay: Scalar
) -> jax.Array:
    """A_t = sum_k (discount decay)^k d_{t+k}, d_t = r_t + discount V_{t+1} - V_t.

    Source: GAE (Schulman et al. 2016, arXiv:1506.02438), eq. 11 and 16. decay = 1: the discounted
    reward to come less V_t, whose mean over draws no V moves; decay = 0: d_t, right for the true V
    alone. A discount below 1 lowers a last reward by the length: short completions are preferred.
    V after the last token is 0: the sequence ended there. A_t + V_t is the lambda-return.

    Args:
      values: [..., T] V before each token.
      mask: [..., T] bool; a masked token is passed over, its reward not counted.
      discount: gamma in [0, 1].
      decay: lambda in [0, 1].

    Returns:
      [..., T] detached, 0 where masked.
    """
    check_masked("T", mask, rewards=rewards, values=values)
    check_nonnegative(discount=discount, decay=decay)

    def back(carry: tuple[jax.Array, jax.Array], step: tuple[jax.Array, ...]):
        value_next, advantage_next = carry
        reward, value, kept = step
        error = reward + discount * value_next - value
        advantage = error + discount * decay * advantage_next
        now = (jnp.where(kept, value, value_next), jnp.where(kept, advantage, advantage_next))
        return now, jnp.where(kept, advantage, 0)

    held = jax.lax.stop_gradient((rewards, jnp.where(mask, values, 0), mask))
    steps = tuple(jnp.moveaxis(x, -1, 0) for x in held)
    nothing = jnp.zeros_like(values[..., 0])
    _, out = jax.lax.scan(back, (nothing, nothing), steps, reverse=True)
    return jnp.moveaxis(out, 0, -1)


def vtrace(
    log_ratio: jax.Array,
    rewards: jax.Array,
    values: jax.Array,
    bootstrap: jax.Array,
    mask: jax.Array,
    *,
    discount: Scalar,
    decay: Scalar,
    ratio_cap: Scalar,
    trace_cap: Scalar,
) -> tuple[jax.Array, jax.Array]:
    """v_t = V_t + rho_t (r_t + discount V_{t+1} - V_t) + discount c_t (v_{t+1} - V_{t+1}).

    Source: V-trace (Espeholt et al. 2018, arXiv:1802.01561), eq. 1 and remark 1; rho_t =
    min(ratio_cap, .), c_t from `trace_coefficient`. Bias: the fixed point is the value of the
    policy proportional to min(ratio_cap mu, pi), not of pi; trace_cap moves only the speed.

    Args:
      values: [..., T] V at each position.
      bootstrap: [...] V after the last token; 0 where the sequence ended.
      mask: [..., T] bool, True up to the last token (padding on the right).
      discount: in [0, 1].
      decay: lambda in [0, 1].
      ratio_cap: rho-bar, >= 0.
      trace_cap: c-bar, >= 0.

    Returns:
      [..., T] each, detached: targets v_t of the values, and advantages rho_t (r_t + discount
      v_{t+1} - V_t); 0 where masked.
    """
    check_masked("T", mask, log_ratio=log_ratio, rewards=rewards, values=values)
    check_nonnegative(discount=discount, ratio_cap=ratio_cap, trace_cap=trace_cap)
    traces = trace_coefficient(log_ratio, decay=decay, cap=trace_cap)
    ratio = trace_coefficient(log_ratio, decay=1.0, cap=ratio_cap)

    def back(carry: tuple[jax.Array, jax.Array], step: tuple[jax.Array, ...]):
        value_next, target_next = carry
        c, rho, reward, value, kept = step
        error = rho * (reward + discount * value_next - value)
        target = value + error + discount * c * (target_next - value_next)
        advantage = rho * (reward + discount * target_next - value)
        now = (jnp.where(kept, value, value_next), jnp.where(kept, target, target_next))
        return now, (jnp.where(kept, target, 0), jnp.where(kept, advantage, 0))

    steps = [jnp.moveaxis(x, -1, 0) for x in (traces, ratio, rewards, values, mask)]
    _, out = jax.lax.scan(back, (bootstrap, bootstrap), tuple(steps), reverse=True)
    targets, advantages = (jax.lax.stop_gradient(jnp.moveaxis(x, 0, -1)) for x in out)
    return targets, advantages
