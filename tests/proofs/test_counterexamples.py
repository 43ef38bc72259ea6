"""Every counterexample on the errata pages refutes its claim, and the pages cite all of them."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PROOFS = Path(__file__).resolve().parents[2] / "proofs"
MODULE = runpy.run_path(str(PROOFS / "counterexamples.py"))


@pytest.mark.parametrize(
    ("page", "group"), [("errata_proposal.md", "PROPOSAL"), ("errata_mroueh.md", "PAPER")]
)
def test_every_counterexample_refutes_its_claim_and_is_cited_with_its_numbers(page, group):
    text = (PROOFS / page).read_text()
    for example in MODULE[group]:
        counterexample = example()
        assert counterexample.fails, counterexample
        cited = next(line for line in text.splitlines() if f"`{example.__name__}`" in line)
        assert f"{counterexample.lesser:.4g}" in cited, (example.__name__, counterexample)
        assert f"{counterexample.greater:.4g}" in cited, (example.__name__, counterexample)


def test_a_claim_that_holds_is_not_refuted():
    assert not MODULE["Counterexample"]("one is at most two", 1.0, 2.0).fails
    assert not MODULE["Counterexample"]("one is at most one", 1.0, 1.0).fails


def test_the_script_runs_without_our_packages():
    script = [sys.executable, "-I", str(PROOFS / "counterexamples.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert done.stdout.count("fails:") == len(MODULE["PROPOSAL"] + MODULE["PAPER"])
    assert "holds:" not in done.stdout
