"""A process that compares answers with math-verify, one JSON object a line in, one word a line out.

It runs as a script, so that it imports math-verify and nothing of ours. Its time bound is a kernel
timer with the default action, which ends the process even in the middle of a long step in C, and
even when nobody is left to read the answer. It counts CPU time: a busy machine fails no answer.
"""

import json
import logging
import os
import resource
import signal
import sys
from typing import Any

from math_verify import parse, verify

MEMORY_LIMIT = 1 << 30  # bytes; a tower of powers asks for any amount
NO_TIMEOUT: Any = None  # accepted by math-verify, though its annotation says int


def compare(answer: str, gold: str) -> str:
    """Return "correct", "wrong" or "unparsable"."""
    candidates = parse(answer, parsing_timeout=NO_TIMEOUT, fallback_mode="no_fallback")
    if not candidates:
        return "unparsable"
    golds = parse(gold, parsing_timeout=NO_TIMEOUT)
    return "correct" if verify(golds, candidates, timeout_seconds=None) else "wrong"


def main(seconds: float) -> None:
    """Answer until the input ends or an answer takes more than `seconds` of CPU time."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    with open(os.devnull, "w") as nowhere:  # the parser prints what it does not understand
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    replies.write("ready\n")
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        reply = compare(**json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(reply + "\n")


if __name__ == "__main__":
    main(float(sys.argv[1]))
