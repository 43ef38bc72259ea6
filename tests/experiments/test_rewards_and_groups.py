"""`noise`, `single-rollout` and `step-rewards`: what their methods differ in, what they print."""

from dataclasses import replace

import pytest

from experiments.grid.cell import changes
from experiments.noise.study import amplified
from experiments.single_rollout import study as single_rollout
from experiments.step_rewards import study as step_rewards
from ogrpo.config.method import algorithm
from ogrpo.core.algorithms import STEPS

OWN = {"override.advantage", "rollout.group-size", "schedule.prompts"}


@pytest.mark.parametrize("base", [4, None])
def test_methods_at_an_interval_differ_in_advantage_and_groups_alone(base):
    study = single_rollout.SingleRolloutStudy(intervals=(20,))
    evaluation = replace(study.base.evaluation, samples=base)
    study = replace(study, base=replace(study.base, evaluation=evaluation))
    places = {place.label: place.config for place in study.places()}
    assert {*places} == {*single_rollout.METHODS}
    for name, config in places.items():
        assert {*changes(config, places[single_rollout.REFERENCE])} <= OWN, name
        assert config.schedule.prompts * config.rollout.group_size == study.completions
        assert config.evaluation.samples == (base or study.base.rollout.group_size)


def test_completions_that_are_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match=r"completions is 100.*multiple of 1 and 4 and 8"):
        single_rollout.SingleRolloutStudy(completions=100)
    assert single_rollout.SingleRolloutStudy(completions=100, methods=("other prompts",)).places()


def test_signal_to_noise_is_the_median_of_what_was_measured():
    rows = [{"evaluations": {"grad_snr": [None, 0.2, 9]}}, {"evaluations": {"grad_snr": [0.5]}}]
    assert single_rollout.signal_to_noise(rows) == "0.50"
    assert single_rollout.signal_to_noise([{"evaluations": {}, "steps": {}}]) == "–"


TWO = "7 + 5 = 12 ; 12 - 3 = 9 #### 9"
ANSWERS = {
    TWO: (True, 1.0),
    "7 + 5 = 12 ; 12 - 3 = 8 #### 8": (False, 0.5),  # a slip in the second line
    "7 - 5 = 2 ; 2 + 7 = 9 #### 9": (True, 0.5),  # right by chance
    "7 + 2 = 9 #### 9": (True, 0.0),
    "7 + 5 = 11 ; 11 - 3 = 8 #### 8": (False, 0.0),
}


def test_answers_are_judged_by_outcome_and_by_line():
    verdicts = step_rewards.judged(TWO, [*ANSWERS])
    pairs = zip(verdicts.right.tolist(), verdicts.shares.tolist(), strict=True)
    assert (verdicts.lines, [*pairs]) == (2, [*ANSWERS.values()])


def test_the_table_counts_where_lines_and_outcome_differ():
    right, wrong, lucky, _, lost = ANSWERS
    groups = [
        step_rewards.judged(TWO, [right, lucky, right, right]),  # equal outcomes, lines differ
        step_rewards.judged(TWO, [lost, lost, lost, lost]),  # equal in both
        step_rewards.judged(TWO, [right, wrong, lost, lost]),
        step_rewards.judged("7 + 5 = 12 #### 12", ["7 + 5 = 12 #### 12"] * 4),
    ]
    one, two = step_rewards.line_table(groups).lines
    assert one == ["1", "1", "1.00", "1.00", "–", "0.00", "1.00", "0.00"]
    assert two == ["2", "3", "0.42", "0.42", "0.14", "0.20", "0.67", "0.50"]


@pytest.mark.parametrize("name", step_rewards.METHODS)
def test_a_method_and_its_outcome_differ_in_the_advantage_alone(name):
    study = step_rewards.StepRewardsStudy(intervals=(20,))
    places = {place.label: place.config for place in study.places()}
    method_place, outcome = places[name], places[step_rewards.REFERENCES[name]]
    assert {*changes(method_place, outcome)} <= {"override.advantage", "knobs.step-weight"}
    assert (STEPS in algorithm(method_place).reads) == ("steps" in name)
    assert STEPS not in algorithm(outcome).reads


def test_what_is_amplified_is_the_loss_beyond_the_others_seed_by_seed():
    def row(label, flip, seed, end):
        place = {"label": label, "coordinates": {"flips": flip}, "setting": {}, "seed": seed}
        return {**place, "final": {"pass@1/sampled": end}}

    rows = [
        *(row("A", 0.0, seed, end) for seed, end in [(1, 0.6), (2, 0.7), (3, 0.9)]),
        *(row("A", 0.4, seed, end) for seed, end in [(1, 0.3), (2, 0.5)]),
        *(row("B", 0.0, seed, end) for seed, end in [(2, 0.7), (1, 0.5), (3, 0.1)]),
        *(row("B", 0.4, seed, end) for seed, end in [(1, 0.4), (2, 0.7), (3, 0.1)]),
    ]
    mean, _, high = amplified(rows, "A", "B", 0.4).interval  # .3 - .1 and .2 - 0
    assert mean == pytest.approx(0.2)
    assert high == pytest.approx(mean)
    assert amplified(rows, "A", "B", 0.1).values == ()
