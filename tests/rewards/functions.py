"""Reward functions that processes import by name: this file imports little, so that they start fast."""

import asyncio
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

BAD = "bad"


def length(completions, **columns):
    return [float(len(text)) for text in completions]


def equal(completions, answer):
    return [float(text == gold) for text, gold in zip(completions, answer, strict=True)]


def raises(completions, **columns):
    return [_worth(text) for text in completions]


def _worth(text):
    if text == BAD:
        raise KeyError("no such answer")
    return 1.0


def overruns(completions, **columns):
    if BAD in completions:
        re.match(r"(a+)+$", "a" * 64 + "b")  # in C, with the interpreter's lock held
    return [1.0] * len(completions)


def hangs(completions, **columns):
    if BAD in completions:
        threading.Event().wait()
    return [1.0] * len(completions)


def hangs_once(completions, folder, **columns):
    """Waits for its end at the first time, and tells which process it is."""
    file = Path(folder[0]) / "pid"
    if not file.exists():
        file.with_suffix(".new").write_text(str(os.getpid()))
        file.with_suffix(".new").rename(file)
        threading.Event().wait()
    return length(completions)


def takes_memory(completions, **columns):
    return [float(len(bytearray(8 << 30))) if text == BAD else 1.0 for text in completions]


def dies(completions, **columns):
    if BAD in completions:
        os.kill(os.getpid(), signal.SIGSEGV)
    return [1.0] * len(completions)


def is_killed(completions, **columns):
    os.kill(os.getpid(), signal.SIGKILL)


def giving(value):
    """A function that gives this for what is bad."""

    def gives(completions, **columns):
        return [value if text == BAD else 1.0 for text in completions]

    return gives


def meets(completions, folder, everyone, me=None):
    """Is right if all were under way at once: each waits for the others."""
    (Path(folder[0]) / (me or completions[0])).touch()
    for _ in range(2000):
        if all((Path(folder[0]) / name).exists() for name in everyone):
            return [1.0]
        time.sleep(0.01)
    return [0.0]


def leaves_a_child(completions, folder, **columns):
    child = subprocess.Popen(["sleep", "300"])
    (Path(folder[0]) / "pids").write_text(f"{os.getpid()} {child.pid}")
    re.match(r"(a+)+$", "a" * 64 + "b")


def has_alarms(completions, **columns):
    signal.signal(signal.SIGALRM, lambda *_: None)
    return [float(threading.current_thread() is threading.main_thread())] * len(completions)


_under_way, _most = 0, 0


async def counts_company(completions, seconds, **columns):
    """The most calls that were under way at once so far."""
    global _under_way, _most
    _under_way += 1
    _most = max(_most, _under_way)
    await asyncio.sleep(seconds[0])
    _under_way -= 1
    return [float(_most)] * len(completions)


async def judge(completions, **columns):
    """Blocks the loop, waits too long, fails or answers."""
    for text in completions:
        if text == "block":
            time.sleep(300)
        if text == "wait":
            await asyncio.sleep(300)
        if text == BAD:
            raise KeyError("no such answer")
    await asyncio.sleep(0.05)
    return length(completions)
