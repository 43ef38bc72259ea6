"""The core's own promises: a page of formulas that is what the docstrings say, a test of every
function on it, small functions, no string that decides. And `docs/names.md`: it names what
exists here, and says of each method no more and no less than it is."""

import ast
import statistics
import subprocess
import sys

import pytest

from docs import house
from docs.house import ROOT
from tests import names

FILES = house.modules("src/ogrpo/core")
FUNCTIONS = [(file.path.stem, node) for file in FILES for node in house.functions([file])]


def test_the_algebra_page_is_current_and_has_a_test_of_every_function():
    build = [sys.executable, str(ROOT / "docs/build_algebra.py"), "--check"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [x for x in (ROOT / "docs/algebra.md").read_text().splitlines() if x.startswith("| `")]
    assert len(rows) > 120
    assert [x for x in rows if x.endswith("|  |")] == []


@pytest.mark.slow
def test_the_example_prints_its_table_without_a_trainer():
    code = (
        "import runpy, sys\n"
        "runpy.run_path('examples/compose_a_loss.py', run_name='__main__')\n"
        "assert not {'flax', 'optax', 'ogrpo.learner'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["gradient", "estimator", "|bias|", "variance", "mse"]
    table = {row[:22].strip(): [float(x) for x in row[22:].split()] for row in rows}
    assert len(table) == 6
    assert table["importance sampling"][0] == 0
    for bias, variance, mse in table.values():
        assert abs(bias**2 + variance - mse) < 2e-3
    assert table["mine, width 0.2"][2] < table["importance sampling"][2]


def test_function_bodies_are_short():
    sizes = {f"{module}.{node.name}": house.body_lines(node) for module, node in FUNCTIONS}
    assert statistics.median(sizes.values()) <= 8
    assert {name: size for name, size in sizes.items() if size > 25} == {}


def test_no_string_decides_what_is_computed():
    for module, node in FUNCTIONS:
        for compare in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
            for side in (compare.left, *compare.comparators):
                is_text = isinstance(side, ast.Constant) and isinstance(side.value, str)
                assert not is_text, f"{module}.{node.name}: {ast.unparse(compare)}"


ROWS = names.rows()
METHODS = [row for row in ROWS if row.ours and row.ours.split(" ")[0] not in names.PARTS]


def test_the_page_is_read_whole():
    projects = {"TRL 1.16", "verl 0.9", "Trinity-RFT 0.6", "Tunix, 22 August 2026"}
    assert {row.project for row in ROWS} == projects
    keys = [(row.project, row.table, row.theirs) for row in ROWS]
    assert len(keys) == len(set(keys)) > 150
    assert [row for row in ROWS if not row.note.endswith(".")] == []


@pytest.mark.parametrize("row", METHODS, ids=lambda row: f"{row.project} {row.theirs}")
def test_a_title_is_that_of_the_method_it_names(row):
    algorithm, overrides = names.build(row.ours)
    assert algorithm.title(names.settings(algorithm, overrides)) == row.ours
