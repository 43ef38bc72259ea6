"""Verdicts follow from intervals, Holm's correction and the smallest effect of interest alone."""

import pytest

from experiments.grid.tables import Table, claims_table, corrected, summary
from experiments.grid.variants import Variant
from experiments.grid.verdicts import Difference, Verdict, claim, holm, mean_and_interval, surviving
from ogrpo.config.train import TrainConfig
from tests.experiments.synthetic import row

UP = Difference((0.1, 0.12, 0.11, 0.09, 0.1))
NOISE = Difference((0.4, -0.3, 0.1, -0.2, 0.3))


def spread(mean, half):
    """Five differences whose 95 % t-interval is mean ± half."""
    step = half / 2.776445 * 5**0.5 / 2.5**0.5
    return Difference(tuple(mean + step * n for n in (-2, -1, 0, 1, 2)))


def test_an_interval_is_students_and_a_p_value_that_of_the_paired_test():
    mean, half = mean_and_interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (mean, half) == (3.0, pytest.approx(2.776445 * (2.5 / 5) ** 0.5))
    assert Difference((1.0, 2.0, 3.0, 4.0, 5.0)).p_value == pytest.approx(0.013236, rel=1e-3)
    assert spread(0.2, 0.2).p_value == pytest.approx(0.05, rel=1e-3)
    assert (Difference((0.1,)).p_value, Difference(()).p_value) == (1.0, 1.0)
    assert (Difference((0.0, 0.0)).p_value, Difference((0.1, 0.1)).p_value) == (1.0, 0.0)
    assert Difference((0.24999999999999997, *[0.25] * 4)).p_value == 0.0
    assert (Difference((0.25,)).text(), Difference(()).text()) == ("+0.250", "–")
    assert spread(0.2, 0.1).text(survives=True) == "+0.200 ± 0.100 *"


def test_holms_p_values_are_those_of_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


def test_a_difference_survives_among_few_and_not_among_many_and_equal_ones_count_once():
    assert surviving([UP, NOISE]) == {UP}
    edge = spread(0.2, 0.19)
    others = [spread(0.01 * n, 1.0) for n in range(1, 9)]
    assert surviving([edge]) == {edge}
    assert surviving([edge, *others]) == set()
    assert surviving([edge] * 9) == {edge}
    assert surviving([edge, *[Difference((0.0, 0.0))] * 9]) == {edge}


@pytest.mark.parametrize(
    ("relation", "mean", "half", "survives", "word"),
    [
        ("above", 0.1, 0.04, True, "reproduced"),
        ("above", 0.1, 0.04, False, "undecided"),
        ("above", 0.04, 0.02, True, "undecided"),
        ("above", 0.02, 0.02, True, "not seen"),
        ("above", -0.1, 0.04, True, "contradicted"),
        ("below", 0.1, 0.04, True, "contradicted"),
        ("not below", -0.01, 0.03, False, "reproduced"),
        ("not below", -0.1, 0.03, True, "contradicted"),
        ("level", 0.03, 0.03, False, "undecided"),
        ("level", 0.1, 0.03, True, "contradicted"),
    ],
)
def test_a_verdict_is_that_of_the_rule(relation, mean, half, survives, word):
    assert Verdict(spread(mean, half), relation).word(survives=survives) == word


def test_all_tables_of_a_page_are_corrected_together():
    edge = spread(0.2, 0.19)
    lines = [["one", edge, Verdict(edge, "above")]]
    (alone,) = corrected([Table("a", ("x", "y", "z"), lines)])
    assert alone.lines == [["one", "+0.200 ± 0.190 *", "reproduced"]]
    many = Table("b", ("n",), [[spread(0.01 * n, 1.0)] for n in range(1, 9)])
    among, _ = corrected([Table("a", ("x", "y", "z"), lines), many])
    assert among.lines == [["one", "+0.200 ± 0.190", "undecided"]]


def rows(label, scores, rate, tuning):
    variant = Variant(label, TrainConfig()).with_rate(rate)
    final = [row(variant.cell("report", 10 + n), score) for n, score in enumerate(scores)]
    trials = [
        row(Variant(label, TrainConfig()).with_rate(other).cell("tuning", 20), score)
        for other, score in tuning.items()
    ]
    return [*final, *trials]


def test_a_row_says_where_its_rate_is_at_the_edge_of_those_tried_and_by_how_much_it_led():
    made = [
        *rows("good", (0.8, 0.9, 0.85), 1e-3, {1e-4: 0.5, 3e-4: 0.6, 1e-3: 0.7}),
        *rows("poor", (0.5, 0.61, 0.55), 3e-4, {1e-4: 0.5, 3e-4: 0.6, 1e-3: 0.594}),
        *rows("alone", (0.1, 0.2, 0.15), 1e-4, {1e-4: 0.5}),
    ]
    settings = {line[0]: line[1] for line in summary(made).lines}
    assert settings == {
        "good": "rate 0.001 (largest tried)",
        "poor": "rate 0.0003",
        "alone": "rate 0.0001 (only one tried)",
    }
    pairs = {"good is better": "good", "absent": "none"}
    table = claims_table([claim(k, one, "above", "poor") for k, one in pairs.items()], made)
    (line,) = corrected([table])[0].lines
    assert (line[0], line[2]) == ("good is better", "reproduced")
    assert line[3] == "rate 0.001 (largest tried), by 0.100; rate 0.0003, by 0.006"
