"""math-verify with a bound on its time that holds in any thread.

Its own time-outs are alarms, which work in the main thread only and do not interrupt a long step in
C. Two ways round that: a short plain number is compared here, since nothing in it can take long;
anything else goes to one of a few processes, in which a comparison ends when it overruns.
"""

import logging
import re
import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, cast

from ogrpo.rewards.extract import LONGEST_ANSWER
from ogrpo.rewards.workers import Workers
from ogrpo.system.worker import Reply, WorkerProcess, pickle_by_reference

Pair = tuple[str, str]
Verdict = Literal["correct", "wrong", "unparsable", "timeout"]

# A short number in digits; the length keeps the comparison's cost out of the writer's hands.
_PLAIN = re.compile(r"(?=.{1,32}\Z)-?(?:[0-9]+(?:,[0-9]{3})*)?(?:\.[0-9]+)?(?<=[0-9])\Z")
_INTEGER = re.compile(r"-?[1-9][0-9]{0,2}(?:,[0-9]{3})*\Z|-?[1-9][0-9]*\Z|0\Z")
MEMORY_GIB = 1.0
"""Address space of a process that compares: a tower of powers asks for any amount."""
START_SECONDS = 120.0
"""A start takes about one; a machine at its limits takes longer."""
_SCRIPT = Path(__file__).with_name("_compare.py")

# math-verify warns whenever its own time-outs are off.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def is_plain(text: str) -> bool:
    """Tells whether a text is a short number in digits.

    >>> [is_plain(text) for text in ("1,234.5", "-7", "9**9**9**9", "9" * 50, "")]
    [True, True, False, False, False]
    """
    return _PLAIN.match(text) is not None


def compare_plain(answer: str, gold: str) -> Verdict:
    """Compares two plain numbers here and now: integers as such, others through math-verify.

    >>> compare_plain("1,000", "1000"), compare_plain("1,000.0", "1000")
    ('correct', 'correct')
    >>> compare_plain("-.5", "-0.5"), compare_plain("0.0", "0.0000002")
    ('correct', 'wrong')
    """
    if _INTEGER.match(answer) and _INTEGER.match(gold):
        return "correct" if answer.replace(",", "") == gold.replace(",", "") else "wrong"
    from ogrpo.rewards import _compare  # sympy with it: .4 s of a start that needs none of it

    return cast(Verdict, _compare.verdict(_parse_plain(gold), _parse_plain(answer)))


@lru_cache(maxsize=1 << 14)
def _parse_plain(text: str) -> Any:
    from ogrpo.rewards import _compare

    (number,) = _compare.read(text.removeprefix("-"), _compare.PLAIN)
    return -number if text.startswith("-") else number  # it does not read -.5, nor -05


class BadGold(ValueError):
    """A gold answer that math-verify cannot parse: an error of the data, never a wrong answer."""


class BoundedVerifier:
    r"""Compares any two answers, each within `seconds` of CPU time, in processes of its own.

    The processes start when they are needed. A comparison that overruns its CPU time is a
    "timeout". One that brings its process down, or that gives no reply in `wall_seconds` (the
    process was stopped, or killed from outside), is made once more before it counts as one. Many
    threads may compare at once; each waits for a free process.

    Args:
      seconds: of CPU time, the bound on one comparison.
      processes: compare side by side.
      wall_seconds: by the clock, the bound on one reply; None: `10 * seconds + 10`.
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
        self.seconds, self._wall_seconds, self._processes = seconds, wall_seconds, processes
        self._lock = threading.Lock()
        self._workers: Workers | None = None

    def compare_all(self, pairs: Sequence[Pair]) -> list[Verdict | BadGold]:
        r"""Compares answers (a `\boxed{...}`, or a text to search) with golds in LaTeX.

        Returns:
          For each pair "correct", "wrong", "unparsable" (the answer) or "timeout"; or the error
          that says that math-verify cannot parse the gold answer.
        """
        short = [pair for pair in dict.fromkeys(pairs) if max(map(len, pair)) <= LONGEST_ANSWER]
        replies = self._replies(short)
        replies |= self._replies([pair for pair in short if replies[pair].kind is not None])
        return [_verdict(pair[1], replies.get(pair)) for pair in pairs]

    def close(self) -> None:
        """Ends the processes; a later call starts others."""
        with self._lock:
            workers, self._workers = self._workers, None
        if workers is not None:
            workers.close(finish=True)

    def _replies(self, pairs: Sequence[Pair]) -> dict[Pair, Reply]:
        if not pairs:
            return {}
        with self._lock:
            if self._workers is None:
                self._workers = Workers(
                    {"compare": pickle_by_reference("compare_answers", "bounded")},
                    memory_gib=MEMORY_GIB,
                    start_seconds=START_SECONDS,
                    processes=self._processes,
                    files={"compare_answers": str(_SCRIPT)},
                )
            submit = self._workers.submit

        def compare(pair: Pair, worker: WorkerProcess) -> Reply:
            arguments = {"answer": pair[0], "gold": pair[1], "seconds": self.seconds}
            return worker.call("compare", arguments, seconds=self._wall_seconds)

        futures = {pair: submit(partial(compare, pair)) for pair in pairs}
        return {pair: future.result() for pair, future in futures.items()}


def _verdict(gold: str, reply: Reply | None) -> Verdict | BadGold:
    if len(gold) > LONGEST_ANSWER:
        return BadGold(
            f"the gold answer {gold[:60]!r}... has {len(gold)} > {LONGEST_ANSWER} characters."
        )
    if reply is None:
        return "unparsable"
    if reply.result == "bad gold":
        return BadGold(
            f"the gold answer {gold!r} cannot be parsed by math-verify: mend it or leave its "
            "line out (check_golds of its reward names all such lines)."
        )
    return cast(Verdict, reply.result or "timeout")
