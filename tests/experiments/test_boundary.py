"""`boundary`: which signal told of a fall first: ranks within strata, alarms, thresholds of others."""

import math
from dataclasses import replace

import pytest

from experiments.boundary.study import SCHEMES, BoundaryStudy, rank_table, warning_table
from experiments.grid.signals import alarms, early, fall, fell, late, rank
from tests.experiments.synthetic import row

STUDY = BoundaryStudy(schemes=("neither",), intervals=(1, 30), rates=(1e-3, 1e-2))


def by_label(table):
    return {line[0]: [*line[1:]] for line in table.lines}


def rows_of(score, **signals):
    """Rows of the small study: `score` of a cell's place, signals by whether it falls."""
    made = []
    for cell in STUDY.runs([]):
        end = score(cell)
        watched = replace(cell, watch=replace(cell.watch, signals=tuple(signals)))
        values = {name: make(end < 0.3) for name, make in signals.items()}
        made.append(row(watched, end, STUDY.base, **values))
    return made


def rising(beyond, top):
    """A signal of 40 stretches of which those from `beyond` on are at the top."""
    return [1.0] * beyond + [top] * (40 - beyond)


def fast_rates_fall(cell):
    return 0.0 if cell.coordinates["rate"] == 1e-2 else 0.6


def test_the_first_to_warn_is_the_one_whose_alarm_is_earliest():
    rows = rows_of(
        fast_rates_fall,
        entropy=lambda falls: rising(4, 9.0 if falls else 2.0),
        grad_norm=lambda falls: rising(12, 9.0 if falls else 2.0),
    )
    table = by_label(warning_table(rows))
    # Pass@1 is .35, .26, .17, 0 at updates 0, 25, 50, ...: it is seen to have fallen at 50.
    assert table["entropy, nats a token"] == ["100%", "38 (38 to 38)", "100%", "0%"]
    assert table["norm of the gradient"] == ["100%", "18 (18 to 18)", "0%", "0%"]


def test_a_signal_that_only_repeats_the_learning_rate_says_nothing_beyond_it():
    by_seed = {10: 0.0, 11: 0.0, 12: 0.0, 13: 0.6, 14: 0.6}
    rows = rows_of(lambda c: by_seed[c.seed] if c.coordinates["rate"] == 1e-2 else 0.6)
    for each in rows:
        each["steps"]["kl/pi_mu"] = [each["coordinates"]["rate"]] * 40
        each["steps"]["entropy"] = [0.35 - each["final"]["pass@1/sampled"]] * 40
    table = by_label(rank_table(rows))
    assert table["the learning rate itself"] == ["0.86", *["0.50"] * 3]  # 10 of 14 lower, 4 equal
    assert table["KL(π‖μ), nats a token"] == table["the learning rate itself"]
    assert table["entropy, nats a token"] == ["1.00"] * 4
    assert table["the interval itself"][1:] == ["0.50"] * 3


def test_what_fell_at_once_is_no_prediction():
    rows = rows_of(fast_rates_fall, entropy=lambda falls: rising(0, 9.0 if falls else 2.0))
    for each in rows:
        each["evaluations"]["updates"] = [0, 5, 10, 50, 100]
    assert by_label(rank_table(rows))["entropy, nats a token"] == ["–", "–", "–", "–"]


def test_a_rate_is_a_place_here_and_nothing_is_chosen():
    cells = BoundaryStudy().runs([])
    assert {cell.role for cell in cells} == {"report"}
    assert all(cell.setting == {} for cell in cells)
    assert all(c.config.optimizer.learning_rate == c.coordinates["rate"] for c in cells)
    assert {cell.label for cell in cells} == set(SCHEMES)


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
