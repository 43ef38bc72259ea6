"""Any objective on samples of an older policy: what the update does, times what came before it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ogrpo.core.checks import check_nonnegative, is_zero, needed
from ogrpo.core.divergences import k3
from ogrpo.core.objectives import Scalar, TokenBatch, WeightFn, drift


def corrected(
    log_probs: jax.Array,
    batch: TokenBatch,
    *,
    objective_fn: Callable[..., jax.Array],
    weight_fn: WeightFn,
    beta: Scalar = 0.0,
) -> jax.Array:
    """w L(pi/pi_k) + beta k3(pi, pi_ref), w = weight_fn(log pi_k - log mu, mask) held constant.

    Source: decoupled PPO (Hilton et al. 2022) for any objective; `decoupled` is this for the clip.
    With the plain weight the gradient at pi = pi_k is that of samples from pi_k wherever the
    objective's is; other weights bring their own bias.

    Args:
      log_probs: [..., T].
      batch: the rest, [..., T]; its behaviour log-probs enter the weight alone.
      objective_fn: `(log_probs, batch) -> [..., T]`, without a KL term of its own.
      weight_fn: as for `token_loss`.
      beta: weight of the KL term, >= 0.

    Returns:
      [..., T], 0 with zero gradient where masked.
    """
    check_nonnegative(beta=beta)
    weight = jax.lax.stop_gradient(weight_fn(drift(batch), batch.mask))
    proximal = needed(batch.proximal_log_probs, "proximal_log_probs")
    loss = weight * objective_fn(log_probs, batch._replace(behavior_log_probs=proximal))
    if not is_zero(beta):
        ref = needed(batch.ref_log_probs, "ref_log_probs")
        loss = loss + beta * k3(*(jnp.where(batch.mask, x, 0) for x in (log_probs, ref)))
    return jnp.where(batch.mask, loss, 0)
