"""The study of Algorithm 1's dials: what its cells are, and what its page says of known rows."""

import pytest

from experiments.ablation.main import AblationStudy
from experiments.ablation.methods import METHODS
from experiments.ablation.report import communication, printed, pushes
from ogrpo.trainer.presets import paper
from tests.experiments.walked import page, walk


def test_its_methods_are_the_papers_presets_and_each_can_be_run():
    study = AblationStudy()
    cells, rows = walk(study)
    assert len(cells) == len(rows) == len(METHODS) * (3 * 2 + 5)
    assert {row["setting"]["rate"] for row in rows if row["role"] == "report"} == {1e-3}
    configs = {cell.label: cell.config for cell in cells}
    for label, dials in {
        "v1-i1": {"v": 1},
        "v1-i1 masked": {"v": 1, "masked": True},
        "v10-i1": {"v": 10},
        "v1-i10": {"v": 1, "i": 10},
    }.items():
        mine, theirs = configs[label], paper(rate=1e-3, **dials)
        assert mine.knobs == theirs.knobs
        assert mine.override.mask_zero_variance == theirs.override.mask_zero_variance
        for name in ("sync_interval", "updates_per_batch", "stages", "reset_optimizer"):
            assert getattr(mine.schedule, name) == getattr(theirs.schedule, name), (label, name)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no method 'v2-i1'.*v10-i1"):
        AblationStudy(methods=("v2-i1",))


def test_statistics_are_over_the_evaluations_after_the_first():
    _, rows = walk(AblationStudy())
    line = printed(rows, ("v1-i1",)).lines[0]
    # every run rises from .3 to .5 + .001 (seed mod 5) over one evaluation between
    assert line[3:7] == ["0.401 ± 0.000", "0.502 ± 0.001", "0.451 ± 0.001", "0.451 ± 0.001"]
    assert line[8] == "+0.000 ± 0.000"


def test_pushes_are_the_steps_over_the_interval():
    _, rows = walk(AblationStudy())
    told = {row["label"]: pushes(row) for row in rows if row["role"] == "report"}
    assert (told["v1-i1"], told["v10-i1"], told["v20-i1"]) == (60, 6, 3)
    assert [line[3] for line in communication(rows).lines] == ["60", "12", "6", "3"]


def test_the_page_has_every_section_and_a_quick_one_what_was_run(tmp_path):
    study = AblationStudy()
    text = page(study, walk(study)[1], tmp_path)
    for heading in ("As the paper prints it", "Centre of the clip", "Cost of communication"):
        assert f"<h2>{heading}</h2>" in text
    quick = AblationStudy().quickened()
    text = page(quick, walk(quick)[1], tmp_path)
    assert "<h2>Centre of the clip</h2>" not in text
    assert "Its numbers mean nothing" in text
