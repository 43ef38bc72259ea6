"""Guard rails speak of what they are for, once, and of nothing else."""

from typing import Any

import pytest

from ogrpo.report.guards import NO_SUCCESS, WINDOW, Guards


def evaluated(step, value, half=0.05, key="pass@1/sampled", **more: Any):
    bounds = {f"{key}/low": value - half, f"{key}/high": value + half}
    by = "math" if key.startswith("pass") else None
    return {"step": step, key: value, **bounds, "heldout/by": by, **more}


def trained(count, **figures):
    return [{"step": n, "completions": 8 * n, **figures} for n in range(1, count + 1)]


def at_one_and_eight(*shares):
    """Evaluations with Pass@1 and Pass@8."""
    pairs = enumerate(shares)
    return [evaluated(n, a) | evaluated(n, b, key="pass@8/sampled") for n, (a, b) in pairs]


QUIET = {"reward": 0.4, "reward/math": 0.4, "kl/pi_mu": 0.02, "ratio/tail": 1.2}
FAILING = {**QUIET, "reward/math": 0.0}
TABLE = [
    ("a sound run", [evaluated(0, 0.3), *trained(50, **QUIET), evaluated(50, 0.7)], []),
    ("noise", [evaluated(0, 0.3), evaluated(1, 0.7), evaluated(2, 0.61)], []),
    ("a fall", [evaluated(0, 0.3), evaluated(1, 0.7), evaluated(2, 0.55)], ["fall"]),
    (
        "one fall is told once, another again",
        [evaluated(n, x) for n, x in enumerate((0.3, 0.7, 0.5, 0.4, 0.7, 0.2))],
        ["fall", "fall"],
    ),
    (
        "mean rewards fall, too",
        [evaluated(n, x, key="heldout/reward/sampled") for n, x in enumerate((3.0, 2.0))],
        ["fall"],
    ),
    ("Pass@8 falls while Pass@1 rises", at_one_and_eight((0.3, 0.9), (0.5, 0.75)), []),
    ("Pass@8 falls, and Pass@1 stays", at_one_and_eight((0.3, 0.9), (0.33, 0.75)), ["fall"]),
    ("unparsable", [evaluated(0, 0.0) | {"heldout/unparsable": 1.0}], ["start"]),
    ("cut off", [evaluated(0, 0.0) | {"heldout/truncated": 0.97}], ["start"]),
    ("unjudged", [evaluated(0, 0.0) | {"heldout/unjudged": 0.96}], ["start"]),
    ("of one reward", [evaluated(0, 0.0) | {"heldout/equal": 0.99}], ["start"]),
    ("nearly", [evaluated(0, 0.2) | {"heldout/equal": 0.94, "heldout/unparsable": 0.9}], []),
    ("later", [evaluated(0, 0.9), evaluated(9, 0.99) | {"heldout/equal": 0.99}], []),
    (
        "of one reward, of one problem: bounds are not known, and later is not the start",
        [
            {"step": n, "heldout/reward/sampled": 2.0, "heldout/equal": float(n > 0)}
            for n in (0, 1, 2)
        ],
        [],
    ),
    ("no success", [evaluated(0, 0.3), *trained(NO_SUCCESS + 5, **FAILING)], ["no success"]),
    (
        "nothing collected is no failure",
        [evaluated(0, 0.3), *trained(NO_SUCCESS + 5, reward=None, **{"reward/math": 0.0})],
        [],
    ),
    (
        "equal rewards, where the reward that decides judges held-out answers alone",
        [evaluated(0, 0.3), *trained(NO_SUCCESS, reward=0.0, zero_variance=1.0)],
        ["no success"],
    ),
    ("no reward decides", trained(NO_SUCCESS, reward=0.5, zero_variance=1.0), ["no success"]),
    ("a high tail", trained(WINDOW + 5, **{**QUIET, "ratio/tail": 4.0}), ["signal"]),
    ("a spike", [*trained(1, **{"kl/pi_mu": 5.0}), *trained(20, **QUIET)], []),
    ("a cut sampler, once", trained(3, **{**QUIET, "ratio/bias": -0.1}), ["signal"]),
    ("a high divergence", trained(WINDOW, **{"kl/pi_mu": 2.5}), ["signal"]),
]


@pytest.mark.parametrize(("records", "kinds"), [x[1:] for x in TABLE], ids=[x[0] for x in TABLE])
def test_a_guard_rail_speaks_of_what_it_is_for(records, kinds):
    guards = Guards(records).messages
    assert [each.kind for each in guards] == kinds
    assert all("--" in each.text or "Mend" in each.text for each in guards)  # each names a remedy
