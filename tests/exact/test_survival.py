"""The share that survives a gate: against the exact law of two-valued log-ratios, and the gate."""

import itertools
import math
from statistics import NormalDist

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import gates

UP, DOWN, CHANCE = 0.05, -0.03, 0.35
"""D is UP with this chance, else DOWN: asymmetric."""
MEAN = CHANCE * UP + (1 - CHANCE) * DOWN
STD = (UP - DOWN) * math.sqrt(CHANCE * (1 - CHANCE))


def mean_of(length, fn):
    """The mean of a function of the sum of `length` log-ratios, by enumeration."""
    sums = [(k, k * UP + (length - k) * DOWN) for k in range(length + 1)]
    chances = [math.comb(length, k) * CHANCE**k * (1 - CHANCE) ** (length - k) for k, _ in sums]
    return sum(p * fn(total) for p, (_, total) in zip(chances, sums, strict=True))


@pytest.mark.parametrize("length", [20, 100, 300])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.5), (0.4, 3.0), (0.9, math.inf)])
def test_the_share_is_that_of_every_outcome_but_for_the_normal_law(length, low, high):
    """And exactly that law's. Berry and Esseen: within .5 E|D - m|^3 / (s^3 sqrt L) at each end."""
    off = CHANCE * abs(UP - MEAN) ** 3 + (1 - CHANCE) * abs(DOWN - MEAN) ** 3
    close = 0.5 * off / (STD**3 * math.sqrt(length)) * 2
    least = math.log(low) if low else -math.inf
    lengths = jnp.array([float(length)])
    share = gates.sequence_survival(lengths, MEAN, STD, low=low, high=high)[0]
    assert abs(share - mean_of(length, lambda s: least <= s <= math.log(high))) < close
    normal = NormalDist(length * MEAN, STD * math.sqrt(length))
    law = normal.cdf(math.log(high)) - normal.cdf(least)
    np.testing.assert_allclose(share, law, rtol=1e-9, atol=1e-12)


def test_the_bound_holds_for_every_outcome_and_is_not_empty():
    """Cantelli's, with the mean and the variance of a sum.

    Theorems Survival.cantelli, Survival.sum_mean, Survival.sum_variance,
    Survival.sequence_survival.
    """
    for length in (1, 5, 20, 100, 300):
        mean = mean_of(length, float)
        variance = mean_of(length, lambda s, mean=mean: (s - mean) ** 2)
        np.testing.assert_allclose([mean, variance], [length * MEAN, length * STD**2])
        for high in (1.01, 1.5, 3.0):
            least = float(gates.survival_bound(jnp.array([float(length)]), MEAN, STD, high=high)[0])
            assert least <= mean_of(length, lambda s, high=high: s <= math.log(high)) + 1e-6
    assert float(gates.survival_bound(jnp.array([20.0]), MEAN, STD, high=3.0)[0]) > 0.9
    assert float(gates.survival_bound(jnp.array([300.0]), 0.01, STD, high=3.0)[0]) == 0


def test_the_gate_itself_keeps_that_share_of_every_sequence():
    """Each of 8 log-ratios, and anything after its end."""
    length, low, high = 8, 0.9, 1.2
    ups = np.array([*itertools.product([False, True], repeat=length)])
    delta = np.column_stack([np.where(ups, UP, DOWN), np.full(len(ups), 9.0)])
    mask = np.broadcast_to(np.arange(length + 1) < length, delta.shape)
    arrays = map(jnp.asarray, (delta, delta, mask))
    kept = np.asarray(gates.sequence_mask(*arrays, low=low, high=high))[:, :length]
    np.testing.assert_array_equal(kept, kept[:, :1].repeat(length, 1))
    share = np.where(ups, CHANCE, 1 - CHANCE).prod(-1) @ kept[:, 0]
    assert share == pytest.approx(mean_of(length, lambda s: math.log(low) <= s <= math.log(high)))
    assert 0.05 < share < 0.95
