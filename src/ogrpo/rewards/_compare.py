r"""Compares answers with math-verify, in a process of its own (`ogrpo.rewards.bounded`).

It imports math-verify and nothing of ours. The comparisons are made in a copy of the process
(fork), since a copy that overran is replaced in milliseconds, and a fresh start takes a second. The
copy's time bound is a kernel timer with the default action, which ends it even in the middle of a
long step in C. It counts CPU time: a busy machine fails no answer.
"""

import contextlib
import json
import logging
import math
import os
import signal
import warnings
from typing import IO, Any, NoReturn

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Float, I, evaluate

RENEW_AFTER = 1000  # comparisons made by one copy: the parser's tables grow with what it has read
NO_TIMEOUT: Any = None  # accepted by math-verify, though its annotation says int

# A box is read as LaTeX alone: the other way of reading takes the first number of what it does not
# understand, and 3\sqrt2 for 3.
BOX = [LatexExtractionConfig(boxed_match_priority=0)]
TEXT = [LatexExtractionConfig(), ExprExtractionConfig()]
PLAIN = [ExprExtractionConfig()]
WARM_UP = (
    (r"\boxed{\frac{\sqrt{2}}{2} - 3x^2}", r"\frac{1}{2} + \pi"),
    (r"\boxed{(1, 2) \cup [3, \infty)}", r"x \le 5"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"12\text{ cm}"),
    ("The answer is 1/2.", "0.5"),
)


def read(text: str, config: Any = None) -> list[Any]:
    """Parses a box as LaTeX; searches any other text for LaTeX and plain expressions."""
    config = config or (BOX if text.startswith("\\boxed{") else TEXT)
    return parse(text, config, parsing_timeout=NO_TIMEOUT, fallback_mode="no_fallback")


def balanced(text: str) -> bool:
    """Tells whether the braces are balanced, counted as math-verify does when it opens a box."""
    depth = 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def compare(answer: str, gold: str) -> str:
    """Returns "correct", "wrong", "unparsable" or "bad gold"; the gold is LaTeX, undelimited."""
    golds = read(f"\\boxed{{{gold}}}") if balanced(gold) else []
    if not golds:
        return "bad gold"
    candidates = read(answer)
    return verdict(golds[0], candidates[0]) if candidates else "unparsable"


def verdict(gold: Any, answer: Any) -> str:
    """Compares two parsed expressions: "correct" or "wrong"."""
    gold, answer = imaginary(gold), imaginary(answer)
    rounding = places(gold, answer)
    equal = verify(gold, answer, float_rounding=rounding, timeout_seconds=None)
    return "correct" if equal else "wrong"


def imaginary(parsed: Any) -> Any:
    """Returns an expression with the number i for its letter.

    math-verify leaves a variable, one for `5i` and another for `5 i` or `2(1+i)`.
    """
    letters = [each for each in getattr(parsed, "free_symbols", ()) if each.name == "i"]
    with contextlib.suppress(ValueError), evaluate(False):  # an interval, as a pair is, is real
        return parsed.xreplace(dict.fromkeys(letters, I)) if letters else parsed
    return parsed


def places(gold: Any, answer: Any) -> int:
    """Returns to how many decimal places two numbers are compared, if one of them is a decimal.

    Six; where the gold answer is below a millionth, so many that its first six digits count: to six
    places it would equal 0.
    """
    try:
        size = abs(float(gold)) if gold.has(Float) or answer.has(Float) else 1.0
    except (ArithmeticError, AttributeError, TypeError, ValueError):  # no real number
        return 6
    return 5 - math.floor(math.log10(size)) if 0 < size < 1e-6 else 6


class Copy:
    """A fork of this process that compares, until it overruns."""

    def __init__(self, seconds: float) -> None:
        theirs, ours = os.pipe(), os.pipe()
        self.comparisons = 0
        self.seconds = seconds
        self._reaped = False
        self.pid = os.fork()
        if self.pid == 0:
            os.close(theirs[1])
            os.close(ours[0])
            serve(os.fdopen(theirs[0], "rb"), os.fdopen(ours[1], "wb", buffering=0), seconds)
        os.close(theirs[0])
        os.close(ours[1])
        self.requests = os.fdopen(theirs[1], "wb", buffering=0)
        self.replies = os.fdopen(ours[0], "rb")

    def ask(self, request: bytes) -> str:
        """Returns the verdict, or nothing if the copy ended before it had one."""
        self.comparisons += 1
        with contextlib.suppress(BrokenPipeError):
            self.requests.write(request)
        return self.replies.readline().decode().strip()

    def stale(self, seconds: float) -> bool:
        """Returns whether it ended between two requests, is worn out, or has another bound."""
        return self.dead() or self.comparisons >= RENEW_AFTER or self.seconds != seconds

    def dead(self) -> bool:
        """Returns whether it has ended."""
        self._reaped = self._reaped or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self._reaped

    def end(self) -> None:
        """Ends it, if it lives, and forgets it."""
        if not self.dead():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.requests.close()
        self.replies.close()


def serve(requests: IO[bytes], replies: IO[bytes], seconds: float) -> NoReturn:
    """Compares until the requests end or a comparison takes more than `seconds` of CPU time."""
    try:
        for line in requests:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            reply = compare(**json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            replies.write(reply.encode() + b"\n")
    finally:  # an error that math-verify lets through ends it like an overrun
        os._exit(0)


_copies: list[Copy] = []
"""The copy that compares, if there is one."""


def bounded(answer: str, gold: str, seconds: float) -> str:
    """Returns what `compare` does, or "timeout" where it brings a copy down."""
    if _copies and _copies[0].stale(seconds):
        _copies.pop().end()
    if not _copies:
        _copies.append(Copy(seconds))
    request = json.dumps({"answer": answer, "gold": gold}) + "\n"
    if verdict := _copies[0].ask(request.encode()):
        return verdict
    _copies.pop().end()
    return "timeout"


def prepare() -> None:
    """Compares a few answers, so that the parser fills its tables; hushes what it prints."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    with open(os.devnull, "w") as nowhere:  # the parser prints what it does not understand
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for answer, gold in WARM_UP:
        compare(answer, gold)


if __name__ == "compare_answers":  # in its process, before the first request
    prepare()
