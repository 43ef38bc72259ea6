"""The table of claims in proofs/README.md cannot go stale: no Coq needed."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROOFS = ROOT / "proofs"
STATUSES = {"checked", "paper", "numerical", "refuted"}


class Row(NamedTuple):
    claim: str
    statement: str
    status: str
    theorems: list[str]
    functions: list[str]
    tests: list[str]
    source: str


def rows():
    text = (PROOFS / "README.md").read_text()
    lines = text[text.index("| claim | exact statement") :].splitlines()[2:]
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = [re.findall(r"`([^`]+)`", cell) for cell in cells]
        yield Row(*cells[:3], *names[3:6], cells[6])


ROWS = list(rows())


def theorems(path):
    return re.findall(r"^Theorem (\w+)", path.read_text(), re.MULTILINE)


def all_theorems():
    return {f"{path.stem}.{name}" for path in PROOFS.glob("*.v") for name in theorems(path)}


@cache
def functions_in(path):
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def docstrings_in(path):
    tree = ast.parse((ROOT / "tests" / path).read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}


@pytest.mark.parametrize("row", [row for row in ROWS if row.theorems], ids=lambda row: row.claim)
def test_each_test_names_the_theorems_that_it_enumerates(row):
    for name in row.tests:
        module, function = name.split("::")
        words = set(re.findall(r"[\w.]*\w", docstrings_in(f"exact/{module}.py")[function]))
        assert set(row.theorems) <= words, f"{name} does not name {set(row.theorems) - words}"


def test_the_table_has_rows_of_every_status():
    assert {row.status for row in ROWS} == STATUSES
    assert len({row.claim for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_row_names_what_exists(row):
    assert row.statement
    assert row.source
    assert set(row.theorems) <= all_theorems()
    assert row.functions
    for name in row.functions:
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"ogrpo.core.{module}"), function))
    assert row.tests
    for name in row.tests:
        module, function = name.split("::")
        assert function in functions_in(f"exact/{module}.py")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_status_is_honest(row):
    if row.status == "checked":
        assert row.theorems
    if row.status in {"paper", "numerical"}:
        assert not row.theorems
    if row.status == "refuted":
        assert all("refuted" in name for name in row.tests)


def test_every_theorem_is_in_the_table():
    assert all_theorems() - {name for row in ROWS for name in row.theorems} == set()


def test_every_refuting_test_is_in_the_table():
    refuting = {
        f"{path.stem}::{name}"
        for path in (ROOT / "tests/exact").glob("test_*.py")
        for name in functions_in(f"exact/{path.name}")
        if name.startswith("test_refuted")
    }
    assert refuting - {name for row in ROWS for name in row.tests} == set()


def test_every_theorem_has_its_axioms_printed():
    asked = re.findall(
        r"^Print Assumptions (\w+\.\w+)\.$", (PROOFS / "Assumptions.v").read_text(), re.MULTILINE
    )
    assert sorted(asked) == sorted(all_theorems())


def test_every_chapter_is_built():
    listed = set(re.findall(r"^(\w+\.v)$", (PROOFS / "_CoqProject").read_text(), re.MULTILINE))
    assert listed == {path.name for path in PROOFS.glob("*.v")} - {"Assumptions.v"}


def test_theorems_that_the_core_cites_exist():
    names = {name.split(".")[1] for name in all_theorems()}
    for path in sorted((ROOT / "src/ogrpo/core").glob("*.py")):
        cited = re.findall(r"[Tt]heorem\s+`(\w+)`", path.read_text())
        assert set(cited) <= names, path.name


@pytest.mark.parametrize("page", sorted(PROOFS.glob("*.md")), ids=lambda page: page.name)
def test_pages_cite_what_exists(page):
    text = page.read_text()
    for link in re.findall(r"\]\(([\w.]+)\)", text):
        assert (PROOFS / link).exists(), link
    for name in re.findall(r"`([A-Z]\w+\.[a-z]\w+)`", text):
        assert name in all_theorems(), name
