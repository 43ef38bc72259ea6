"""The share that survives a gate: against the exact law of two-valued log-ratios, and the gate."""

import itertools
import math

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


def survival_bound(length, mean, std, cap):
    """Cantelli's lower bound of the chance that the ratios' product is at most `cap`."""
    room, variance = math.log(cap) - length * mean, length * std**2
    return 1 - variance / (variance + room**2) if room > 0 else 0


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
            share = mean_of(length, lambda s, high=high: s <= math.log(high))
            assert survival_bound(length, MEAN, STD, high) <= share + 1e-12
    assert survival_bound(20, MEAN, STD, 3.0) > 0.9
    assert survival_bound(300, 0.01, STD, 3.0) == 0


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
