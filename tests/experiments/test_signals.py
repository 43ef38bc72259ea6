"""Signals against falls: ranks within strata, alarms before a fall, thresholds of other runs."""

import math

import pytest

from experiments.grid.signals import alarms, early, fall, fell, late, rank


def run(scores, values, **place):
    updates = [10 * n for n in range(len(scores))]
    steps = [5 * (n + 1) for n in range(len(values))]
    return {
        "evaluations": {"updates": updates, "pass@1/sampled": scores},
        "steps": {"updates": steps, "kl": values},
        "final": {"pass@1/sampled": scores[-1], "updates": steps[-1]},
        **place,
    }


def test_a_score_falls_where_it_is_far_below_the_best_before():
    assert fall(run([0.4, 0.6, 0.43, 0.41, 0.5], [0])) == 30  # .7 of .6 is .42
    assert fall(run([0.4, 0.3, 0.5], [0])) is None
    assert fell(run([0.4, 0.6, 0.41], [0]))
    assert fall(run([0.4, None, 0.2], [0])) == 20


def test_the_first_part_and_the_last_tenth_of_a_signal_skip_what_was_not_measured():
    row = run([0.4], [1.0, None, 3.0, 5.0, 7.0])
    assert early(row, "kl", 0.5, 1) == 2.0
    assert early(row, "kl", 0.01, 1) == 1.0
    assert early(row, "other", 0.5, 1) == -early(row, "other", 0.5, -1) == math.inf
    assert late(row, "kl") == 7.0
    assert math.isnan(late(run([0.4], [1.0, None, None, None]), "kl"))


def test_ranks_are_the_area_under_the_roc_curve():
    assert rank([3.0, 1.0, 2.0], [True, True, False]) == (0.5, 2)
    assert rank([2.0, 2.0, 1.0], [True, False, False]) == (0.75, 2)
    assert math.isnan(rank([1.0, 2.0], [True, True])[0])


def test_what_the_strata_predict_does_not_count():
    rates = [1, 1, 1, 2, 2, 2]
    bad = [False, False, True, True, True, False]
    assert rank(rates, bad)[0] == pytest.approx(6 / 9)  # 4 won and 4 ties of 9
    assert rank(rates, bad, rates) == (0.5, 4)
    within = [1.0, 2.0, 3.0, 5.0, 6.0, 4.0]
    assert rank(within, bad, rates) == (1.0, 4)


def test_alarms_come_from_thresholds_that_a_run_had_no_part_in():
    healthy = [run([0.4, 0.5], [1.0, top], seed=seed) for seed, top in [(1, 2.0), (2, 3.0)]]
    fallen = run([0.4, 0.5, 0.1], [1.0, 2.5, 3.5], seed=1)
    alarmed = alarms([*healthy, fallen], {"kl": 1}, fold=lambda row: row["seed"])
    assert alarmed == [{"kl": None}, {"kl": 10.0}, {"kl": 15.0}]  # limits: 3 for seed 1, 2 for 2
    less = alarms([*healthy, fallen], {"kl": -1}, fold=lambda row: row["seed"])
    assert less == [{"kl": None}] * 3
