"""math-verify with a bound on its time that holds in any thread.

Its own time-outs are alarms, which work in the main thread only and do not interrupt a long step in
C. Two ways round that: a short plain number is compared here, since nothing in it can take long;
anything else goes to one of a few processes, in which a comparison ends when it overruns.
"""

import json
import logging
import queue
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, Literal, cast

from math_verify import ExprExtractionConfig, parse, verify

from ogrpo.rewards.extract import LONGEST_ANSWER
from ogrpo.rewards.verifying import VerifyingProcess

Verdict = Literal["correct", "wrong", "unparsable", "timeout"]

# A short number in digits; the length keeps the comparison's cost out of the writer's hands.
_PLAIN = re.compile(r"(?=.{1,32}\Z)-?[0-9]*(?:,[0-9]{3})*(?:\.[0-9]+)?(?<=[0-9])\Z")
_NO_TIMEOUT: Any = None  # accepted by math-verify, though its annotation says int

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


class BadGold(ValueError):
    """A gold answer that math-verify cannot parse: an error of the data, never a wrong answer."""


class BoundedVerifier:
    r"""Compares any two answers, each within `seconds` of CPU time, in processes of its own.

    The processes start when they are needed. A comparison that overruns its CPU time is a
    "timeout". One that brings its process down, or that gives no reply in `wall_seconds` (the
    process was stopped, or killed from outside), is made once more before it counts as one. Many
    threads may ask at once; each waits for a free process.

    Args:
        seconds: of CPU time, the bound on one comparison.
        processes: compare side by side.
        wall_seconds: by the clock, the bound on one reply; `10 * seconds + 10` unless told.
    """

    def __init__(
        self, seconds: float, *, processes: int = 1, wall_seconds: float | None = None
    ) -> None:
        wall_seconds = 10 * seconds + 10 if wall_seconds is None else wall_seconds
        for name, value in (("seconds", seconds), ("wall_seconds", wall_seconds)):
            if not value > 0:
                raise ValueError(f"{name} is {value}; give a time bound > 0.")
        if processes < 1:
            raise ValueError(f"processes is {processes}; give 1 or more.")
        self.seconds = seconds
        self.processes = [VerifyingProcess(seconds, wall_seconds) for _ in range(processes)]
        self._closing = threading.Lock()
        self._idle: queue.LifoQueue[VerifyingProcess] = queue.LifoQueue()
        for process in self.processes:
            self._idle.put(process)

    def compare(self, answer: str, gold: str) -> Verdict:
        r"""Compare an answer (a `\boxed{...}`, or a text to search) with a gold in LaTeX.

        Returns:
            "correct", "wrong", "unparsable" (the answer) or "timeout".

        Raises:
            BadGold: math-verify cannot parse the gold answer.
        """
        if len(gold) > LONGEST_ANSWER:
            raise BadGold(
                f"the gold answer {gold[:60]!r}... has {len(gold)} > {LONGEST_ANSWER} characters."
            )
        if len(answer) > LONGEST_ANSWER:
            return "unparsable"
        request = json.dumps({"answer": answer, "gold": gold}, ensure_ascii=False) + "\n"
        line = request.encode("utf-8", "surrogatepass")
        process = self._idle.get()
        try:
            reply = process.ask(line) or process.ask(line)
        finally:
            self._idle.put(process)
        if reply == "bad gold":
            raise BadGold(
                f"the gold answer {gold!r} cannot be parsed by math-verify: mend it or leave its "
                "line out (ogrpo.rewards.golds.check_golds finds all such lines)."
            )
        return cast(Verdict, reply or "timeout")

    def compare_all(self, pairs: Sequence[tuple[str, str]]) -> list[Verdict | BadGold]:
        """Compare many (answer, gold) side by side; a bad gold's error stands in its place."""
        if not pairs:
            return []
        with ThreadPoolExecutor(min(len(self.processes), len(pairs)), "verify") as threads:
            return list(threads.map(self._compare_or_error, pairs))

    def close(self) -> None:
        """End the processes, once they are idle; a later call starts others."""
        with self._closing:  # two that closed at once would wait for each other's processes
            taken = [self._idle.get() for _ in self.processes]
            for process in taken:
                process.stop()
                self._idle.put(process)

    def _compare_or_error(self, pair: tuple[str, str]) -> Verdict | BadGold:
        try:
            return self.compare(*pair)
        except BadGold as error:
            return error
