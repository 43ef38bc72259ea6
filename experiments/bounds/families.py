"""Enumerable pairs of policies: how the error of importance sampling grows, and where to clip it.

Everything is float64 and exact; the seed chooses the directions, nothing is estimated.
"""

from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.core import bounds
from ogrpo.core.clipping import (
    high_probability_clip,
    ionides_clip,
    optimal_clip,
    truncation_error,
)
from ogrpo.core.estimators import clipped_terms, exact_moments, importance_terms

Record = dict[str, Any]
Vector = NDArray[np.float64]
ANSWERS = 64
TILTS = np.geomspace(0.02, 4, 24)
SAMPLE_SIZES = (4, 16, 64, 256)
CAPS = np.geomspace(0.05, 60, 400)


def policy_pairs(seed: int, directions: int = 6) -> Iterator[tuple[str, Vector, Vector]]:
    """Yields (kind, pi, mu): tilts along random directions, and a rare answer made likely."""
    rng = np.random.default_rng([seed, 3])
    for _ in range(directions):
        mu, along = rng.dirichlet(np.ones(ANSWERS)), rng.normal(size=ANSWERS)
        for tilt in TILTS:
            weights = mu * np.exp(tilt * along)
            yield "tilt", weights / weights.sum(), mu
    for delta in (0.01, 0.1, 0.5):
        for p in np.geomspace(0.03, 0.5, 12):
            q = p * np.exp(-delta / p)
            yield f"rare, KL ≤ {delta:g}", np.array([p, 1 - p]), np.array([q, 1 - q])


def variance_record(kind: str, pi: Vector, mu: Vector) -> Record:
    """Variance of one importance-sampling term of the reward 1{y in the first half}."""
    rewards = jnp.asarray(np.arange(pi.size) < pi.size // 2, float)
    policy, behavior = jnp.asarray(pi), jnp.asarray(mu)
    ratio = bounds.density_ratio(policy, behavior)
    moments = exact_moments(importance_terms(ratio, rewards), behavior, policy @ rewards)
    chi_square = bounds.chi_square_divergence(policy, behavior)
    kl = float(bounds.kl_divergence(policy, behavior))
    return {
        "part": "variance",
        "kind": kind,
        "kl": kl,
        "expm1_kl": float(np.expm1(kl)),
        "chi_square": float(chi_square),
        "max_ratio": float(jnp.max(ratio)),
        "bias": float(moments.bias),
        "variance": float(moments.variance),
        "effective_share": float(bounds.effective_samples(1.0, chi_square)),
        "kappa": float(bounds.chi_square_per_kl(jnp.max(ratio))),
    }


def heavy_pair(spread: float = 1.5, correlation: float = 0.7) -> tuple[Vector, Vector, Vector]:
    """(ratios, rewards, mu): log-ratios at normal quantiles, answers that pi favours right more."""
    places = (np.arange(ANSWERS) + 0.5) / ANSWERS
    normal = np.array([NormalDist().inv_cdf(place) for place in places])
    raw = np.exp(spread * normal)
    noise = np.random.default_rng(7).permutation(normal)
    score = correlation * normal + np.sqrt(1 - correlation**2) * noise
    return raw / raw.mean(), (score > 0.8).astype(np.float64), np.full(ANSWERS, 1 / ANSWERS)


def fixed_point(ratios: Vector, rewards: Vector, mu: Vector, n: int) -> float:
    """The root of tau = J + (n - 1) E_mu[(rho - tau)_+ r], by bisection: the gap only grows."""
    low, high = 0.0, float(n * ratios.max())
    for _ in range(200):
        middle = (low + high) / 2
        excess = mu @ (np.maximum(ratios - middle, 0) * rewards)
        below = middle < mu @ (ratios * rewards) + (n - 1) * excess
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def proposed_width(ratios: Vector, rewards: Vector, mu: Vector) -> float:
    """sqrt(Var r / Var rho), the proposal's (refuted) half width of a band about 1."""
    values = (rewards, ratios)
    variance, spread = (float(mu @ (x - mu @ x) ** 2) for x in values)
    return float(np.sqrt(variance / spread))


def clip_record(n: int, delta: float) -> Record:
    """MSE of the clipped mean of n terms by cap, and at every rule for choosing it."""
    ratios, rewards, mu = (jnp.asarray(x) for x in heavy_pair())

    @jax.jit
    def errors(caps: jax.Array) -> jax.Array:
        return jax.vmap(lambda cap: truncation_error(cap, ratios, rewards, n, mu).mse)(caps)

    def mse(cap: float) -> float:
        return float(errors(jnp.array([cap]))[0])

    best, width = optimal_clip(ratios, rewards, n, mu), proposed_width(*heavy_pair())
    banded = clipped_terms(ratios, rewards, low=max(0.0, 1 - width), high=1 + width)
    one = exact_moments(banded, mu, mu @ (ratios * rewards))
    moment = float(mu @ (ratios**2 * rewards))
    rules = {
        "optimal": float(best.tau),
        "sqrt_n": float(ionides_clip(n)),
        "high_probability": float(high_probability_clip(n, moment, delta)),
    }
    return {
        "part": "clip",
        "n": n,
        "caps": CAPS.tolist(),
        "mse": np.asarray(errors(jnp.asarray(CAPS))).tolist(),
        "mse/unclipped": mse(float(jnp.max(ratios))),
        "fixed_point": fixed_point(*heavy_pair(), n),
        **{f"tau/{name}": cap for name, cap in rules.items()},
        **{f"mse/{name}": mse(cap) for name, cap in rules.items()},
        "tau/proposed": 1 + width,
        "mse/proposed": float(one.variance / n + one.bias**2),
    }
