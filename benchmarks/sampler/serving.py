"""A worker's side: loads an engine, then draws one batch after another whenever it is told to."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

Job = dict[str, Any]
# prompts [N, P], seed -> lengths of the completions, [N, G] or flat
Draw = Callable[[np.ndarray, int], np.ndarray]


def serve(load: Callable[[Job], Draw], packages: tuple[str, ...]) -> None:
    """Answers each line {"seconds", "seed"} with what was drawn meanwhile, as a line of JSON."""
    job = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    draw = load(job)
    print(json.dumps({name: version(name) for name in packages}), file=answers)
    for line in sys.stdin:
        print(json.dumps(drawn(job, draw, **json.loads(line))), file=answers)


def drawn(job: Job, draw: Draw, seconds: float, seed: int) -> dict[str, float]:
    """Batches of fresh prompts until so many seconds have passed, one at least."""
    begin, tokens, calls = time.perf_counter(), 0, 0
    while calls == 0 or time.perf_counter() - begin < seconds:
        lengths = draw(prompts(job, seed + calls), seed + calls)
        tokens, calls = tokens + int(np.sum(lengths)), calls + 1
    return {"tokens": tokens, "calls": calls, "wall": time.perf_counter() - begin}


def prompts(job: Job, seed: int) -> np.ndarray:
    """Random prompts [N, P], others for each seed, without the end of sequence."""
    rng = np.random.default_rng(seed)
    shape, lowest = job["shape"], job["eos"] + 1
    size = (shape["prompts"], shape["prompt"])
    return rng.integers(lowest, job["vocabulary"], size, dtype=np.int32)
