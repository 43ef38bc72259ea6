"""The studies' tables and figures in docs/ follow from their committed rows."""

import pytest

from experiments.grid.page import DOCS, all_sections, shown_figures, with_tables
from experiments.grid.rows import read_rows, rows_file
from experiments.grid.study import of_header
from experiments.run import GRIDS, study_of

pytestmark = pytest.mark.slow

KEPT = [name for name in GRIDS if rows_file(name).is_file()]
MOST_BYTES = 5_000_000


def test_all_rows_together_stay_small():
    assert KEPT
    assert sum(rows_file(name).stat().st_size for name in KEPT) < MOST_BYTES


@pytest.mark.parametrize("name", KEPT)
def test_tables_of_docs_are_those_of_the_rows_and_its_figures_are_there(name):
    kind = study_of(name)
    header, rows = read_rows(rows_file(name))
    study = of_header(kind, header, str(rows_file(name)))
    assert not study.quick
    sections = all_sections(study, rows, header["failed"])
    assert study.pages
    tables = [table for section in sections for table in section.tables]
    known = {picture.name for section in sections for picture in section.pictures}
    shown = set()
    for page in study.pages:
        text = (DOCS / page).read_text()
        assert with_tables(text, name, tables) == text, f"run {name} --from-rows"
        shown |= {*shown_figures(text, name)}
    made = {path.stem for path in (DOCS / "studies" / name).glob("*.png")}
    assert made == shown <= known, f"run {name} --from-rows"
