"""`single-rollout`: its methods differ in their advantages and groups, and in nothing that costs."""

from dataclasses import replace

import pytest

from experiments.grid.cell import changes
from experiments.single_rollout.study import METHODS, REFERENCE, SingleRolloutStudy, signal_to_noise

OWN = {"override.advantage", "rollout.group-size", "schedule.prompts"}


@pytest.mark.parametrize("base", [4, None])
def test_methods_at_an_interval_differ_in_advantage_and_groups_alone(base):
    study = SingleRolloutStudy(intervals=(20,))
    evaluation = replace(study.base.evaluation, samples=base)
    study = replace(study, base=replace(study.base, evaluation=evaluation))
    places = {place.label: place.config for place in study.places()}
    assert {*places} == {*METHODS}
    for name, config in places.items():
        assert {*changes(config, places[REFERENCE])} <= OWN, name
        assert config.schedule.prompts * config.rollout.group_size == study.completions
        assert config.evaluation.samples == (base or study.base.rollout.group_size)


def test_completions_that_are_no_whole_groups_are_refused():
    with pytest.raises(ValueError, match=r"completions is 100.*multiple of 1 and 4 and 8"):
        SingleRolloutStudy(completions=100)
    assert SingleRolloutStudy(completions=100, methods=("other prompts",)).places()


def test_signal_to_noise_is_the_median_of_what_was_measured():
    rows = [{"evaluations": {"grad_snr": [None, 0.2, 9]}}, {"evaluations": {"grad_snr": [0.5]}}]
    assert signal_to_noise(rows) == "0.50"
    assert signal_to_noise([{"evaluations": {}, "steps": {}}]) == "–"
