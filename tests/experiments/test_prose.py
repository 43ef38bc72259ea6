"""The prose of docs/ says no more than its tables: verdicts and intervals stand in tables alone."""

import re

import pytest

from experiments.grid.page import DOCS
from experiments.grid.verdicts import SMALLEST, WORDS
from experiments.run import GRIDS

RULES = "**How to read them.**"
INTERVAL = re.compile(r"\d ± \.?\d")


def prose(page):
    """A page without its marked tables."""
    text = (DOCS / page).read_text()
    rest = re.sub(r"<!-- [\w-]+/[\w-]+ -->.*?<!-- end -->", "", text, flags=re.S)
    return "\n".join(" ".join(part.split()) for part in rest.split("\n\n"))


@pytest.mark.parametrize("page", ["results.md", "reuse.md", "real.md"])
def test_verdicts_and_intervals_stand_in_tables_and_in_the_rule_alone(page):
    rule = prose(page).partition(RULES)[2].partition("\n## ")[0]
    rest = prose(page).replace(rule, "") if rule else prose(page)
    assert not re.findall("|".join(WORDS), rest)
    assert not rule or all(word in rule for word in WORDS)
    assert not rule or f"{SMALLEST:g}".lstrip("0") in rule
    assert not INTERVAL.findall(prose(page))


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
