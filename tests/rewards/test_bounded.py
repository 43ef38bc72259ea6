import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ogrpo.rewards import bounded
from ogrpo.rewards.bounded import BadGold, BoundedVerifier, compare_plain, is_plain

ENDLESS = "9**9**9**9"


@pytest.fixture(scope="module")
def verifier():
    verifier = BoundedVerifier(seconds=0.3, processes=2, wall_seconds=60.0)
    yield verifier
    verifier.close()


@pytest.fixture
def single():
    verifier = BoundedVerifier(seconds=1.0)
    yield verifier
    verifier.close()


def running(verifier):
    return [worker._child._process for worker in verifier.workers]


@pytest.mark.parametrize("text", ["0", "-7", "1,080", "1,080.50", ".5", "0012", "9" * 32])
def test_a_short_number_is_plain_and_equal_to_itself(text):
    assert is_plain(text)
    assert compare_plain(text, text) == "correct"


@pytest.mark.parametrize(
    "text", ["", "-", ".", "1.", "1/2", "1e5", "9**9", "x", "9" * 33, "1\n", "٣"]
)
def test_anything_else_is_not_plain(text):
    assert not is_plain(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seconds": 0.0}, r"seconds is 0\.0; give a time bound > 0"),
        ({"seconds": 1.0, "wall_seconds": -1.0}, r"wall_seconds is -1\.0; give a time bound > 0"),
        ({"seconds": 1.0, "processes": 0}, "processes is 0; give 1 or more"),
    ],
)
def test_bounds_and_processes_must_be_positive(arguments, message):
    with pytest.raises(ValueError, match=message):
        BoundedVerifier(**arguments)


def test_an_overrun_costs_its_time_and_no_second_start(verifier):
    assert verifier.compare("36/2", "18") == "correct"
    before = running(verifier)
    assert verifier.compare(ENDLESS, "18") == "timeout"
    assert verifier.compare("36/2", "18") == "correct"
    assert running(verifier) == before


def test_many_are_compared_side_by_side_and_each_gets_its_own_verdict(verifier):
    pairs = [("36/2", "18"), (ENDLESS, "18"), ("17", "18"), ("no idea", "18")] * 2
    pairs += [(f"{2 * n}/2", str(n)) for n in range(1, 9)] + [("1", r"\frac{1}{2")]
    *verdicts, error = verifier.compare_all(pairs)
    assert len(running(verifier)) == 2
    assert verdicts == ["correct", "timeout", "wrong", "unparsable"] * 2 + ["correct"] * 8
    assert isinstance(error, BadGold)


@pytest.mark.parametrize("who", ["the process", "its copy, which compares"])
def test_a_stopped_process_is_given_up_and_the_pair_compared_by_another(who):
    """By the clock: one that is stopped takes no CPU time."""
    verifier = BoundedVerifier(seconds=1.0, wall_seconds=4.0)
    assert verifier.compare("36/2", "18") == "correct"
    (stopped,) = running(verifier)
    children = Path(f"/proc/{stopped.pid}/task/{stopped.pid}/children").read_text().split()
    os.kill(stopped.pid if who == "the process" else int(children[0]), signal.SIGSTOP)
    assert verifier.compare("34/2", "17") == "correct"
    assert stopped.returncode == -signal.SIGKILL
    verifier.close()


def test_a_process_killed_at_work_is_replaced_and_the_pair_compared_again(single):
    assert single.compare("36/2", "18") == "correct"
    (process,) = running(single)
    killer = threading.Timer(0.2, process.kill)
    killer.start()
    assert single.compare(ENDLESS, "18") == "timeout"
    killer.join()
    assert process.returncode == -signal.SIGKILL
    (other,) = running(single)
    assert other is not process
    other.kill()  # while idle
    other.wait()
    assert single.compare("36/2", "18") == "correct"


def test_a_process_that_breaks_down_twice_counts_as_a_timeout(monkeypatch, tmp_path):
    fragile = tmp_path / "fragile.py"
    fragile.write_text("import os\ndef bounded(answer, gold, seconds):\n    os._exit(1)\n")
    monkeypatch.setattr(bounded, "_SCRIPT", fragile)
    assert BoundedVerifier(seconds=0.5).compare("36/2", "18") == "timeout"


def test_text_that_looks_like_the_protocol_does_no_harm(verifier):
    assert verifier.compare("17\ncorrect\n", "18") == "wrong"
    assert verifier.compare("\ud800 36/2", "18") == "correct"
    assert verifier.compare("36/2", "18") == "correct"


def test_what_is_too_long_is_not_compared(verifier):
    assert verifier.compare("1+" * 2048 + "1", "2049") == "unparsable"
    assert verifier.compare("\0" * 4096, "1" * 4096) == "unparsable"
    with pytest.raises(BadGold, match="has 4097 > 4096 characters"):
        verifier.compare("1", "1" * 4097)


def test_closing_ends_the_processes_and_a_later_call_starts_another():
    verifier = BoundedVerifier(seconds=0.5)
    verifier.compare("36/2", "18")
    (process,) = running(verifier)
    verifier.close()
    assert process.returncode is not None
    assert verifier.compare("36/2", "18") == "correct"
    (process,) = running(verifier)
    del verifier
    assert process.returncode is not None


def test_a_process_that_cannot_start_is_an_error_that_says_why(monkeypatch, tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setattr(bounded, "_SCRIPT", script)
    with pytest.raises(ValueError, match=r"compare cannot be loaded in a process .*SystemExit: 3"):
        BoundedVerifier(seconds=0.5).compare("36/2", "18")


def test_what_compares_imports_nothing_of_ours():
    listing = (
        f"import runpy, sys; runpy.run_path({str(bounded._SCRIPT)!r}, run_name='worker'); "
        "print([m for m in sys.modules if m.partition('.')[0] in ('ogrpo', 'jax', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", listing], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
