"""An engine that does what a test says, and whose groups tell what they were drawn from."""

import threading
from collections import Counter
from functools import cache

import numpy as np

from ogrpo.protocol import Completion, Group, Sampling, check_request
from ogrpo.rollout.collection import CollectionLimits, Collector, Request, Rewarded

SAMPLING = Sampling(temperature=1.0, max_tokens=4, group_size=2)
LONG = 60  # seconds after which a wait in a test means that something hangs


def group(prompt, version, seed=0, size=2):
    """Completions whose tokens are the version, the seed and the prompt."""
    return _group(int(prompt[0]), version, seed, size)


@cache
def _group(head, version, seed, size):
    tokens = np.array([version, seed, head], np.int32)
    completion = Completion(tokens, np.zeros(3, np.float32), version, 1.0, "stop")
    return Group(np.array([head], np.int32), (completion,) * size)


def origins(taken):
    """Returns the (problem, version, seed) that each group of a batch was drawn from."""
    return [
        (problem, *(int(x) for x in g.completions[0].token_ids[:2]))
        for problem, g in zip(taken.request.problems, taken.groups, strict=True)
    ]


class Scripted:
    """Calls `script(engine, prompts, seed)` in the middle of `generate`: to wait, raise or sleep."""

    def __init__(self, script=lambda engine, prompts, seed: None, answer=None):
        self.version = -1
        self.log = []
        self.calls = Counter()
        self._script, self._answer = script, answer
        self._lock = threading.Lock()

    def generate(self, prompts, sampling, seed):
        check_request(prompts, sampling)
        with self._lock:
            version = self.version
            heads = tuple(int(p[0]) for p in prompts)
            self.log.append(("generate", heads, seed, version))
            self.calls[heads] += 1
        self._script(self, prompts, seed)
        groups = [group(p, version, seed, sampling.group_size) for p in prompts]
        return groups if self._answer is None else self._answer(self, groups)

    def publish(self, params, version):
        with self._lock:
            self.version = version
            self.log.append(("publish", params, version))

    def metrics(self):
        return {}


@cache
def request_at(step, size=3):
    """Problems 10 * step, ...: the prompt of each is its number."""
    problems = [10 * step + n for n in range(size)]
    prompts = [np.array([problem], np.int32) for problem in problems]
    return Request(step, problems, prompts, seed=1000 + step)


def make_limits(**changes):
    return CollectionLimits(**{"lead": 0, "grace": LONG, **changes})


def equal_rewards(request, places, groups):
    return [Rewarded(g, np.zeros(len(g.completions), np.float32)) for g in groups]


def collector(
    engine, steps=8, request_fn=request_at, *, reward_fn=equal_rewards, required=None, **limits
):
    return Collector(
        engine,
        request_fn,
        SAMPLING,
        reward_fn,
        steps=steps if isinstance(steps, range) else range(steps),
        limits=make_limits(**limits),
        required=required,
    )


def turn(source, step, v=1):
    """One step of a trainer that publishes every `v` steps."""
    if step % v == 0:
        source.publish(f"weights {step}", step)
    return source.take(step)


def run(engine, steps=8, *, v=1, pause=lambda step: None, **limits):
    """The batches of a whole run."""
    batches = []
    with collector(engine, steps, **limits) as source:
        for step in range(steps):
            batches.append(turn(source, step, v))
            pause(step)
    return batches
