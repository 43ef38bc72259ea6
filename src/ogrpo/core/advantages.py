"""Advantages of a group, [..., G] -> [..., G]: what a completion earned beyond its siblings.

All take rewards of the completions of one prompt along the last axis, and need two or more.
"""

import jax
import jax.numpy as jnp

from ogrpo.core.checks import as_floats, check_group, check_nonnegative


def centered(rewards: jax.Array) -> jax.Array:
    """Centred: A_i = r_i - mean(r).

    Source: Dr. GRPO (Liu et al. 2025). Bias: the gradient is (1 - 1/G) times the true one, since
    the baseline contains the sample.

    Args:
      rewards: [..., G], G >= 2.

    Returns:
      [..., G].

    Raises:
      ValueError: G < 2.
    """
    check_group(rewards)
    (values,) = as_floats(rewards=rewards)
    return values - jnp.mean(values, axis=-1, keepdims=True)


def leave_one_out(rewards: jax.Array) -> jax.Array:
    """Leave-one-out: A_i = r_i - mean of the others = G/(G-1) (r_i - mean(r)).

    Source: Kool et al. (2019); RLOO (Ahmadian et al. 2024). Unbiased.
    Args, Returns, Raises: as `centered`.
    """
    size = jnp.shape(rewards)[-1] if jnp.ndim(rewards) else 0
    check_group(rewards)
    return centered(rewards) * (size / (size - 1))


def group_standardized(
    rewards: jax.Array,
    *,
    ddof: int = 0,
    eps_inside: jax.Array | float = 0.0,
    eps_outside: jax.Array | float = 0.0,
) -> jax.Array:
    """Standardised: A_i = (r_i - mean(r)) / (sqrt(Var(r) + eps_inside) + eps_outside).

    Source: GRPO (Shao et al. 2024); off-policy GRPO (Mroueh et al. 2025) has eps inside the root.
    A group of equal rewards gets exactly 0, however small the eps.
    Bias: the expected gradient of a binary reward is c_G(p) grad J, c_G -> 1/sqrt(p (1-p)): prompts
    are weighed by their difficulty.

    Args:
      rewards: [..., G], G >= 2.
      ddof: 0 divides the variance by G (population), 1 by G - 1 (Bessel).
      eps_inside: added to the variance.
      eps_outside: added to the standard deviation.

    Returns:
      [..., G].

    Raises:
      ValueError: G < 2 or an eps is negative.
    """
    check_nonnegative(eps_inside=eps_inside, eps_outside=eps_outside)
    deviations = centered(rewards)
    variance = jnp.sum(deviations**2, axis=-1, keepdims=True) / (deviations.shape[-1] - ddof)
    varied = ~zero_variance_mask(rewards)[..., None]
    scale = jnp.sqrt(jnp.where(varied, variance, 1) + eps_inside) + eps_outside
    return jnp.where(varied, deviations / scale, 0)


def zero_variance_mask(rewards: jax.Array) -> jax.Array:
    """True where all rewards of a group are equal: it teaches nothing. [..., G] -> [...] bool."""
    check_group(rewards)
    return jnp.max(rewards, axis=-1) == jnp.min(rewards, axis=-1)
