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
    `width/proposed` the proposal's sqrt(Var r / Var rho), of a band about 1.
    """
    pilot, rest = slice(0, None, 2), slice(1, None, 2)
    with jax.enable_x64():
        rho, values = ratios[pilot], rewards[pilot].astype(np.float64)
        test = ratios[rest], rewards[rest].astype(np.float64)
        probs = np.full(len(rho), 1 / len(rho))
        caps = {
            "plain": float(ratios.max()),
            "scan": float(optimal_clip(jnp.asarray(rho), jnp.asarray(values), n).tau),
            "root": fixed_point(rho, values, probs, n),
            "√n": float(ionides_clip(n)),
            "2": 2.0,
            "best": float(optimal_clip(jnp.asarray(test[0]), jnp.asarray(test[1]), n).tau),
        }
        width = proposed_width(rho, values, probs) if np.ptp(rho) else np.inf
        errors = {f"mse/{name}": _mse(cap, *test, n) for name, cap in caps.items()}
        return {
            **errors,
            "mse/proposed": _banded(width, *test, n),
            "mse/none": _unweighted(*test, n),
            "mse/self-normalised": _first_order(*test, n),
            "tau/scan": caps["scan"],
            "tau/root": caps["root"],
            "tau/best": caps["best"],
            "width/proposed": width,
        }


def _mse(cap: float, ratios: Vector, rewards: Vector, n: int) -> float:
    probs = jnp.full(len(ratios), 1 / len(ratios))
    return float(truncation_error(cap, jnp.asarray(ratios), jnp.asarray(rewards), n, probs).mse)


def _banded(width: float, ratios: Vector, rewards: Vector, n: int) -> float:
    rho, values = jnp.asarray(ratios), jnp.asarray(rewards)
    terms = clipped_terms(rho, values, low=max(0.0, 1 - width), high=1 + width)
    return _of_terms(terms, ratios, rewards, n)


def _unweighted(ratios: Vector, rewards: Vector, n: int) -> float:
    return _of_terms(jnp.asarray(rewards), ratios, rewards, n)


def _of_terms(terms: jax.Array, ratios: Vector, rewards: Vector, n: int) -> float:
    probs = jnp.full(len(ratios), 1 / len(ratios))
    one = exact_moments(terms, probs, jnp.asarray((ratios * rewards).mean()))
    return float(one.bias) ** 2 + float(one.variance) / n


def _first_order(ratios: Vector, rewards: Vector, n: int) -> float:
    """Returns E[rho^2 (r - J)^2] / n, rho over its mean and J the self-normalised mean."""
    one = self_normalized_terms(jnp.asarray(ratios), jnp.asarray(rewards))
    value, scaled = float(one.mean()), ratios / ratios.mean()
    return float((scaled**2 * (rewards - value) ** 2).mean() / n)
