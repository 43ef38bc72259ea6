"""Figures of a log under a model, before training: coverage, effective samples, a sure gain."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ogrpo.core.certificates import logged_gain
from ogrpo.core.weights import ess_fraction
from ogrpo.data.replay import Experience
from ogrpo.loop.certify import HEADROOM, HIGHEST, LOWEST, certify, worst_rewards
from ogrpo.loop.logs import ScoreFn, scored

FloatArray = npt.NDArray[np.float64]
DELTA = 0.05
"""Chance that the bound on the gain is wrong."""


class Support(NamedTuple):
    """Figures of a log under a model; NaN where there is nothing that they are of."""

    finite: float
    """Share of the completions that have a finite log-prob under the model."""
    log_prob: float
    """Mean log-prob of a token of these, in nats."""
    ratios: FloatArray
    """log pi/mu of each of these that came with log-probs."""
    mass: float
    """Mean of pi/mu: 1 on average where mu covers pi, less where what counts was not drawn."""
    ess_sequence: float
    """Effective sample size of the ratios, as a share of them."""
    ess_token: float
    """The same of the ratios of tokens."""
    gain: float
    """Lower bound of J(pi) - J(mu) that holds with a chance of 1 - `DELTA`; NaN where rewards lie
    outside [0, 1] or a completion has no ratio."""


def support(groups: Sequence[Experience], score: ScoreFn, *, together: int) -> Support:
    """Compares a model's log-probs of a log with those that it came with.

    Args:
      groups: of the log; NaN log-probs where it has none.
      score: padded groups -> the model's log-probs.
      together: groups that are scored at a time.
    """
    done = [c for one in groups for c in one.group.completions]
    rewards = np.concatenate([one.rewards for one in groups])
    lengths = max(len(x.group.prompt_ids) for x in groups), max(len(c.token_ids) for c in done)
    pairs = zip(scored(groups, score, lengths, together=together), done, strict=True)
    rows = [(pi.astype(np.float64), pi - c.log_probs) for pi, c in pairs]
    finite = np.array([np.isfinite(pi).all() for pi, _ in rows])
    compared = np.array([np.isfinite(ratio).all() for _, ratio in rows])
    tokens = [rows[n][1].astype(np.float64) for n in np.flatnonzero(compared)]
    ratios = np.array([each.sum() for each in tokens])
    return Support(
        finite=_mean(finite),
        log_prob=_mean(
            np.concatenate([np.zeros(0), *(rows[n][0] for n in np.flatnonzero(finite))])
        ),
        ratios=ratios,
        mass=_mean(np.exp(np.minimum(ratios, 700))),
        ess_sequence=effective_share(ratios),
        ess_token=effective_share(np.concatenate([[], *tokens])),
        gain=sure_gain(ratios, rewards) if compared.all() else float("nan"),
    )


def _mean(values: npt.NDArray[Any]) -> float:
    return float(values.mean()) if len(values) else float("nan")


def effective_share(log_weights: FloatArray) -> float:
    """Returns `ess_fraction` of weights exp(log_weights); NaN of none."""
    if not len(log_weights):
        return float("nan")
    return float(ess_fraction(jnp.asarray(log_weights), jnp.ones(len(log_weights), bool)))


def sure_gain(log_ratios: FloatArray, rewards: npt.NDArray[np.float32]) -> float:
    """Returns the lower confidence limit of `logged_gain`; what was not judged counts as worst."""
    rewards = np.asarray(worst_rewards(jnp.asarray(rewards), jnp.asarray(log_ratios)))
    if not len(rewards) or rewards.min() < LOWEST or rewards.max() > HIGHEST:
        return float("nan")
    span = {"reward_low": LOWEST, "reward_high": HIGHEST, "slack": 0.0, "headroom": HEADROOM}
    gains = logged_gain(jnp.asarray(log_ratios), jnp.asarray(rewards), **span)
    return float(certify(np.asarray(gains, np.float64), DELTA).bound)
