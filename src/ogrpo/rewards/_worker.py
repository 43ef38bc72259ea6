r"""A process that compares answers with math-verify: a JSON object a line in, a word a line out.

It runs as a script, so that it imports math-verify and nothing of ours. The comparisons are made in
a copy of itself (fork), since a copy that overran is replaced in milliseconds, and a fresh start
takes a second. The copy's time bound is a kernel timer with the default action, which ends it even
in the middle of a long step in C, and even when nobody is left to read the answer. It counts CPU
time: a busy machine fails no answer.
"""

import contextlib
import json
import logging
import os
import resource
import signal
import sys
from functools import partial
from typing import IO, Any, NoReturn

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY_LIMIT = 1 << 30  # bytes; a tower of powers asks for any amount
RENEW_AFTER = 1000  # comparisons made by one copy: the parser's tables grow with what it has read
NO_TIMEOUT: Any = None  # accepted by math-verify, though its annotation says int

# A box is read as LaTeX alone: the other way of reading takes the first number of what it does not
# understand, and 3\sqrt2 for 3.
BOX = [LatexExtractionConfig(boxed_match_priority=0)]
TEXT = [LatexExtractionConfig(), ExprExtractionConfig()]
WARM_UP = (
    (r"\boxed{\frac{\sqrt{2}}{2} - 3x^2}", r"\frac{1}{2} + \pi"),
    (r"\boxed{(1, 2) \cup [3, \infty)}", r"x \le 5"),
    (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"12\text{ cm}"),
    ("The answer is 1/2.", "0.5"),
)


def read(text: str) -> list[Any]:
    """Parse a box as LaTeX; search any other text for LaTeX and plain expressions."""
    config = BOX if text.startswith("\\boxed{") else TEXT
    return parse(text, config, parsing_timeout=NO_TIMEOUT, fallback_mode="no_fallback")


def balanced(text: str) -> bool:
    """Tell whether the braces are balanced, counted as math-verify does when it opens a box."""
    depth = 0
    for character in text:
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


def compare(answer: str, gold: str) -> str:
    """Return "correct", "wrong", "unparsable" or "bad gold"; the gold is LaTeX, undelimited."""
    golds = read(f"\\boxed{{{gold}}}") if balanced(gold) else []
    if not golds:
        return "bad gold"
    candidates = read(answer)
    if not candidates:
        return "unparsable"
    return "correct" if verify(golds, candidates, timeout_seconds=None) else "wrong"


class Copy:
    """A fork of this process that compares, until it overruns.

    Args:
        seconds: of CPU time, the bound on one comparison.
        kept: descriptors that are this process's alone: were the copy to hold them too, whoever
            asks would not see this process end.
    """

    def __init__(self, seconds: float, kept: tuple[int, ...]) -> None:
        theirs, ours = os.pipe(), os.pipe()
        self.asked = 0
        self._reaped = False
        self.pid = os.fork()
        if self.pid == 0:
            for descriptor in (theirs[1], ours[0], *kept):
                os.close(descriptor)
            serve(os.fdopen(theirs[0], "rb"), os.fdopen(ours[1], "wb", buffering=0), seconds)
        os.close(theirs[0])
        os.close(ours[1])
        self.requests = os.fdopen(theirs[1], "wb", buffering=0)
        self.replies = os.fdopen(ours[0], "rb")

    def ask(self, request: bytes) -> bytes:
        """Return the verdict, or nothing if the copy did not live to give one."""
        self.asked += 1
        with contextlib.suppress(BrokenPipeError):
            self.requests.write(request)
        return self.replies.readline()

    def dead(self) -> bool:
        """Tell whether it ended while nobody asked."""
        self._reaped = self._reaped or os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self._reaped

    def end(self) -> None:
        """End it, if it lives, and forget it."""
        if not self.dead():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.requests.close()
        self.replies.close()


def serve(requests: IO[bytes], replies: IO[bytes], seconds: float) -> NoReturn:
    """Compare until the requests end or a comparison takes more than `seconds` of CPU time."""
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    try:
        for line in requests:
            signal.setitimer(signal.ITIMER_PROF, seconds)
            reply = compare(**json.loads(line))
            signal.setitimer(signal.ITIMER_PROF, 0)
            replies.write(reply.encode() + b"\n")
    finally:  # an error that math-verify lets through ends it like an overrun
        os._exit(0)


def main(seconds: float) -> None:
    """Answer until the input ends; what brings a copy down is answered with "timeout"."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    with open(os.devnull, "w") as nowhere:  # the parser prints what it does not understand
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    for answer, gold in WARM_UP:  # the parser fills its tables at the first use
        compare(answer, gold)
    replies.write(b"ready\n")
    make = partial(Copy, seconds, (0, replies.fileno()))
    copy = make()
    for request in sys.stdin.buffer:
        if copy.asked >= RENEW_AFTER or copy.dead():
            copy.end()
            copy = make()
        reply = copy.ask(request)
        replies.write(reply or b"timeout\n")
        if not reply:
            copy.end()
            copy = make()
    copy.end()


if __name__ == "__main__":
    main(float(sys.argv[1]))
