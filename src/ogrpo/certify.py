"""Did the last synchronisation improve the policy? A certificate from samples it never saw.

During a server period the engine draws from mu_j alone, which was fixed before the first of
these samples was drawn. So they certify the step from mu_{j-1} to mu_j: sequence ratios, the
exact centre mu_{j-1}/mu_j, the lowest reward as baseline (`ogrpo.core.certificates` says why
each is needed). It speaks of the reward at the sampling temperature, averaged over the prompts.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogrpo.core.certificates import Certificate, improvement_gap, lower_confidence
from ogrpo.core.ratios import exp_ratio, sequence_log_ratio

RATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Fixed before any sample is seen; the confidence is shared among them."""
LOWEST, HIGHEST = 0.0, 1.0


class PeriodVerdict(NamedTuple):
    """A period's certificate and the number of completions behind it."""

    certificate: Certificate
    completions: int


def period_gaps(
    previous_log_probs: Array, behavior_log_probs: Array, mask: Array, rewards: Array
) -> Array:
    """Terms `[N, G]` whose mean is at most J(mu_j) - J(mu_{j-1}).

    The ratio mu_j/mu_j is 1, so that an eps of 1 never binds and costs no tightness.

    Raises:
      ValueError: rewards outside [0, 1].
    """
    seen = np.asarray(rewards)  # a trace knows no values, so they are judged before it
    if not (seen.min() >= LOWEST and seen.max() <= HIGHEST):
        raise ValueError(
            f"rewards span [{seen.min()}, {seen.max()}], and a certificate is for rewards within"
            f" [{LOWEST}, {HIGHEST}]: rescale them, or switch it off with --certificate.delta None"
        )
    return _gaps(previous_log_probs, behavior_log_probs, mask, rewards)


@jax.jit
def _gaps(
    previous_log_probs: Array, behavior_log_probs: Array, mask: Array, rewards: Array
) -> Array:
    log_center = sequence_log_ratio(previous_log_probs, behavior_log_probs, mask)[..., 0]
    return improvement_gap(
        jnp.ones_like(rewards),
        exp_ratio(log_center),
        rewards,
        eps_low=1.0,
        eps_high=1.0,
        reward_low=LOWEST,
        reward_high=HIGHEST,
    )


def certify(gaps: Array, delta: float) -> PeriodVerdict:
    """The lower confidence limit of the improvement, wrong with probability at most `delta`."""
    return PeriodVerdict(_bound_at(delta)(gaps), gaps.size)


@cache
def _bound_at(delta: float) -> Callable[[Array], Certificate]:
    return jax.jit(partial(lower_confidence, floor=HIGHEST - LOWEST, delta=delta, rates=RATES))
