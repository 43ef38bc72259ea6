"""`offline`: fixed sets are of the initial policy, and the yardsticks have as many of either."""

from experiments.grid.cell import changes
from experiments.grid.train import program_of
from experiments.offline.study import (
    FRESH,
    METHODS,
    OfflineStudy,
    beginning,
    best,
    falls,
    halfway,
    trained,
)
from experiments.rec.study import METHODS as REC


def places(study):
    return {(p.label, p.coordinates["batches"]): p.config for p in study.places()}


def test_fixed_sets_take_the_updates_and_the_evaluations_of_the_longest_fresh_run():
    study = OfflineStudy(methods=("RAFT",))
    by_place = places(study)
    longest = by_place[FRESH, study.steps].schedule
    scored = {step for step in range(longest.steps + 1) if longest.evaluates(step)}
    for size in study.batches:
        plan = by_place["RAFT", size].schedule
        assert [plan.collects(step) for step in (size - 1, size)] == [True, False]
        assert not any(plan.draws(step) for step in range(size))
        assert plan.updates == longest.updates
        seen = {step - size for step in range(plan.steps + 1) if plan.evaluates(step)}
        assert {step for step in seen if step >= 0} == scored
        short = by_place[FRESH, size].schedule
        assert short.steps == short.updates == size


def test_fresh_samples_are_reinforce_with_nothing_but_another_schedule():
    by_place = places(OfflineStudy())
    fixed, fresh = by_place["REINFORCE", 15], by_place[FRESH, 60]
    assert program_of(fixed) == program_of(fresh)
    assert all(name.startswith(("schedule.", "replay.")) for name in changes(fixed, fresh))
    assert {*REC} < {*METHODS}


def test_a_size_of_the_updates_has_one_yardstick_and_another_has_two():
    fresh = [size for label, size in places(OfflineStudy(batches=(60,))) if label == FRESH]
    assert fresh == [60]
    fresh = [size for label, size in places(OfflineStudy(batches=(20,))) if label == FRESH]
    assert fresh == [20, 60]


def run(*scores):
    evaluations = {"updates": [0, 0, 20, 40], "pass@1/sampled": [*scores]}
    return trained({"evaluations": evaluations, "steps": {}, "final": {"updates": 40}})


def test_speed_and_stability_are_of_the_updates_and_not_of_the_steps_before_them():
    rows = [run(0.9, 0.4, 0.6, 0.2), run(0.4, 0.4, 0.2, 0.6)]
    assert beginning(rows) == "0.400 ± 0.000"
    assert halfway(rows) == "0.400 ± 2.541"
    assert best(rows) == "0.600 ± 0.000"
    assert falls(rows) == "20, 40"
    assert falls([run(0.9, 0.3, 0.4, 0.5)]) == "–"
