"""The studies' tables and figures in docs/ follow from their committed rows, as do whole pages.

The prose says no more than they do: verdicts and intervals stand in tables alone.
"""

import re

import pytest

from experiments.grid import page
from experiments.grid.page import DOCS, all_sections, shown_figures, with_tables
from experiments.grid.rows import read_rows, rows_file
from experiments.grid.study import of_header
from experiments.grid.verdicts import SMALLEST, WORDS
from experiments.run import GRIDS, study_of
from ogrpo.report.page import STYLE

KEPT = [name for name in GRIDS if rows_file(name).is_file()]
MOST_BYTES = 5_000_000
APART = {"pairs", "thresholds", "family"}
"""Labels of committed rows that `bounds` and `variance` have no cells of."""
RULES = "**How to read them.**"
INTERVAL = re.compile(r"\d ± \.?\d")


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


def prose(name):
    """A page without its marked tables."""
    text = (DOCS / name).read_text()
    rest = re.sub(r"<!-- [\w-]+/[\w-]+ -->.*?<!-- end -->", "", text, flags=re.S)
    return "\n".join(" ".join(part.split()) for part in rest.split("\n\n"))


@pytest.mark.parametrize("name", ["results.md", "reuse.md", "real.md"])
def test_verdicts_and_intervals_stand_in_tables_and_in_the_rule_alone(name):
    rule = prose(name).partition(RULES)[2].partition("\n## ")[0]
    rest = prose(name).replace(rule, "") if rule else prose(name)
    assert not re.findall("|".join(WORDS), rest)
    assert not rule or all(word in rule for word in WORDS)
    assert not rule or f"{SMALLEST:g}".lstrip("0") in rule
    assert not INTERVAL.findall(prose(name))


def test_readme_claims_nothing_that_did_not_repeat():
    text = prose("../README.md")
    assert re.findall("|".join(WORDS), text) == list(WORDS)  # of results.md, in one sentence
    assert not re.findall(r"`reuse` ends|above the\s+default", text)
    assert not INTERVAL.findall(text)


def test_every_study_with_claims_shows_them():
    shown = "".join((DOCS / page).read_text() for page in ("results.md", "reuse.md"))
    for name in GRIDS:
        if f"<!-- {name}/summary -->" in shown or f"<!-- {name}/scores -->" in shown:
            assert f"<!-- {name}/claims -->" in shown, name
