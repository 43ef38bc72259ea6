"""`step-rewards`: methods differ in what their advantages read, and lines are counted as judged."""

import pytest

from experiments.grid.cell import changes
from experiments.step_rewards.study import METHODS, REFERENCES, StepRewardsStudy, judged, line_table
from ogrpo.config.method import algorithm
from ogrpo.core.algorithms import STEPS

TWO = "7 + 5 = 12 ; 12 - 3 = 9 #### 9"
ANSWERS = {
    TWO: (True, 1.0),
    "7 + 5 = 12 ; 12 - 3 = 8 #### 8": (False, 0.5),  # a slip in the second line
    "7 - 5 = 2 ; 2 + 7 = 9 #### 9": (True, 0.5),  # right by chance
    "7 + 2 = 9 #### 9": (True, 0.0),
    "7 + 5 = 11 ; 11 - 3 = 8 #### 8": (False, 0.0),
}


def test_answers_are_judged_by_outcome_and_by_line():
    verdicts = judged(TWO, [*ANSWERS])
    pairs = zip(verdicts.right.tolist(), verdicts.shares.tolist(), strict=True)
    assert (verdicts.lines, [*pairs]) == (2, [*ANSWERS.values()])


def test_the_table_counts_where_lines_and_outcome_differ():
    right, wrong, lucky, _, lost = ANSWERS
    groups = [
        judged(TWO, [right, lucky, right, right]),  # equal outcomes, lines differ
        judged(TWO, [lost, lost, lost, lost]),  # equal in both
        judged(TWO, [right, wrong, lost, lost]),
        judged("7 + 5 = 12 #### 12", ["7 + 5 = 12 #### 12"] * 4),
    ]
    one, two = line_table(groups).lines
    assert one == ["1", "1", "1.00", "1.00", "–", "0.00", "1.00", "0.00"]
    assert two == ["2", "3", "0.42", "0.42", "0.14", "0.20", "0.67", "0.50"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_and_its_outcome_differ_in_the_advantage_alone(name):
    study = StepRewardsStudy(intervals=(20,))
    places = {place.label: place.config for place in study.places()}
    method_place, outcome = places[name], places[REFERENCES[name]]
    assert {*changes(method_place, outcome)} <= {"override.advantage", "knobs.step-weight"}
    assert (STEPS in algorithm(method_place).reads) == ("steps" in name)
    assert STEPS not in algorithm(outcome).reads
