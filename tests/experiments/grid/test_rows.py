"""Rows on disk: rounded, compressed, whole or refused, with the options of their study."""

import lzma
import math
from dataclasses import replace

import pytest
from rich.console import Console

from experiments.grid import main as grid
from experiments.grid import rows as files
from experiments.grid.rows import read_rows, rounded, where, write_rows
from experiments.grid.study import of_header
from experiments.rec.study import RecStudy
from ogrpo.config.update import Knobs
from ogrpo.system import lock

ROW = {"label": "a", "role": "report", "coordinates": {"v": 1}, "setting": {"r": 0.1}}
ROWS = [ROW | {"seed": seed} for seed in (1, 2)]
STUDY = RecStudy(steps=8, methods=("REINFORCE",), rates=(1e-3,))
STUDY = replace(STUDY, base=replace(STUDY.base, knobs=Knobs(beta=0.1)))


def test_floats_have_four_digits_and_what_is_none_is_null():
    value = {"a": [0.123456, 123456.0, math.nan, -math.inf], "b": 1234567, "c": (True, "x", None)}
    floats = [0.1235, 123500.0, None, None]
    assert rounded(value) == {"a": floats, "b": 1234567, "c": [True, "x", None]}


def test_files_that_are_no_rows_are_refused_by_name(tmp_path):
    path = tmp_path / "rows.jsonl.xz"
    with pytest.raises(ValueError, match=r"there are no rows in .*rows\.jsonl\.xz: run the study"):
        read_rows(path)
    path.write_bytes(b"no archive")
    with pytest.raises(ValueError, match=r"rows\.jsonl\.xz holds no rows"):
        read_rows(path)
    write_rows(path, {}, ROWS)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"rows\.jsonl\.xz"):
        read_rows(path)
    path.write_bytes(lzma.compress(b'{"study": "x"}\n{"lab'))
    with pytest.raises(ValueError, match="is cut off"):
        read_rows(path)


def test_rows_given_twice_are_refused(tmp_path):
    path, other = tmp_path / "rows.jsonl.xz", tmp_path / "other.xz"
    write_rows(path, {}, [*ROWS, ROWS[0]])
    with pytest.raises(ValueError, match="has a row twice"):
        read_rows(path)
    for file, rows in ((path, ROWS[:1]), (other, ROWS[1:])):
        write_rows(file, {}, rows)
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(ValueError, match="several files in one"):
        read_rows(path)


def test_rows_are_found_by_what_they_are_of():
    assert where(ROWS, seed=2) == ROWS[1:]
    assert where(ROWS, v=1, r=0.1) == ROWS
    assert where(ROWS, v=2) == []


def test_only_whole_rows_of_the_study_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "ROOT", tmp_path)
    (tmp_path / "experiments" / "my_study").mkdir(parents=True)
    folder, kept = tmp_path / "run", tmp_path / "experiments" / "my_study" / "rows.jsonl.xz"
    quiet = Console(quiet=True)

    def write(study, quick):
        command = f"python -m experiments.run {study} --run-dir '{folder} 1' --jobs 2 --run-dir=x"
        header = {"study": study, "options": {"quick": quick}, "command": command}
        size = write_rows(folder / files.ROWS, header, ROWS)
        assert size == (folder / files.ROWS).stat().st_size

    write("other", False)
    with pytest.raises(ValueError, match="has the rows of 'other'"):
        grid.keep("my-study", folder, quiet)
    write("my-study", True)
    with pytest.raises(ValueError, match="was made with --quick"):
        grid.keep("my-study", folder, quiet)
    assert not kept.exists()
    write("my-study", False)
    grid.keep("my-study", folder, quiet)
    header, rows = read_rows(kept)
    assert rows == ROWS
    assert header["command"] == "python -m experiments.run my-study --jobs 2"
    with lock.held(folder, "a grid"), pytest.raises(lock.FolderInUse, match=r"in use by .*a grid"):
        grid.restore("my-study", folder, quiet)


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
