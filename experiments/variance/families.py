"""Small families where every figure is a finite sum: what formulas say, and what draws do.

A family is a sampler and exponential tilts of it, with rewards that the tilt favours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from ogrpo.core import bounds
from ogrpo.core.clipping import optimal_clip
from ogrpo.core.estimators import clipped_terms, exact_moments, importance_terms, truncated_terms

Vector = NDArray[np.float64]
Draws = NDArray[np.int64]
Several = Annotated[int, Ge(2)]
CAP, BAND, KEPT = 2.0, (0.8, 1.2), (0.5, 2.0)


@dataclass(frozen=True)
class Family:
    """One sampler, and how far its tilts go."""

    seed: int = 0
    """Seed of the sampler, the direction and the rewards."""
    answers: Several = 32
    tilts: tuple[float, ...] = (0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.6, 2.0, 2.5)
    sizes: tuple[int, ...] = (4, 16, 64)
    """Samples that an estimate averages."""
    replicates: Several = 20_000
    """Estimates drawn for each figure."""


def made(family: Family) -> tuple[Vector, Vector, Vector]:
    """Draws the sampler, the tilts' direction, and 0/1 rewards that lean towards it, [Y] each."""
    rng = np.random.default_rng([family.seed, 4])
    mu = rng.dirichlet(np.ones(family.answers))
    along = rng.normal(size=family.answers)
    rewards = (along + rng.normal(size=family.answers) > 0.5).astype(np.float64)
    rewards[np.argmax(along)] = 1.0  # so that a few answers are right
    return mu, along, rewards


def measure(cell: Cell, _: object) -> Mapping[str, Any]:
    """Returns every estimator's error at every tilt and size, by the formula and of draws."""
    family: Family = cell.config
    mu, along, rewards = made(family)
    rng, pairs = np.random.default_rng([family.seed, 5]), []
    with jax.enable_x64():
        for tilt in family.tilts:
            weights = mu * np.exp(tilt * along)
            pi = weights / weights.sum()
            ratio, both = pi / mu, (jnp.asarray(pi), jnp.asarray(mu))
            estimators, ess = {}, 1.0
            for n in family.sizes:
                draws = rng.choice(family.answers, (family.replicates, n), p=mu)
                estimators[str(n)] = errors_of(ratio, rewards, mu, draws)
                drawn = ratio[draws]
                ess = float((drawn.sum(1) ** 2 / (drawn**2).sum(1) / n).mean())  # Kish's, a share
            pairs.append(
                {
                    "tilt": tilt,
                    "kl": float(bounds.kl_divergence(*both)),
                    "chi_square": float(bounds.chi_square_divergence(*both)),
                    "ess": ess,
                    "estimators": estimators,
                }
            )
    return {"pairs": rounded(pairs)}


def terms_of(ratio: Vector, rewards: Vector, mu: Vector, n: int) -> dict[str, Vector]:
    """Returns a term for each answer, for the estimators that are means of terms, [Y] each."""
    rho, values, probs = (jnp.asarray(x) for x in (ratio, rewards, mu))
    (low, high), (least, most) = KEPT, BAND
    kept = jnp.where((rho >= low) & (rho <= high), rho, 0)
    tau = optimal_clip(rho, values, n, probs).tau
    terms = {
        "none": values,
        "plain": importance_terms(rho, values),
        f"truncated at {CAP:g}": truncated_terms(rho, values, cap=CAP),
        "truncated at √n": truncated_terms(rho, values, cap=np.sqrt(n)),
        "truncated at τ*": truncated_terms(rho, values, cap=tau),
        f"clipped to {least:g}–{most:g}": clipped_terms(rho, values, low=least, high=most),
        f"masked to {low:g}–{high:g}": importance_terms(kept, values),
    }
    return {name: np.asarray(term) for name, term in terms.items()}


def errors_of(
    ratio: Vector, rewards: Vector, mu: Vector, draws: Draws
) -> dict[str, dict[str, float]]:
    """Returns mean squared errors of means of n: by the formulas, and of draws [R, n] of mu.

    The formula is bias squared and variance over n; for the self-normalised mean it is the first
    order, E_mu[rho^2 (f - J)^2] / n. `bound` is proved, `mse/error` a standard error.
    """
    n, truth = draws.shape[1], mu @ (ratio * rewards)

    def measured(estimates: Vector) -> dict[str, float]:
        squares = (estimates - truth) ** 2
        error = squares.std(ddof=1) / np.sqrt(len(squares))
        return {"mse/measured": float(squares.mean()), "mse/error": float(error)}

    spread = float(mu @ (ratio**2 * (rewards - truth) ** 2))
    chi_square = float(mu @ ratio**2) - 1
    proved = {"plain": {"bound": 1 / float(bounds.effective_samples(n, chi_square))}}
    errors: dict[str, dict[str, float]] = {}
    for name, terms in terms_of(ratio, rewards, mu, n).items():
        one = exact_moments(jnp.asarray(terms), jnp.asarray(mu), jnp.asarray(truth))
        bias, variance = float(one.bias) ** 2, float(one.variance) / n
        formula = {"bias2": bias, "variance": variance, "mse": bias + variance}
        drawn = measured(terms[draws].mean(axis=1))
        errors[name] = {**formula, **proved.get(name, {}), **drawn}
    weights, bound = ratio[draws], bounds.self_normalized_mse_bound(spread, 1.0, chi_square, n)
    errors["self-normalised"] = {
        "bias2": 0.0,
        "variance": spread / n,
        "mse": spread / n,
        "bound": float(bound),
        **measured((weights * rewards[draws]).sum(1) / weights.sum(1)),
    }
    return errors
