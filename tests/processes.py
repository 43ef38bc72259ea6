"""Processes that tests start: whether they live, and what is waited for."""

import time

from benchmarks.chaos.processes import read_proc


def alive(pid):
    """That one which has ended is left to be collected is its parent's affair."""
    state = read_proc(pid, "stat").rpartition(b")")[2].split()[:1]
    return state not in ([], [b"Z"])


def eventually(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return met


def gone(pid):
    return eventually(lambda: not alive(pid))
