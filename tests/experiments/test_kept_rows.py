"""The studies' tables and figures in docs/ follow from their committed rows, as do whole pages."""

import re

import pytest

from experiments.grid import page
from experiments.grid.page import DOCS, all_sections, shown_figures, with_tables
from experiments.grid.rows import read_rows, rows_file
from experiments.grid.study import of_header
from experiments.run import GRIDS, study_of
from ogrpo.report.page import STYLE

pytestmark = pytest.mark.slow

KEPT = [name for name in GRIDS if rows_file(name).is_file()]
MOST_BYTES = 5_000_000
APART = {"pairs", "thresholds", "family"}
"""Labels of committed rows that `bounds` and `variance` have no cells of."""


def test_all_rows_together_stay_small():
    assert KEPT
    assert sum(rows_file(name).stat().st_size for name in KEPT) < MOST_BYTES


@pytest.fixture(scope="module", params=KEPT)
def kept(request):
    """A study, its committed rows, and its sections of them."""
    header, rows = read_rows(rows_file(request.param))
    study = of_header(study_of(request.param), header, str(rows_file(request.param)))
    assert not study.quick
    return study, rows, all_sections(study, rows, header["failed"])


def test_tables_of_docs_are_those_of_the_rows_and_its_figures_are_there(kept):
    study, _, sections = kept
    assert study.pages
    tables = [table for section in sections for table in section.tables]
    known = {picture.name for section in sections for picture in section.pictures}
    shown = set()
    for path in study.pages:
        text = (DOCS / path).read_text()
        assert with_tables(text, study.name, tables) == text, f"run {study.name} --from-rows"
        shown |= {*shown_figures(text, study.name)}
    made = {path.stem for path in (DOCS / "studies" / study.name).glob("*.png")}
    assert made == shown <= known, f"run {study.name} --from-rows"


def test_the_page_has_each_methods_line_and_each_pictures_figure(kept, tmp_path, monkeypatch):
    study, rows, sections = kept
    if study.name == "boundary":  # all figures are composed, those of one study rendered
        monkeypatch.setitem(STYLE, "figure.dpi", 30)
    else:
        monkeypatch.setattr(page, "save_figure", lambda figure, path: path.write_bytes(b"PNG"))
    lacking = {*study.seeds[2:], *study.tuning_seeds[1:]}  # as where cells failed
    some = [row for row in rows if row["seed"] not in lacking]
    text = page.write_page(study, some, [], tmp_path, command="the command").read_text()
    assert all(row["label"] in text for row in rows if row["label"] not in APART)
    pictures = [picture.name for section in sections for picture in section.pictures]
    assert len(set(pictures)) == len(pictures) == text.count("<figure>")
    assert pictures or study.name == "presets"
    names = [table.name for section in sections for table in section.tables]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w-]+", name) for name in names)
