"""Signals end a run between two steps: a terminal that goes away, too."""

import os
import signal
import subprocess
import sys

import pytest

from ogrpo.run.interrupt import stop_on_signal

CHILD = """
import os, signal, sys, time
from ogrpo.run.interrupt import stop_on_signal
with stop_on_signal(lambda name: print(name, "heard", flush=True)) as stop:
    print("ready", flush=True)
    for _ in range(200):
        time.sleep(0.05)
        if stop:
            break
    print("a line that nobody reads", flush=True)
    open(sys.argv[1], "w").write(str(stop.signal and stop.signal.name))
"""


def test_a_hangup_is_a_request_to_stop_and_the_second_interrupts():
    heard = []
    with stop_on_signal(heard.append) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == signal.SIGHUP
        assert heard == ["SIGHUP"]
        with pytest.raises(KeyboardInterrupt, match="SIGTERM: interrupted at once"):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_terminal_that_went_away_harms_nothing(tmp_path):
    controller, terminal = os.openpty()
    told = tmp_path / "told"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(told)],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
    )  # fmt: skip
    os.close(terminal)
    assert b"ready" in os.read(controller, 100)
    os.close(controller)  # the terminal's window is closed
    child.send_signal(signal.SIGHUP)
    assert child.wait(30) == 0
    assert told.read_text() == "SIGHUP"


def test_nohup_is_heeded():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signal(lambda _name: None) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop
    finally:
        signal.signal(signal.SIGHUP, before)
