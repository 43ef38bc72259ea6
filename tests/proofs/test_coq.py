"""The proofs themselves, and a run's instances of them, where Coq is installed."""

import shutil
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from ogrpo.loop.certify import certify
from ogrpo.report.certificates import claim, coq_file, ledger, seal

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
def test_proofs_build_from_clean_with_no_axiom_of_ours_and_prove_a_runs_certificates(copy):
    """A file of certificates is accepted; each of twenty with one number changed is not."""
    done = check(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no proof admitted" in done.stdout

    gains = np.random.default_rng(0).normal(0.2, 0.4, 100).clip(-1, 2).astype(np.float32)
    bound = float(certify(gains.astype(np.float64), 0.05).bound)
    stated = claim(ledger(20, bound, 0.05, gains.tolist(), "ab" * 32, "cd" * 32))
    text = coq_file([stated], "a run", "certificates.v")

    def accepts(source):
        (copy / "certificates.v").write_text(source)
        run = ["coqc", "-Q", ".", "OGRPO", "certificates.v"]
        done = subprocess.run(run, cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0 or "(accepted step20" in done.stderr, done.stderr
        return done.returncode == 0

    assert accepts(text)
    changed = [stated._replace(bound=stated.bound + by) for by in (1, -1, 1 << 20)]
    changed += [stated._replace(**{n: getattr(stated, n) ^ 1 << 77}) for n in ("old", "new")]
    changed += [stated._replace(delta=Fraction(*x)) for x in ((1, 19), (1, 21), (1, 20000))]
    changed += [stated._replace(scale=stated.scale * x) for x in (2, 8)]
    changed += [stated._replace(gains=stated.gains[:n] + stated.gains[n + 1 :]) for n in (0, 99)]
    for n, by in ((0, 1), (7, -1), (9, 1 << 22), (50, -(1 << 22)), (99, 1)):
        values = [*stated.gains]
        values[n] += by
        changed.append(stated._replace(gains=tuple(values)))
    sources = [coq_file([each], "a run", "certificates.v") for each in changed]
    sources = [
        source.replace(str(seal(each)), str(seal(stated)))
        for source, each in zip(sources, changed, strict=True)
    ]
    sealed_anew = stated._replace(bound=stated.bound + (1 << 12))  # the mathematics refuses it
    sources += [coq_file([sealed_anew], "a run", "certificates.v")]
    sources += [text.replace(str(seal(stated)), str(seal(stated) + 1))]
    sources += [text.replace(str(stated.bound), str(stated.scale))]
    assert len({*sources} - {text}) == 20
    assert [accepts(each) for each in sources] == [False] * 20


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
