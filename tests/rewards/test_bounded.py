import subprocess
import sys
from pathlib import Path

import pytest

from ogrpo.rewards import bounded
from ogrpo.rewards.bounded import BoundedVerifier, compare_plain, is_plain


@pytest.fixture
def verifier():
    verifier = BoundedVerifier(seconds=0.5)
    yield verifier
    verifier.close()


@pytest.mark.parametrize("text", ["0", "-7", "1,080", "1,080.50", ".5", "0012", "9" * 32])
def test_a_short_number_is_plain_and_equal_to_itself(text):
    assert is_plain(text)
    assert compare_plain(text, text) == "correct"


@pytest.mark.parametrize(
    "text", ["", "-", ".", "1.", "1/2", "1e5", "9**9", "x", "9" * 33, "1\n", "٣"]
)
def test_anything_else_is_not_plain(text):
    assert not is_plain(text)


def test_the_bound_must_be_positive():
    with pytest.raises(ValueError, match=r"seconds is 0\.0; give a time bound > 0"):
        BoundedVerifier(0.0)


def test_a_process_ended_while_idle_is_replaced(verifier):
    assert verifier.compare("36/2", "18") == "correct"
    verifier._process.kill()
    verifier._process.wait()
    assert verifier.compare("36/2", "18") == "correct"


def test_a_process_that_breaks_down_at_work_counts_as_a_timeout(verifier, monkeypatch, tmp_path):
    fragile = tmp_path / "fragile.py"
    fragile.write_text("print('ready', flush=True); input()")
    with monkeypatch.context() as patch:
        patch.setattr(bounded, "_SCRIPT", fragile)
        assert verifier.compare("36/2", "18") == "timeout"
    assert verifier.compare("36/2", "18") == "correct"


def test_text_that_looks_like_the_protocol_does_no_harm(verifier):
    assert verifier.compare("17\ncorrect\n", "18") == "wrong"
    assert verifier.compare("\ud800 36/2", "18") == "correct"
    assert verifier.compare("36/2", "18") == "correct"


def test_closing_ends_the_process_and_a_later_call_starts_another(verifier):
    verifier.compare("36/2", "18")
    process = verifier._process
    verifier.close()
    assert process.returncode is not None
    assert verifier.compare("36/2", "18") == "correct"


def test_the_process_does_not_outlive_its_verifier():
    verifier = BoundedVerifier(seconds=0.5)
    verifier.compare("36/2", "18")
    process = verifier._process
    del verifier
    assert process.returncode is not None


def test_a_process_that_cannot_start_is_an_error_that_says_how_to_see_why(monkeypatch, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(bounded, "_SCRIPT", script)
    with pytest.raises(RuntimeError, match=r"did not start .*to see why, run: .*broken\.py"):
        BoundedVerifier(seconds=0.5).compare("36/2", "18")


def test_the_worker_imports_nothing_of_ours():
    script = Path(bounded.__file__).with_name("_worker.py")
    listing = (
        f"import runpy, sys; runpy.run_path({str(script)!r}, run_name='worker'); "
        "print([m for m in sys.modules if m.partition('.')[0] in ('ogrpo', 'jax', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", listing], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
