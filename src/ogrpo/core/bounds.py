"""Inequalities of improvement, clipping and sample size, as functions of finite distributions.

Distributions are probability vectors [Y] (`pi`, `mu` the behaviour, `pi_k` the current
policy), `rewards` [Y]. sigma = sqrt(Var_mu[r] + eps). Every inequality here is exact, not
asymptotic; the property tests hold them to enumeration, the `proofs` folder most of them to Coq.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, xlog1py, xlogy

from ogrpo.core.checks import Scalar, check_axes, check_nonnegative
from ogrpo.core.surrogates import clipped_surrogate


def density_ratio(pi: jax.Array, mu: jax.Array) -> jax.Array:
    """rho = pi / mu on the support of mu, 0 elsewhere. [Y], [Y] -> [Y]."""
    check_axes("Y", pi=pi, mu=mu)
    return jnp.where(mu > 0, pi / jnp.where(mu > 0, mu, 1), 0)


def total_variation(pi: jax.Array, mu: jax.Array) -> jax.Array:
    """TV(pi, mu) = sum |pi - mu| / 2 = E_mu[(rho - 1)_+] where pi << mu. [Y], [Y] -> scalar."""
    check_axes("Y", pi=pi, mu=mu)
    return jnp.sum(jnp.abs(pi - mu), axis=-1) / 2


def kl_divergence(pi: jax.Array, mu: jax.Array) -> jax.Array:
    """KL(pi||mu) = sum pi ln(pi / mu) in nats; inf unless pi << mu. [Y], [Y] -> scalar."""
    check_axes("Y", pi=pi, mu=mu)
    ratio = jnp.where(pi > 0, pi, 1) / jnp.where(pi > 0, mu, 1)
    return jnp.sum(pi * jnp.log(ratio), axis=-1)


def chi_square_divergence(pi: jax.Array, mu: jax.Array) -> jax.Array:
    """chi^2(pi||mu) = sum (pi - mu)^2 / mu; inf unless pi << mu. [Y], [Y] -> scalar."""
    check_axes("Y", pi=pi, mu=mu)
    used = (pi > 0) | (mu > 0)
    return jnp.sum(jnp.where(used, (pi - mu) ** 2 / jnp.where(used, mu, 1), 0), axis=-1)


def reward_scale(mu: jax.Array, rewards: jax.Array, *, eps: Scalar) -> jax.Array:
    """sigma = sqrt(Var_mu[r] + eps).

    For r in [0, 1], sigma^2 <= 1/4 + eps (Popoviciu).
    """
    check_axes("Y", mu=mu, rewards=rewards)
    check_nonnegative(eps=eps)
    return jnp.sqrt(mu @ (rewards - mu @ rewards) ** 2 + eps)


def surrogate_gain(pi: jax.Array, mu: jax.Array, rewards: jax.Array, *, eps: Scalar) -> jax.Array:
    """L_mu(pi) = E_mu[(pi/mu) A], A = (r - J(mu)) / sigma; (J(pi) - J(mu)) / sigma where pi << mu.

    Source: Mroueh et al. (2025, arXiv:2505.22257). L_mu(mu) = 0 and L <= TV/sigma (b - a).
    """
    advantages = (rewards - mu @ rewards) / reward_scale(mu, rewards, eps=eps)
    return mu @ (density_ratio(pi, mu) * advantages)


def clipped_gain(
    pi: jax.Array,
    mu: jax.Array,
    rewards: jax.Array,
    *,
    center: jax.Array,
    eps: Scalar,
    clip_eps: Scalar,
) -> jax.Array:
    """L^c_mu(pi) = E_mu[f_clip_eps(pi/mu, center, A)].

    Args:
      pi: [Y].
      mu: [Y].
      rewards: [Y].
      center: [Y]; `density_ratio(pi_k, mu)` is the exact one, ones the paper's approximation.
      eps: inside sigma.
      clip_eps: width of the band.
    """
    advantages = (rewards - mu @ rewards) / reward_scale(mu, rewards, eps=eps)
    ratio = density_ratio(pi, mu)
    clipped = clipped_surrogate(
        ratio, advantages, eps_low=clip_eps, eps_high=clip_eps, center=center
    )
    return mu @ clipped


def improvement_identity(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, *, eps: Scalar
) -> jax.Array:
    """J(pi) - J(pi_k) = sigma (L_mu(pi) - L_mu(pi_k)), for pi, pi_k << mu."""
    gain = surrogate_gain(pi, mu, rewards, eps=eps) - surrogate_gain(pi_k, mu, rewards, eps=eps)
    return reward_scale(mu, rewards, eps=eps) * gain


def sharp_bound(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, *, eps: Scalar
) -> jax.Array:
    """L_mu(pi) - (|1 - sigma|/sigma)(b - a) TV(pi, mu) - (b - a) TV(pi_k, mu) <= J(pi) - J(pi_k).

    For pi << mu and any sigma > 0; r in [a, b] = [min r, max r]. Attained on two points.
    """
    sigma = reward_scale(mu, rewards, eps=eps)
    width = jnp.max(rewards) - jnp.min(rewards)
    far = jnp.abs(1 - sigma) / sigma * total_variation(pi, mu) + total_variation(pi_k, mu)
    return surrogate_gain(pi, mu, rewards, eps=eps) - width * far


def stale_bound(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, *, eps: Scalar
) -> jax.Array:
    """sigma L_mu(pi) - (b - a) TV(pi_k, mu) <= J(pi) - J(pi_k): no blow-up as sigma -> 0.

    For pi, pi_k << mu; a corollary of `improvement_identity`.
    """
    gain = reward_scale(mu, rewards, eps=eps) * surrogate_gain(pi, mu, rewards, eps=eps)
    return gain - (jnp.max(rewards) - jnp.min(rewards)) * total_variation(pi_k, mu)


def published_bound(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, *, eps: Scalar
) -> jax.Array:
    """L_mu(pi) - 2 ((1 - sigma)/sigma) TV(pi, mu) - 2 TV(pi_k, mu), for r in [0, 1].

    Source: Mroueh et al. (2025, arXiv:2505.22257), theorem 1. Below J(pi) - J(pi_k) only if also
    sigma <= 1 and pi << mu; never positive for sigma <= 1/2, so that pi = mu maximises it.
    """
    sigma = reward_scale(mu, rewards, eps=eps)
    far = (1 - sigma) / sigma * total_variation(pi, mu) + total_variation(pi_k, mu)
    return surrogate_gain(pi, mu, rewards, eps=eps) - 2 * far


def minorise_maximise_gap(
    pi: jax.Array,
    pi_k: jax.Array,
    mu: jax.Array,
    rewards: jax.Array,
    *,
    eps: Scalar,
    clip_eps: Scalar,
) -> jax.Array:
    """J(pi) - J(pi_k) - sigma (L^c(pi) - L^c(pi_k)) >= 0, the centre exact; pi, pi_k << mu.

    So raising the clipped surrogate raises the reward by at least sigma times as much.
    """
    center = density_ratio(pi_k, mu)
    new, old = (
        clipped_gain(policy, mu, rewards, center=center, eps=eps, clip_eps=clip_eps)
        for policy in (pi, pi_k)
    )
    return (pi - pi_k) @ rewards - reward_scale(mu, rewards, eps=eps) * (new - old)


def pinsker_bound(value: Scalar, delta: Scalar) -> jax.Array:
    """J(pi) >= J(mu) - sqrt(delta / 2) for KL(pi||mu) <= delta, r in [0, 1].

    It bounds the harm; it promises no improvement. Sharp as delta -> 0 at J(mu) = 1/2.
    """
    check_nonnegative(delta=delta)
    return value - jnp.sqrt(jnp.asarray(delta, float) / 2)


def relative_bound(value: Scalar, delta: Scalar) -> jax.Array:
    """J(pi) >= J(mu) - sqrt(2 J(mu) delta) for KL(pi||mu) <= delta, r in [0, 1]."""
    check_nonnegative(value=value, delta=delta)
    return value - jnp.sqrt(2 * jnp.asarray(value, float) * delta)


def bernstein_bound(value: Scalar, variance: Scalar, delta: Scalar) -> jax.Array:
    """J(pi) >= J(mu) - sqrt(2 Var_mu[r] delta) - J(mu) delta / 3, r in [0, 1]."""
    check_nonnegative(value=value, variance=variance, delta=delta)
    return value - jnp.sqrt(2 * jnp.asarray(variance, float) * delta) - value * delta / 3


def worst_case_value(value: Scalar, delta: Scalar) -> jax.Array:
    """min {q : kl(q || J(mu)) <= delta}: the least J(pi) with KL(pi||mu) <= delta, r in [0, 1].

    By data processing through Bern(r); attained for binary rewards. Found by bisection.
    """
    check_nonnegative(value=value, delta=delta)
    top = jnp.asarray(value, float)

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) / 2
        pair = (jnp.stack([p, 1 - p]) for p in (middle, top))
        inside = kl_divergence(*pair) <= delta
        return jnp.where(inside, low, middle), jnp.where(inside, middle, high)

    return jax.lax.fori_loop(0, 80, halve, (jnp.zeros_like(top), top))[1]


def effective_samples(n: Scalar, chi_square: Scalar) -> jax.Array:
    """n_eff = n / (1 + chi^2) = n exp(-D2): n samples of mu have MSE(IS) <= 1 / n_eff, r in [0, 1].

    Source: Metelli et al. (2018, arXiv:1809.06098). MSE(IS) = (M2 - J^2) / n. So many samples of pi
    may do better: of a constant r, one knows all.

    Example:
      >>> effective_samples(100, 3.0)
      Array(25., dtype=float32)
    """
    check_nonnegative(n=n, chi_square=chi_square)
    return n / (1 + jnp.asarray(chi_square, float))


def sample_size(chi_square: Scalar, eta: Scalar) -> jax.Array:
    """n >= (1 + chi^2) / eta^2 gives RMSE <= eta, r in [0, 1].

    KL in place of chi^2 does not: it cannot bound a variance.
    """
    check_nonnegative(chi_square=chi_square, eta=eta)
    return (1 + jnp.asarray(chi_square, float)) / eta**2


def chi_square_per_kl(max_ratio: Scalar) -> jax.Array:
    """kappa(R) = (R - 1)^2 / (R ln R - R + 1): chi^2 <= kappa KL where rho <= R.

    Tight; tends to 2 as R -> 1.
    """
    apart = jnp.asarray(max_ratio, float) - 1
    far = jnp.abs(apart) > 0.1
    ratio = 1 + jnp.where(far, apart, 1)
    above = ratio * jnp.log(ratio) - ratio + 1
    near = jnp.where(far, 0, apart)  # the series of (R ln R - R + 1) / (R - 1)^2
    terms = [(-near) ** k / ((k + 1) * (k + 2)) for k in range(14)]
    return jnp.where(far, (ratio - 1) ** 2 / above, 1 / sum(terms[::-1]))


def stale_samples_help(
    fresh_variance: Scalar, stale_variance: Scalar, fresh: Scalar, stale: Scalar
) -> jax.Array:
    """True iff adding `stale` samples to `fresh` ones in a plain mean lowers its variance.

    stale_variance / fresh_variance < 2 + stale / fresh. Weighting by inverse variance never hurts.
    """
    check_nonnegative(fresh_variance=fresh_variance, stale_variance=stale_variance)
    return jnp.asarray(stale_variance < fresh_variance * (2 + stale / fresh))


def mixture_second_moment(pi: jax.Array, policies: jax.Array, weights: jax.Array) -> jax.Array:
    """sum_j w_j (1 + chi^2(pi||mu_j)) >= 1 + chi^2(pi || sum_j w_j mu_j): a buffer as one mixture.

    Args:
      pi: [Y].
      policies: [J, Y] the buffer's.
      weights: [J], summing to 1.
    """
    return weights @ (1 + jax.vmap(lambda mu: chi_square_divergence(pi, mu))(policies))


def truncation_bias_bound(max_value: Scalar, chi_square: Scalar, tau: Scalar) -> jax.Array:
    """|E_mu[(rho - tau)_+ f]| <= max|f| (1 + chi^2) / (4 tau)."""
    check_nonnegative(max_value=max_value, chi_square=chi_square, tau=tau)
    return max_value * (1 + jnp.asarray(chi_square, float)) / (4 * tau)


def optimal_clip_bound(value: Scalar, second_moment: Scalar, n: Scalar) -> jax.Array:
    """tau_n <= (J + sqrt(J^2 + (n - 1) M2)) / 2: the optimal cap grows no faster than sqrt(n)."""
    check_nonnegative(second_moment=second_moment, n=n)
    root = jnp.sqrt(jnp.asarray(value, float) ** 2 + (n - 1) * second_moment)
    return (value + root) / 2


def self_normalized_mse_bound(
    spread: Scalar, oscillation: Scalar, chi_square: Scalar, n: Scalar
) -> jax.Array:
    """MSE(SNIS) <= (2/n)(V + o^2 chi^2), V = E_mu[rho^2 (f - J)^2], o = max f - min f.

    Source: after Agapiou et al. (2017, arXiv:1511.06196).
    """
    check_nonnegative(spread=spread, chi_square=chi_square, n=n)
    return 2 / n * (spread + jnp.asarray(oscillation, float) ** 2 * chi_square)


def self_normalized_bias_bound(
    spread: Scalar, oscillation: Scalar, chi_square: Scalar, n: Scalar
) -> jax.Array:
    """|bias(SNIS)| <= sqrt(2 chi^2 (V + o^2 chi^2)) / n; V, o as in `self_normalized_mse_bound`."""
    check_nonnegative(spread=spread, chi_square=chi_square, n=n)
    mass = spread + jnp.asarray(oscillation, float) ** 2 * chi_square
    return jnp.sqrt(2 * chi_square * mass) / n


def token_surrogate_bound(length: Scalar, zeta: Scalar) -> jax.Array:
    """|J(pi) - J(mu) - L_tok| <= T (T - 1) zeta^2, zeta the largest TV over prefixes, r in [0, 1].

    L_tok = E_mu[sum_t (rho_t - 1) r]. Attained at T = 2.
    """
    check_nonnegative(length=length, zeta=zeta)
    return length * (length - 1) * jnp.asarray(zeta, float) ** 2


def token_truncation_bound(length: Scalar, loss: Scalar) -> jax.Array:
    """0 <= J - E_mu[prod min(rho_t, c) r] <= 1 - (1 - zeta_c)^T for r in [0, 1], pi << mu.

    Args:
      length: T, or the longest.
      loss: zeta_c, the largest E_mu(.|h)[(rho - c)_+] over prefixes h; at c = 1 the largest TV.

    Returns:
      The upper side. Theorem `token_truncation_bias`.
    """
    check_nonnegative(length=length, loss=loss)
    return -jnp.expm1(length * jnp.log1p(-jnp.minimum(jnp.asarray(loss, float), 1)))


def normalized_ratio_bound(pi: jax.Array, mu: jax.Array, lengths: jax.Array) -> jax.Array:
    """E_mu[rho^(1/T)] <= 1 + E_pi[1/T] - E_mu[1/T], T each sequence's length. [Y] -> scalar.

    At most 1 where all lengths agree; with unlike lengths the length-normalised ratio may gain
    mass. Theorems `normalised_ratio_mass`, `normalised_ratio_gains`.
    """
    check_axes("Y", pi=pi, mu=mu, lengths=lengths)
    return 1 + (pi - mu) @ (1 / lengths)


def unit_center_price(
    center: jax.Array, advantages: jax.Array, *, eps_low: Scalar, eps_high: Scalar
) -> jax.Array:
    """c a - f_eps(c, 1, a) >= 0, c = pi_k/mu: what the centre 1 costs, measured at pi_k alone.

    J(pi) - J(pi_k) >= L1(pi) - L1(pi_k) - E_mu[price], L1(pi) = E_mu[f_eps(pi/mu, 1, a)], for any
    constant baseline in a. Zero inside the band: where it is not small beside the gain that an
    update promises, renew the server or take the exact centre.

    Args:
      center: [...] c of whole sequences.
      advantages: [...] a.
      eps_low: as in `clipped_surrogate`.
      eps_high: likewise.

    Returns:
      [...]. Theorems `unit_centre_price`, `unit_centre_free`.
    """
    clipped = clipped_surrogate(
        center, advantages, eps_low=eps_low, eps_high=eps_high, center=jnp.ones_like(center)
    )
    return center * advantages - clipped


def standardized_gain(
    success: Scalar, group: int, *, ddof: int = 0, eps: Scalar = 0.0
) -> jax.Array:
    """c_G(p) = sum_j Bin(j; G-1, p) [A(1, j+1) - A(0, j)]: E[grad] = c_G(p_mu) grad J(pi).

    For binary rewards and `group_standardized`, A(r, k) the advantage of reward r among k
    successes. At eps = 0: c_2 = 1, c_G(0+) = sqrt(G - 1), c_G -> 1/sqrt(p (1 - p)).

    Args:
      success: p, the behaviour policy's chance of reward 1.
      group: G >= 2.
      ddof: as in `group_standardized`.
      eps: `eps_inside` there.

    Returns:
      Scalar.
    """
    others = jnp.arange(group, dtype=float)
    log_choose = gammaln(others[-1] + 1) - gammaln(others + 1) - gammaln(group - others)
    log_chance = xlogy(others, success) + xlog1py(group - 1 - others, -success)

    def advantage(reward: float, wins: jax.Array) -> jax.Array:
        mean = wins / group
        variance = mean * (1 - mean) * group / (group - ddof)
        mixed = (wins > 0) & (wins < group)
        return jnp.where(mixed, (reward - mean) / jnp.sqrt(jnp.where(mixed, variance + eps, 1)), 0)

    gaps = advantage(1.0, others + 1) - advantage(0.0, others)
    return jnp.exp(log_choose + log_chance) @ gaps
