"""Signals end a run between two steps: a terminal that goes away, too. SIGKILL costs nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ogrpo.cli.main import INTERRUPTED, last_words
from ogrpo.run import main
from ogrpo.run.interrupt import StopRequest, stop_on_signal
from tests.run.small_run import TYPED, go

CHILD = """
import os, signal, sys, time
from ogrpo.run.interrupt import stop_on_signal
with stop_on_signal(lambda name: print(name, "heard", flush=True)) as stop:
    print("ready", flush=True)
    for _ in range(200):
        time.sleep(0.05)
        if stop.signal:
            break
    time.sleep(2)  # the step that is under way, in which the second hangup comes
    print("a line that nobody reads", flush=True)
    open(sys.argv[1], "w").write(str(stop.signal and stop.signal.name))
"""


@pytest.fixture(autouse=True)
def signals_that_nobody_ignores():
    """Under nohup, or as a shell's background job, SIGHUP and SIGINT would be ignored."""
    before = signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGHUP, before[0])
    signal.signal(signal.SIGINT, before[1])


def test_a_hangup_is_a_request_to_stop_and_the_second_interrupts():
    signals = []
    with stop_on_signal(signals.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == signal.SIGHUP
        assert signals == ["SIGHUP"]
        with pytest.raises(KeyboardInterrupt, match="SIGTERM: interrupted at once"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_terminal_that_went_away_harms_nothing(tmp_path):
    controller, terminal = os.openpty()
    log = tmp_path / "told"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(log)],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    while not shown.endswith(b"\n"):  # a line that is half written fails when the window closes
        shown += os.read(controller, 100)
    os.close(controller)  # the terminal's window is closed
    for _ in range(2):  # by the kernel and by the shell
        child.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    assert child.wait(30) == 0
    assert log.read_text() == "SIGHUP"


def trained(*_):
    """Takes the place of the loop: it ends, and nobody stopped it."""
    yield from ()
    return None, StopRequest()


AGAIN = "no step was taken, and no state is lost; begin again with:\n  {whole}"
GO_ON = "go on with:\n  {program} --run-dir {folder} --resume"
UNMOVED = f"no step was taken since the run was started, and no state is lost; {GO_ON}"
OUTSIDE = [
    ("SIGTERM", "same_model", AGAIN),
    ("SIGHUP", "greedy_answers", UNMOVED),
    ("SIGINT", "finish", f"training is saved; {GO_ON}"),
]


@pytest.mark.parametrize(("name", "place", "words"), OUTSIDE)
def test_a_signal_outside_of_the_loop_has_our_words(name, place, words, tmp_path, monkeypatch):
    number, folder = signal.Signals[name], tmp_path / "run"
    before = [signal.getsignal(each) for each in signal.Signals]
    if place == "finish":
        monkeypatch.setattr(main, "greedy_answers", lambda *_, **__: [])
        monkeypatch.setattr(main, "train_to_end", trained)
    monkeypatch.setattr(main, place, lambda *_, **__: os.kill(os.getpid(), number))
    with pytest.raises(KeyboardInterrupt) as caught:
        go(folder)
    values = {"whole": TYPED.whole, "program": TYPED.program, "folder": folder}
    expected = f"{name}: interrupted at once\n{words.format(**values)}"
    assert last_words(caught.value) == expected
    assert (folder / "config.json").exists() == ("--resume" in expected)
    assert before == [signal.getsignal(each) for each in signal.Signals]


def test_a_signal_that_comes_while_processes_agree_ends_the_run_a_step_later(tmp_path, monkeypatch):
    """Each process has said that it goes on, and waits for the others, when the signal comes."""
    answers = []

    def everyone(answer):
        answers.append(answer)
        if len(answers) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return [answer]

    monkeypatch.setattr(main, "everyone", everyone)
    assert "stopped by SIGTERM after step 1; go on with:" in go(tmp_path / "run")
    assert answers == [None, signal.SIGTERM]


@pytest.mark.slow
def test_the_last_lines_of_a_warm_start_that_sigterm_ends_are_ours(tmp_path):
    options = ["--run-dir", str(tmp_path / "run"), "--warm-start.steps=100000"]
    command = [sys.executable, "-m", "ogrpo", "train", *options]
    env, pipe = {**os.environ, "OGRPO_CACHE_DIR": str(tmp_path / "cache")}, subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)
    assert child.stdout is not None
    assert any("run directory" in line for line in child.stdout)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == INTERRUPTED
    typed = f"ogrpo train {' '.join(options)}"
    expected = f"SIGTERM: interrupted at once\n{AGAIN.format(whole=typed)}"
    assert errors.splitlines()[-3:] == expected.splitlines()


ROOT = Path(__file__).parents[2]
SEED = 3


@pytest.mark.slow
def test_killed_at_random_and_resumed_a_run_repeats_its_records_weights_and_data():
    """With the same seed the kill comes at the same change of a file again."""
    how = ["--runs", "1", "--most", "1", "--writes", "--seed", str(SEED), "--only", "together"]
    words = [sys.executable, "-m", "benchmarks.chaos", "kills", *how]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"seed {SEED}" in done.stdout
    summary = re.search(r"(\d+) of (\d+) runs, killed (\d+) times", done.stdout)
    assert summary is not None, done.stdout
    assert summary.groups() == ("1", "1", "1"), done.stdout
