"""The page of formulas is what the docstrings say, and every function on it has a test."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_algebra_page_is_current():
    build = [sys.executable, str(ROOT / "docs/build_algebra.py"), "--check"]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_function_of_the_core_has_a_test():
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
