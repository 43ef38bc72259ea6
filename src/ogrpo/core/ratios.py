"""Log-ratios of two policies, per token, all of the form `(log_probs, behavior_log_probs, mask)`.

Each returns [..., T], 0 where the mask is False, so that any can stand in for any other as the
`log_ratio_fn` of `ogrpo.core.objectives.token_loss`. `exp_ratio` leaves log space, once.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_masked
from ogrpo.core.masked import masked_mean, masked_sum

MAX_LOG_RATIO = 60.0
"""exp(60) = 1.1e26 leaves room in float32 to sum a batch of such ratios."""

MAX_MOMENT_LOG_RATIO = 20.0
"""exp(20) = 4.9e8 leaves room in float32 to square the sum of 3e10 such ratios."""


def log_ratio(log_probs: jax.Array, behavior_log_probs: jax.Array, mask: jax.Array) -> jax.Array:
    """Token log-ratio: D_t = log pi(y_t | y_<t) - log mu(y_t | y_<t).

    Source: PPO (Schulman et al. 2017, arXiv:1707.06347), eq. 6, in log space. Support: exp(D)
    reweights mu to pi only where pi << mu; top-p and top-k samplers break that. Bias: a token ratio
    ignores the ratio of its prefix, so off policy it is first-order only.

    Args:
      log_probs: [..., T] log-probabilities in nats; halves are widened to float32.
      behavior_log_probs: [..., T] the denominator's; -inf there gives +inf here.
      mask: [..., T] bool.

    Returns:
      [..., T], 0 where masked, whatever was there.

    Raises:
      ValueError: shapes differ, the mask is not bool, or log-probs are not floats.

    Example:
      >>> log_ratio(jnp.array([-1.0]), jnp.array([-1.5]), jnp.array([True]))
      Array([0.5], dtype=float32)
    """
    check_masked("T", mask, log_probs=log_probs, behavior_log_probs=behavior_log_probs)
    top, bottom = as_floats(log_probs=log_probs, behavior_log_probs=behavior_log_probs)
    return jnp.where(mask, jnp.where(mask, top, 0) - jnp.where(mask, bottom, 0), 0)


def sequence_log_ratio(
    log_probs: jax.Array, behavior_log_probs: jax.Array, mask: jax.Array
) -> jax.Array:
    """Sequence log-ratio at every token: S = sum_t D_t.

    Source: trajectory importance sampling; TOPR (Le Roux et al. 2025, arXiv:2503.14286). Support:
    pi << mu. Unbiased, with a variance that grows geometrically with length.

    Args and Returns: as `log_ratio`; S repeated over T, 0 where masked.
    """
    delta = log_ratio(log_probs, behavior_log_probs, mask)
    return jnp.where(mask, masked_sum(delta, mask), 0)


def mean_log_ratio(
    log_probs: jax.Array, behavior_log_probs: jax.Array, mask: jax.Array
) -> jax.Array:
    """Length-normalised log-ratio with each token's own gradient: sg(S) + lp_t - sg(lp_t).

    S = mean_t D_t. Source: GSPO-token (Zheng et al. 2025, arXiv:2507.18071). Where the advantage is
    constant over a sequence, the gradient of its mean loss is that of S shared over the tokens.
    Bias: E_mu[exp(S)] <= 1 where all lengths agree, by Jensen, for T > 1 with equality at pi = mu
    only; of unlike lengths up to 1 + E_pi[1/T] - E_mu[1/T] (`bounds.normalized_ratio_bound`). It is
    no importance weight.

    Args and Returns: as `log_ratio`.
    """
    delta = log_ratio(log_probs, behavior_log_probs, mask)
    mean = jax.lax.stop_gradient(jnp.where(mask, masked_mean(delta, mask), 0))
    token = jnp.where(jnp.isfinite(delta), delta, 0)
    return mean + token - jax.lax.stop_gradient(token)


def prefix_log_ratio(
    log_probs: jax.Array, behavior_log_probs: jax.Array, mask: jax.Array
) -> jax.Array:
    """Per-decision log-ratio: S_t = sum_{u <= t} D_u.

    Source: per-decision importance sampling (Precup, Sutton and Singh 2000).
    Support: pi << mu. Unbiased for rewards that depend on the prefix y_<=t only.

    Args and Returns: as `log_ratio`.
    """
    delta = log_ratio(log_probs, behavior_log_probs, mask)
    return jnp.where(mask, jnp.cumsum(delta, axis=-1), 0)


def exp_ratio(log_ratio: jax.Array) -> jax.Array:
    """Leaves log space: rho = exp(min(D, 60)), a constant beyond, so that no ratio is infinite.

    The bound is float32's, not a trust region's: a clip that should bind binds far below it.
    NaN stays NaN.

    Args:
      log_ratio: any shape.

    Returns:
      The ratio, same shape, within [0, exp(60)].
    """
    return jnp.exp(jnp.minimum(as_floats(log_ratio=log_ratio)[0], MAX_LOG_RATIO))


def moment_ratio(log_ratio: jax.Array) -> jax.Array:
    """A ratio that can be squared and summed: rho = exp(min(D, 20)), a constant beyond.

    In float32 exp(D)^2 is infinite from D = 44.4 on, and an effective sample size then NaN. Ratios
    beyond exp(20) count as equal to it: a batch that has one is degenerate either way, with an
    effective size of about the number of such tokens. NaN stays NaN.

    Args:
      log_ratio: any shape.

    Returns:
      The ratio, same shape, within [0, exp(20)].
    """
    return jnp.exp(jnp.minimum(as_floats(log_ratio=log_ratio)[0], MAX_MOMENT_LOG_RATIO))
