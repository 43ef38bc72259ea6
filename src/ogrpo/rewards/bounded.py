"""math-verify with a bound on its time that holds in any thread.

Its own time-outs are alarms, which work in the main thread only and do not interrupt a long step in
C. Two ways round that: a short plain number is compared here, since nothing in it can take long;
anything else goes to a process that ends when it overruns.
"""

import contextlib
import json
import logging
import re
import subprocess
import sys
import threading
import weakref
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from math_verify import ExprExtractionConfig, parse, verify

Verdict = Literal["correct", "wrong", "unparsable", "timeout"]

# A short number in digits; the length keeps the comparison's cost out of the writer's hands.
_PLAIN = re.compile(r"(?=.{1,32}\Z)-?[0-9]*(?:,[0-9]{3})*(?:\.[0-9]+)?(?<=[0-9])\Z")
_NO_TIMEOUT: Any = None  # accepted by math-verify, though its annotation says int
_SCRIPT = Path(__file__).with_name("_worker.py")

# math-verify warns whenever its own time-outs are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def is_plain(text: str) -> bool:
    """Tell whether a text is a short number in digits.

    >>> [is_plain(text) for text in ("1,234.5", "-7", "9**9**9**9", "9" * 50, "")]
    [True, True, False, False, False]
    """
    return _PLAIN.match(text) is not None


def compare_plain(answer: str, gold: str) -> Verdict:
    """Compare two plain numbers through math-verify, here and now.

    >>> compare_plain("1,000.0", "1000")
    'correct'
    """
    candidates, golds = _parse_plain(answer), _parse_plain(gold)
    if not candidates:
        return "unparsable"
    return "correct" if verify(golds, candidates, timeout_seconds=None) else "wrong"


@lru_cache(maxsize=1 << 14)
def _parse_plain(text: str) -> list[Any]:
    config = [ExprExtractionConfig()]
    return parse(text, config, parsing_timeout=_NO_TIMEOUT, fallback_mode="no_fallback")


class BoundedVerifier:
    """Compares any two answers within `seconds` of CPU time, in a process of its own.

    The process starts at the first need, and again after each overrun (a fraction of a second). A
    comparison that brings it down otherwise counts as "timeout" too. Calls from several threads
    take turns.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"seconds is {seconds}; give a time bound > 0.")
        self.seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def compare(self, answer: str, gold: str) -> Verdict:
        """Return "correct", "wrong", "unparsable" or "timeout"."""
        request = json.dumps({"answer": answer, "gold": gold}) + "\n"
        reply = None
        with self._lock:
            process = self._running()
            try:
                reply = _exchange(process, request)
            finally:  # also when interrupted: a late reply must not meet the next question
                if reply is None:
                    self._stop()
        return reply or "timeout"

    def close(self) -> None:
        """End the process, if there is one; a later call starts another."""
        with self._lock:
            self._stop()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # it was ended from outside, while idle
        if self._process is None:
            self._process = _start(self.seconds)
            self._end = weakref.finalize(self, _kill, self._process)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._end()
            self._process = None


def _start(seconds: float) -> subprocess.Popen[str]:
    # -P: the script's folder holds a math.py, which must not hide the standard library's.
    command = [sys.executable, "-P", str(_SCRIPT), str(seconds)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", bufsize=1
    )
    if _read_line(process) != "ready":
        _kill(process)
        raise RuntimeError(
            f"the process that verifies answers did not start (exit code {process.returncode}); "
            f"to see why, run: {' '.join(command)}"
        )
    return process


def _exchange(process: subprocess.Popen[str], request: str) -> Verdict | None:
    assert process.stdin is not None
    try:
        process.stdin.write(request)
        process.stdin.flush()
    except BrokenPipeError:  # it ended while idle, or the request alone was too much
        return None
    return cast(Verdict, _read_line(process)) or None


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # a request it never read
                pipe.close()
