"""The share that survives a gate: against the exact law of two-valued log-ratios, and the gates."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.core import gates, survival
from ogrpo.core.algorithms import GATES, gate_survival
from ogrpo.core.survival import Spread

UP, DOWN, CHANCE = 0.05, -0.03, 0.35
"""D is UP with this chance, else DOWN: asymmetric."""
MEAN = CHANCE * UP + (1 - CHANCE) * DOWN
STD = (UP - DOWN) * math.sqrt(CHANCE * (1 - CHANCE))
LAW = Spread(jnp.array(MEAN), jnp.array(STD))


def exact(length, inside):
    """The chance that the sum of `length` log-ratios satisfies `inside`, by enumeration."""
    ups = np.arange(length + 1)
    chances = [math.comb(length, int(k)) * CHANCE**k * (1 - CHANCE) ** (length - k) for k in ups]
    return sum(p for k, p in zip(ups, chances, strict=True) if inside(k * UP + (length - k) * DOWN))


def sum_moment(length, power):
    """The mean of a power of the sum of `length` log-ratios, by enumeration."""
    ups = range(length + 1)
    chances = [math.comb(length, k) * CHANCE**k * (1 - CHANCE) ** (length - k) for k in ups]
    return sum(
        p * (k * UP + (length - k) * DOWN) ** power for k, p in zip(ups, chances, strict=True)
    )


@pytest.mark.parametrize("length", [20, 100, 300])
@pytest.mark.parametrize(("low", "high"), [(0.0, 1.5), (0.4, 3.0), (0.9, math.inf)])
def test_the_share_is_that_of_every_outcome_but_for_the_normal_law(length, low, high):
    """Berry and Esseen: within .5 E|D - m|^3 / (s^3 sqrt L) at each end."""
    off = CHANCE * abs(UP - MEAN) ** 3 + (1 - CHANCE) * abs(DOWN - MEAN) ** 3
    close = 0.5 * off / (STD**3 * math.sqrt(length)) * 2
    least = math.log(low) if low else -math.inf
    lengths = jnp.array([float(length)])
    share = survival.sequence_survival(lengths, LAW, low=low, high=high)[0]
    assert abs(share - exact(length, lambda s: least <= s <= math.log(high))) < close
    bounds = {"low": low ** (1 / length), "high": high ** (1 / length)}
    np.testing.assert_allclose(
        survival.geometric_survival(lengths, LAW, **bounds)[0], share, atol=2e-4
    )


def test_the_bound_holds_for_every_outcome_and_is_not_empty():
    """Cantelli's, with the mean and the variance of a sum.

    Theorems Survival.cantelli, Survival.sum_mean, Survival.sum_variance,
    Survival.sequence_survival.
    """
    for length in (1, 5, 20, 100, 300):
        moments = [sum_moment(length, power) for power in (1, 2)]
        variance = moments[1] - moments[0] ** 2
        np.testing.assert_allclose([moments[0], variance], [length * MEAN, length * STD**2])
        for high in (1.01, 1.5, 3.0):
            least = float(survival.survival_bound(jnp.array([float(length)]), LAW, high=high)[0])
            assert least <= exact(length, lambda s, high=high: s <= math.log(high)) + 1e-6
    assert float(survival.survival_bound(jnp.array([20.0]), LAW, high=3.0)[0]) > 0.9
    assert (
        float(
            survival.survival_bound(jnp.array([300.0]), Spread(jnp.array(0.01), LAW.std), high=3.0)[
                0
            ]
        )
        == 0
    )


def test_the_gates_themselves_keep_the_share_that_is_told():
    """4,000 completions of ragged lengths, by the gates that a loss applies; five sigma."""
    rng, n = np.random.default_rng(4), 4000
    lengths = rng.integers(5, 60, n)
    mask = np.arange(60) < lengths[:, None]
    delta = jnp.asarray(rng.normal(-0.01, 0.15, mask.shape))
    mask, down = jnp.asarray(mask), -jnp.ones(mask.shape)
    spread = survival.spread_of(delta, mask)
    np.testing.assert_allclose([*spread], [-0.01, 0.15], rtol=0.05)
    cases = [
        (gates.token_mask, survival.token_survival, {"low": 0.8, "high": 1.3}),
        (gates.sequence_mask, survival.sequence_survival, {"low": 0.3, "high": 2.0}),
        (gates.geometric_mask, survival.geometric_survival, {"low": 0.97, "high": 1.01}),
        (gates.off_policy_sequence_mask, survival.negatives_survival, {"delta": 0.03}),
        (gates.k3_mask, survival.k3_survival, {"limit": 0.011}),
    ]
    assert [gate for gate, _, _ in cases] == [GATES[name].fn for name in survival.SURVIVALS]
    assert [share for _, share, _ in cases] == [*survival.SURVIVALS.values()]
    for gate, share, bounds in cases:
        kept = np.asarray(gate(delta, down, mask, **bounds))[np.asarray(mask)]
        expected = share(jnp.asarray(lengths, float), spread, **bounds)
        weight = lengths / lengths.sum()  # the share of tokens
        error = math.sqrt((weight**2).sum() * 0.25)
        assert abs(kept.mean() - (weight * np.asarray(expected)).sum()) < 5 * error
        assert 0.05 < kept.mean() < 0.95


def test_gates_are_predicted_by_their_knobs_and_named_with_them():
    """The mean over lengths, and as published where a knob is lacking."""
    lengths, names = jnp.array([20.0, 300.0]), ["sequence", "k3"]
    shares = gate_survival(lengths, LAW, {"sequence_high": 1.5}, names)
    expected = survival.sequence_survival(lengths, LAW, low=0.0, high=1.5).mean()
    label, other = shares
    assert label == "gate sequence (sequence_low 0, sequence_high 1.5)"
    assert other == "gate k3 (k3_limit 0.01)"
    np.testing.assert_allclose(shares[label], expected, rtol=1e-6)


def test_a_kl_alone_gives_the_spread_of_normal_ratios_of_mean_one():
    """mean rho = 1, and KL(mu||pi) = -mean D is the kl."""
    spread = survival.spread_of_kl(0.02)
    np.testing.assert_allclose(jnp.exp(spread.mean + spread.std**2 / 2), 1, rtol=1e-6)
    np.testing.assert_allclose(-spread.mean, 0.02, rtol=1e-6)
