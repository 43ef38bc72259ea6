"""Hypothesis strategies: small distributions and values of one fixed shape, hence one compilation.

And what it does not draw: `multinomial` has every outcome of many draws, `moments_of` every sample.

Probabilities are ratios of small integers, so mass is bounded away from 0 and examples shrink to
something legible.
"""

import itertools
from functools import cache

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import gammaln

from ogrpo.core import bounds, estimators

Y = 4
EPS = 1e-9


def for_all(*drawn, examples: int = 30, **named):
    """`hypothesis.given` with fewer examples than elsewhere: each is an enumeration."""
    return lambda test: settings(max_examples=examples)(given(*drawn, **named)(test))


def distributions(*shape: int, least: int = 1) -> st.SearchStrategy[np.ndarray]:
    """[shape] probabilities along the last axis; `least=0` allows outcomes of no mass."""
    counts = hnp.arrays(np.int64, shape or Y, elements=st.integers(least, 20))
    counts = counts.filter(lambda c: np.all(c.sum(-1) > 0))
    return counts.map(lambda c: c / c.sum(-1, keepdims=True))


def values(*shape: int, low: int = -16, high: int = 16) -> st.SearchStrategy[np.ndarray]:
    """[shape] multiples of 1/8 in [low / 8, high / 8]."""
    return hnp.arrays(np.int64, shape or Y, elements=st.integers(low, high)).map(lambda v: v / 8)


def varied(size: int = Y, low: int = 0, high: int = 8) -> st.SearchStrategy[np.ndarray]:
    """[size] values that are not all equal."""
    return values(size, low=low, high=high).filter(lambda v: np.ptp(v) > 0)


def binary(size: int = Y) -> st.SearchStrategy[np.ndarray]:
    """[size] rewards of 0 and 1, both present."""
    return varied(size, low=0, high=1).map(lambda v: v * 8)


def eighths(low: int, high: int) -> st.SearchStrategy[float]:
    """Numbers from low / 8 to high / 8."""
    return st.integers(low, high).map(lambda i: i / 8)


widths, caps = eighths(0, 8), eighths(1, 40)


@cache
def counts(n: int, outcomes: int) -> np.ndarray:
    """[C, outcomes] every way that n draws fall on so many outcomes."""
    first = np.array([*itertools.product(range(n + 1), repeat=outcomes - 1)])
    first = first[first.sum(1) <= n]
    return np.column_stack([first, n - first.sum(1)])


def multinomial(n: int, probs) -> tuple[np.ndarray, np.ndarray]:
    """The counts of n draws, [C, outcomes], and the chance of each, [C]."""
    drawn = counts(n, len(probs))
    ways = gammaln(n + 1) - gammaln(drawn + 1).sum(-1)
    return drawn, np.exp(ways + drawn @ np.log(probs))


def moments_of(terms_fn, n: int):
    """Jitted (pi, mu, f) -> the mean of n terms in every sample of mu, its moments about E_pi f."""

    @jax.jit
    def moments(pi, mu, f):
        drawn, ratio = estimators.every_sample(mu, n), bounds.density_ratio(pi, mu)
        means = jax.vmap(lambda y: terms_fn(ratio[y], f[y]))(drawn.outcomes).mean(-1)
        return means, estimators.exact_moments(means, drawn.probs, pi @ f)

    return moments
