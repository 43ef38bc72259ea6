"""256 rollouts at once through collector, client and HTTP: none lost, none doubled."""

import threading
from collections import Counter

import numpy as np

from ogrpo.rollout.collection import Request
from ogrpo.rollout.vllm import errors
from tests.rollout.collection.scripted import LONG, SAMPLING, collector
from tests.rollout.vllm import contract, world

CONFIG = world.decoder()
MANY, WORKERS, STEPS = 256, 8, 2
SPOILT = 5


def prompt(number):
    """Another one for each number."""
    return np.array([number % 13, number // 13 % 13, number // 169], np.int32)


def request_at(step):
    numbers = range(step * MANY, (step + 1) * MANY)
    return Request(step, numbers, [prompt(n) for n in numbers], seed=step)


class Ledger:
    """A server that records its completions by prompt, and has all of a batch at once."""

    def __init__(self, service):
        self.served, self.prompts = {}, Counter()
        self._batch, self._lock = threading.Barrier(MANY), threading.Lock()
        self._answer, service.generate = service.generate, self._generate

    def _generate(self, body):
        token_ids = tuple(body["token_ids"])
        if body["sampling_params"]["max_tokens"] == 1:  # a look at what the server can do
            return self._answer(body)
        with self._lock:
            self.prompts[token_ids] += 1
            first = self.prompts[token_ids] == 1
        if first:
            self._batch.wait(LONG)  # nothing is answered before all of the batch is here
        reply = self._answer(body)
        if first and sum(token_ids) % SPOILT == 0:
            reply["choices"][0]["logprobs"]["content"][0]["logprob"] = 5.0
        else:
            drawn = [choice["token_ids"] for choice in reply["choices"]]
            self.served.setdefault(token_ids, []).append(drawn)
        return reply


def test_256_rollouts_at_once_are_each_handed_out_once(farm, monkeypatch):
    monkeypatch.setattr(errors, "FIRST_BACKOFF", 0.01)
    server = farm.start()
    limits = {"workers": WORKERS, "prompts_per_call": MANY // WORKERS}
    with (
        contract.connect([server.url], CONFIG, per_server=MANY) as engine,
        collector(engine, STEPS, request_at, **limits) as source,
    ):
        ledger = Ledger(server.service)
        taken = []
        for step in range(STEPS):
            source.publish(world.make_params(CONFIG, step), step)
            taken += source.take(step).groups
        counts = dict(engine.counts)
    prompts = [tuple(prompt(n).tolist()) for n in range(STEPS * MANY)]
    assert [tuple(group.prompt_ids.tolist()) for group in taken] == prompts
    # Every answer that was whole was handed out, and nothing that no server gave.
    assert {key: len(groups) for key, groups in ledger.served.items()} == dict.fromkeys(prompts, 1)
    for key, group in zip(prompts, taken, strict=True):
        assert [c.token_ids.tolist() for c in group.completions] == ledger.served[key][0]
    spoilt = sum(sum(key) % SPOILT == 0 for key in prompts)
    assert counts["rollout/refused/log_probs"] == spoilt * SAMPLING.group_size > 0
    assert sum(ledger.prompts.values()) == counts["requests"] == len(prompts) + spoilt
    assert "failed_requests" not in counts
