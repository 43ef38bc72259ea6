"""`boundary`: which signal told of a fall first, and what the learning rate alone would have told."""

from dataclasses import replace

from experiments.boundary.study import SCHEMES, BoundaryStudy, rank_table, warning_table
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
