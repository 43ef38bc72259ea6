"""The options of a study, as they are kept with its rows."""

from dataclasses import replace

import pytest

from experiments.grid.study import of_header
from experiments.rec.study import RecStudy
from ogrpo.config.update import Knobs

STUDY = RecStudy(steps=8, methods=("REINFORCE",), rates=(1e-3,))
STUDY = replace(STUDY, base=replace(STUDY.base, knobs=Knobs(beta=0.1)))


def test_a_study_is_made_again_from_what_is_kept_with_its_rows():
    assert of_header(RecStudy, STUDY.header, "rows") == STUDY
    here = replace(STUDY, jobs=2)
    assert of_header(RecStudy, here.header, "rows") == STUDY


def test_rows_stay_readable_when_an_option_is_gone():
    options = STUDY.header["options"]
    knobs = {**options["base"]["knobs"], "forgotten": 1.0}
    base = {**options["base"], "knobs": knobs, "gone": {"a": 1}}
    header = {**STUDY.header, "options": {**options, "base": base, "part": 3}}
    assert of_header(RecStudy, header, "rows") == STUDY


def test_rows_of_another_study_are_refused():
    with pytest.raises(ValueError, match="here has the rows of 'other', not of 'rec'"):
        of_header(RecStudy, {"study": "other", "options": {}}, "here")
    wrong = {**STUDY.header, "options": {**STUDY.header["options"], "steps": 0}}
    with pytest.raises(ValueError, match="steps is 0"):
        of_header(RecStudy, wrong, "here")
