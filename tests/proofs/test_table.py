"""The table of claims in proofs/README.md and its errata pages cannot go stale: no Coq needed."""

import ast
import importlib
import re
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROOFS = ROOT / "proofs"
STATEMENTS = runpy.run_path(str(PROOFS / "statements.py"))
CHAPTERS = STATEMENTS["read_chapters"]()
REFUTING = runpy.run_path(str(PROOFS / "counterexamples.py"))
COUNTEREXAMPLES = {
    f"counterexamples::{example.__name__}" for example in REFUTING["PROPOSAL"] + REFUTING["PAPER"]
}


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


@cache
def all_theorems():
    return set(STATEMENTS["hashes"](CHAPTERS))


@cache
def exact_tests():
    """Returns the functions of tests/exact as the table names them, and their docstrings."""
    return {
        f"{path.stem}::{node.name}": ast.get_docstring(node) or ""
        for path in sorted((ROOT / "tests/exact").glob("test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }


@cache
def ties_of_theorems():
    """Returns the tests of tests/exact that name a theorem as theirs."""
    ties = {name: [] for name in all_theorems()}
    for test, text in exact_tests().items():
        for name in re.findall(r"\b[A-Z]\w+\.[a-z]\w+\b", text):
            ties[name].append(test)
    return ties


def test_the_table_holds_the_hash_of_every_statement():
    text = (PROOFS / "README.md").read_text()
    written = dict(STATEMENTS["CITED"].findall(text[text.index("| claim | exact statement") :]))
    assert written == STATEMENTS["hashes"](CHAPTERS), (
        "read what changed, then statements.py --write"
    )


BOUND, UNIQUE = "TokenSurrogate.token_surrogate_bound", "OptimalTruncation.fixed_point_unique"


@pytest.mark.parametrize(
    ("chapter", "old", "new", "changed"),
    [
        ("Divergence", "<= kl pi mu / 2.", "<= kl pi mu / 3.", "Divergence.pinsker"),
        ("Divergence", "tv pi mu := / 2 *", "tv pi mu := / 3 *", BOUND),
        ("TokenSurrogate", "0 <= F h <= 1.", "0 <= F h <= 2.", BOUND),
        ("OptimalTruncation", "(m - 1) * tail t.", "m * tail t.", UNIQUE),
    ],
)
def test_a_changed_constant_changes_a_hash(chapter, old, new, changed):
    """In the statement, in a definition of another chapter, in a hypothesis of the section."""
    assert old in CHAPTERS[chapter]
    edited = CHAPTERS | {chapter: CHAPTERS[chapter].replace(old, new, 1)}
    before, after = (STATEMENTS["hashes"](chapters) for chapters in (CHAPTERS, edited))
    assert before[changed] != after[changed]
    assert before["Clip.feps_le"] == after["Clip.feps_le"]


def test_a_changed_proof_or_comment_changes_no_hash():
    source = CHAPTERS["Divergence"]
    edited = source.replace("Proof.", "Proof. (* as before *) idtac.", 3)
    assert STATEMENTS["hashes"](CHAPTERS | {"Divergence": edited}) == STATEMENTS["hashes"](CHAPTERS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.claim)
def test_row_names_what_exists_its_status_is_honest_and_each_theorem_has_one_test(row):
    assert row.statement
    assert row.source
    assert set(row.theorems) <= all_theorems()
    for name in row.theorems:
        (test,) = ties_of_theorems()[name]
        assert test in row.tests, name
    assert row.functions
    for name in row.functions:
        if "::" in name:  # the library has no such function, the row's test has it
            assert name in exact_tests()
            assert name.split("::")[0] in {test.split("::")[0] for test in row.tests}
            continue
        module, function = name.split(".")
        assert callable(getattr(importlib.import_module(f"ogrpo.core.{module}"), function))
    assert row.tests
    assert set(row.tests) <= {*exact_tests(), *COUNTEREXAMPLES}
    if row.status == "checked":
        assert row.theorems
    if row.status in {"paper", "numerical"}:
        assert not row.theorems
    if row.status == "refuted":
        assert all("refuted" in name or name in COUNTEREXAMPLES for name in row.tests)


def test_every_status_theorem_and_refuting_test_is_in_the_table():
    assert {row.status for row in ROWS} == {"checked", "paper", "numerical", "refuted"}
    assert len({row.claim for row in ROWS}) == len(ROWS)
    assert all_theorems() - {name for row in ROWS for name in row.theorems} == set()
    refuting = {name for name in exact_tests() if "::test_refuted" in name}
    assert refuting - {name for row in ROWS for name in row.tests} == set()


def test_every_theorem_has_its_axioms_printed():
    text = (PROOFS / "Assumptions.v").read_text()
    listed = re.findall(r"^  \(@(\w+\.\w+),$", text, re.MULTILINE)
    assert sorted(listed) == sorted(all_theorems())
    assert text.endswith("Print Assumptions all_theorems.\n")


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


@pytest.mark.parametrize(
    ("page", "group"), [("errata_proposal.md", "PROPOSAL"), ("errata_mroueh.md", "PAPER")]
)
def test_every_counterexample_refutes_its_claim_and_is_cited_with_its_numbers(page, group):
    text = (PROOFS / page).read_text()
    for example in REFUTING[group]:
        counterexample = example()
        assert counterexample.fails, counterexample
        cited = next(line for line in text.splitlines() if f"`{example.__name__}`" in line)
        assert f"{counterexample.lesser:.4g}" in cited, (example.__name__, counterexample)
        assert f"{counterexample.greater:.4g}" in cited, (example.__name__, counterexample)


def test_a_claim_that_holds_is_not_refuted():
    assert not REFUTING["Counterexample"]("one is at most two", 1.0, 2.0).fails
    assert not REFUTING["Counterexample"]("one is at most one", 1.0, 1.0).fails


def test_the_script_runs_without_our_packages():
    script = [sys.executable, "-I", str(PROOFS / "counterexamples.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.count("fails:") == len(REFUTING["PROPOSAL"] + REFUTING["PAPER"])
    assert "holds:" not in done.stdout
