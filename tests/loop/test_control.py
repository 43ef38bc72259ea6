"""The signals that end the use of old data."""

import math
from dataclasses import replace

import pytest

from ogrpo.config.schedule import ReuseLimits
from ogrpo.core.bounds import stale_samples_help
from ogrpo.loop.learn import UseVerdict, judge_data, next_clip_scale

FRESH = {"kl/pi_mu": 0.0, "ess": 1.0, "ratio/tail": 1.0, "chi_square": 0.0}
LIMITS = ReuseLimits(kl=0.02, ess=0.1, tail=1.0)


@pytest.mark.parametrize(
    ("name", "value", "signal", "use"),
    [
        ("kl/pi_mu", 0.03, "kl", 1.5),
        ("ess", 0.95, "ess", 0.5),
        ("ratio/tail", math.e**2, "tail", 2.0),
        ("chi_square", 0.7, "staleness", 0.7),
        ("kl/pi_mu", math.nan, "kl", math.inf),
    ],
)
def test_each_signal_is_measured_against_its_own_limit(name, value, signal, use):
    verdict = judge_data({**FRESH, name: value}, LIMITS, stale_per_fresh=0.0)
    assert verdict.signal == signal
    assert verdict.use == pytest.approx(use)


def test_staleness_counts_where_it_is_to():
    stale, without = {**FRESH, "chi_square": 2.0}, replace(LIMITS, staleness=False)
    assert judge_data(stale, LIMITS, stale_per_fresh=0.0).signal == "staleness"
    assert judge_data(stale, without, stale_per_fresh=0.0).use == 0


def test_stale_samples_may_be_the_staler_the_more_there_are():
    """sigma_1^2/sigma_0^2 < 2 + m/N of `ogrpo.core.bounds.stale_samples_help`, at its boundary."""
    for chi_square, stale in [(0.9, 0.0), (1.1, 0.0), (2.9, 2.0), (3.1, 2.0)]:
        verdict = judge_data({**FRESH, "chi_square": chi_square}, LIMITS, stale_per_fresh=stale)
        assert (verdict.use < 1) == bool(stale_samples_help(1.0, 1 + chi_square, 1.0, stale))


def test_the_clip_narrows_when_data_are_used_up_and_widens_otherwise_within_its_range():
    limits = ReuseLimits(clip_step=0.1, clip_range=1.15)
    assert next_clip_scale(1.0, UseVerdict("kl", 1.0), limits) == pytest.approx(math.exp(-0.1))
    assert next_clip_scale(1.0, UseVerdict("kl", 0.5), limits) == pytest.approx(math.exp(0.1))
    assert next_clip_scale(1.1, UseVerdict("kl", 0.5), limits) == 1.15
    assert next_clip_scale(0.9, UseVerdict("kl", 2.0), limits) == pytest.approx(1 / 1.15)
