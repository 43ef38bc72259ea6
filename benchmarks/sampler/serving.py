"""A worker's side: loads an engine, then draws one batch after another whenever it is told to."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

Job = dict[str, Any]
Rows = Sequence[Sequence[int] | np.ndarray]
"""Token ids of the N G completions, the end of sequence included."""
Draw = Callable[[np.ndarray, int, int], Rows]
"""Of prompts [N, P], a seed and the number of tokens that a completion has at most."""


def serve(load: Callable[[Job], Draw], packages: tuple[str, ...]) -> None:
    """Answers each line, the arguments of `drawn`, with what it returns, as a line of JSON."""
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    draw = load(job)
    print(json.dumps({name: version(name) for name in packages}), file=answers)
    for line in sys.stdin:
        print(json.dumps(drawn(job, draw, **json.loads(line))), file=answers)


def drawn(job: Job, draw: Draw, seconds: float, seed: int, most: int) -> dict[str, Any]:
    """Draws batches of fresh prompts until so many seconds have passed, one at least.

    Returns:
        Tokens, calls and seconds, and the token ids of the first batch.
    """
    begin, tokens, calls, first = time.perf_counter(), 0, 0, []
    while calls == 0 or time.perf_counter() - begin < seconds:
        rows = draw(prompts(job, seed + calls), seed + calls, most)
        tokens, calls, first = tokens + sum(map(len, rows)), calls + 1, first or rows
    wall = time.perf_counter() - begin
    return {
        "tokens": tokens,
        "calls": calls,
        "wall": wall,
        "first": [[*map(int, r)] for r in first],
    }


def prompts(job: Job, seed: int) -> np.ndarray:
    """Random prompts [N, P], others for each seed, without the end of sequence."""
    rng = np.random.default_rng(seed)
    shape, lowest = job["shape"], job["eos"] + 1
    size = (shape["prompts"], shape["prompt"])
    return rng.integers(lowest, job["vocabulary"], size, dtype=np.int32)
