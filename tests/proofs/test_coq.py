"""The proofs themselves, where Coq is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROOFS = Path(__file__).resolve().parents[2] / "proofs"


def have_coq():
    if shutil.which("coqc") is None:
        return False
    home = subprocess.run(["coqc", "-where"], capture_output=True, text=True, check=True).stdout
    return (Path(home.strip()) / "user-contrib" / "mathcomp").is_dir()


needs_coq = pytest.mark.skipif(
    not have_coq(),
    reason="coqc or its mathcomp not found; on Debian bookworm: apt-get install -y --no-install-recommends "
    "coq libcoq-mathcomp-ssreflect make",
)


def check(folder):
    return subprocess.run([folder / "check.sh"], capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path):
    """A clean copy, so that a developer's build is left alone."""
    folder = tmp_path / "proofs"
    shutil.copytree(PROOFS, folder, ignore=shutil.ignore_patterns("*.vo*", "*.glob", ".*"))
    return folder


@needs_coq
def test_proofs_build_from_clean_with_no_axiom_of_ours(copy):
    done = check(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no proof admitted" in done.stdout


@needs_coq
@pytest.mark.parametrize("word", ["Admitted", "Axiom", "Parameter", "admit", "Abort"])
def test_check_refuses_unproved_statements(copy, word):
    with (copy / "Calculus.v").open("a") as chapter:
        chapter.write(f"\nLemma gap : 1 = 0. {word}.\n")
    done = check(copy)
    assert done.returncode == 1
    assert "unproved or assumed" in done.stderr


@needs_coq
def test_check_refuses_axioms_from_elsewhere(copy):
    """A section variable outside any section is an axiom by another name."""
    chapters = ["Calculus.v"]
    (copy / "_CoqProject").write_text("-Q . OGRPO\n-arg -w -arg all\n" + "\n".join(chapters))
    for path in copy.glob("*.v"):
        if path.name not in chapters:
            path.unlink()
    with (copy / "Calculus.v").open("a") as chapter:
        chapter.write("\nHypothesis gap : 1 = 0.\nTheorem absurd : 1 = 0. Proof gap.\n")
    (copy / "Assumptions.v").write_text(
        "From OGRPO Require Import Calculus.\nDefinition all_theorems :=\n"
        "  (@Calculus.fan_exp,\n  (@Calculus.absurd, I)).\nPrint Assumptions all_theorems.\n"
    )
    done = check(copy)
    assert done.returncode == 1
    assert "outside allowed_axioms.txt" in done.stderr
