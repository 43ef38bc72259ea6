"""The study of a real model: the first rate is chosen, then seeds follow one another."""

from dataclasses import replace

import pytest

from experiments.grid.rows import CellFiles
from experiments.grid.variants import changed
from experiments.grid.verdicts import of_claim
from experiments.real.measure import TRAINED, UNTOUCHED
from experiments.real.methods import CLAIMS, FIRST, METHODS
from experiments.real.study import PRIMARY, RealStudy
from ogrpo.config.method import algorithm
from ogrpo.core.algorithms import PROXIMAL

STUDY = RealStudy()


def row(cell, score):
    result = {"ended": "whole", "final": {PRIMARY: score, "pass@1/sampled": 0.1}}
    place = {"key": cell.key, "label": cell.label, "role": cell.role, "seed": cell.seed}
    return {**place, "coordinates": {}, "setting": dict(cell.setting), **result}


def test_methods_are_compared_seed_after_seed_at_the_rate_that_on_policy_training_chose():
    tuning, comparing = STUDY.stages()
    tried = tuning([])
    assert [cell.setting["rate"] for cell in tried] == [1e-5, 2e-5, 4e-5, 8e-5]
    rows = [row(cell, score) for cell, score in zip(tried, (0.1, 0.2, 0.4, 0.3), strict=True)]
    before, *cells = comparing(rows)
    assert (before.measure, before.role) == (UNTOUCHED, "pilot")
    assert {cell.config.evaluation.split for cell in (before, *cells)} == {"test"}
    order = [(seed, label) for seed in range(10, 15) for label in FIRST]
    assert [(cell.seed, cell.label) for cell in cells] == order
    assert {cell.setting["rate"] for cell in cells} == {4e-5}
    assert {cell.measure for cell in (*tried, *cells)} == {TRAINED}


def test_every_method_is_accepted_and_a_quarter_trains_on_as_many_groups():
    study = replace(STUDY, methods=tuple(METHODS))
    schedules = {place.label: place.config.schedule for place in study.places()}
    assert set(schedules) == set(METHODS)
    one, reused = schedules["positives"], schedules["positives, a quarter drawn 4 times"]
    assert one.steps * one.prompts == 4 * reused.steps * reused.prompts
    assert one.updates * one.prompts == reused.updates * (reused.draw or 0)


def test_claims_name_methods_and_the_finished_cells_of_a_session_are_put_back(tmp_path):
    assert {pick["label"] for one in CLAIMS for pick in (one.one, one.other)} <= set(METHODS)
    cells = [replace(cell) for cell in STUDY.stages()[0]([])]
    rows = [row(cell, 0.2) for cell in cells]
    assert of_claim(CLAIMS[0], rows).values == ()
    files = CellFiles(tmp_path)
    files.open()
    files.put_failed(cells[0], "no luck in an earlier session")
    assert [files.restore(each) for each in (*rows, rows[0])] == [True] * 4 + [False]
    assert files.row(cells[0], STUDY.base)["final"] == rows[0]["final"]
    assert all(map(files.has, cells))
    assert files.failure(cells[0]) is None


@pytest.mark.parametrize("name", [name for name in METHODS if name.startswith("int8, ")])
def test_corrections_of_the_rounded_sampler_read_both_policies(name):
    """A clip on pi/pi_k, or about pi_k/mu, as the protocol has them."""
    assert PROXIMAL in algorithm(changed(RealStudy().base, METHODS[name])).reads
