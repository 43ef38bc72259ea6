"""`docs/names.md` names what exists here, and says of each method no more and no less than it is."""

import pytest

from tests import names

ROWS = names.rows()
METHODS = [row for row in ROWS if row.ours and row.ours.split(" ")[0] not in names.PARTS]


def test_the_page_is_read_whole():
    assert {row.project for row in ROWS} == {
        "TRL 1.16",
        "verl 0.9",
        "Trinity-RFT 0.6",
        "Tunix, 22 August 2026",
    }
    keys = [(row.project, row.table, row.theirs) for row in ROWS]
    assert len(keys) == len(set(keys)) > 150
    assert [row for row in ROWS if not row.note.endswith(".")] == []


@pytest.mark.parametrize("row", METHODS, ids=lambda row: f"{row.project} {row.theirs}")
def test_a_title_is_that_of_the_method_it_names(row):
    algorithm, overrides = names.build(row.ours)
    assert algorithm.title(names.settings(algorithm, overrides)) == row.ours
