"""Estimates of J from stale completions: a cap is found on half of them, tried on the rest."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments.bounds.families import fixed_point, proposed_width
from ogrpo.core.clipping import ionides_clip, optimal_clip, truncation_error
from ogrpo.core.estimators import clipped_terms, exact_moments, self_normalized_terms

Vector = NDArray[np.float64]
Rewards = NDArray[np.floating[Any]]


def value_errors(ratios: Vector, rewards: Rewards, n: int) -> Mapping[str, float]:
    """Returns mean squared errors of means of n on the second half, by rules that saw the first.

    Both halves are taken as the distributions that they are, so that no error is drawn. `tau/root`
    is tau = J + (n - 1) E[(rho - tau)_+ r], `tau/scan` the cap that `optimal_clip` finds,
    `width/proposed` the proposal's sqrt(Var r / Var rho), of a band about 1. The self-normalised
    mean has the first order E[rho^2 (r - J)^2] / n, rho over its mean and J that mean itself.
    """
    pilot, rest = slice(0, None, 2), slice(1, None, 2)
    with jax.enable_x64():
        rho, values = ratios[pilot], rewards[pilot].astype(np.float64)
        probs = np.full(len(rho), 1 / len(rho))
        weights, gains = ratios[rest], rewards[rest].astype(np.float64)
        test = jnp.asarray(weights), jnp.asarray(gains)
        test_probs = jnp.full(len(weights), 1 / len(weights))
        truth = jnp.asarray((weights * gains).mean())

        def error(terms: jax.Array) -> float:
            one = exact_moments(terms, test_probs, truth)
            return float(one.bias) ** 2 + float(one.variance) / n

        caps = {
            "plain": float(ratios.max()),
            "scan": float(optimal_clip(jnp.asarray(rho), jnp.asarray(values), n).tau),
            "root": fixed_point(rho, values, probs, n),
            "√n": float(ionides_clip(n)),
            "2": 2.0,
            "best": float(optimal_clip(*test, n).tau),
        }
        errors = {
            f"mse/{name}": float(truncation_error(cap, *test, n, test_probs).mse)
            for name, cap in caps.items()
        }
        width = proposed_width(rho, values, probs) if np.ptp(rho) else np.inf
        mean, scaled = float(self_normalized_terms(*test).mean()), weights / weights.mean()
        return {
            **errors,
            "mse/proposed": error(clipped_terms(*test, low=max(0.0, 1 - width), high=1 + width)),
            "mse/none": error(test[1]),
            "mse/self-normalised": float((scaled**2 * (gains - mean) ** 2).mean() / n),
            "tau/scan": caps["scan"],
            "tau/root": caps["root"],
            "tau/best": caps["best"],
            "width/proposed": width,
        }
