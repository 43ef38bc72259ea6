"""The next action on a server as a function of what is known, and the limits of patience."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from ogrpo.rollout.vllm import Refused, RolloutError, Unavailable
from ogrpo.rollout.vllm.server import Observed, Trust, next_action
from tests.rollout.vllm.staged import Staged
from tests.rollout.vllm.test_schedules import OPTIONS, Schedules, target


@contextmanager
def published(*staged):
    """A fleet over the servers, right after it has published."""
    machine = Schedules()
    machine.staged = [*staged]
    try:
        machine.run(machine.start())
        begin = machine.loop.time()
        machine.run(machine.fleet.publish(target(1)))
        machine.took = machine.loop.time() - begin
        yield machine
        machine.run(machine.fleet.close())
    finally:
        machine.loop.close()


OLD, NEW = SimpleNamespace(name="old"), SimpleNamespace(name="new")
FRESH = Observed(capabilities=object(), instance="1", trust=Trust.FULL)
SERVES = replace(FRESH, target=OLD, proven=OLD)


@pytest.mark.parametrize(
    ("observed", "action"),
    [
        (Observed(), "meet"),
        (Observed(trust=Trust.DOUBTED, doubt=ValueError()), "rest"),
        (Observed(trust=Trust.RESTED, doubt=ValueError()), "meet"),
        (replace(FRESH, trust=Trust.MET), "trust"),
        (FRESH, None),
        (replace(FRESH, target=OLD), "push"),
        (SERVES, None),
        (replace(SERVES, drawn=True), None),  # nobody asks yet
        (replace(SERVES, awaited=True), "prove"),
        (replace(SERVES, target=NEW), "push"),
        (replace(SERVES, target=NEW, drawn=True), "prove"),  # before the weights change
        (replace(SERVES, trust=Trust.MET), "prove"),
        (replace(SERVES, trust=Trust.MET, target=NEW), "prove"),
        (replace(SERVES, trust=Trust.PROVEN, target=NEW), "push"),
        (replace(SERVES, trust=Trust.PROVEN), "trust"),
        (replace(SERVES, trust=Trust.MET, proven=None), "push"),
        (replace(SERVES, target=None, drawn=True), None),
    ],
)
def test_the_next_action_follows_from_what_is_known(observed, action):
    assert next_action(observed) == action


class Failing(Staged):
    """Answers requests for which `fails` holds with a status."""

    def __init__(self, status=503, fails=lambda staged, path, body: False):
        super().__init__()
        self.status, self.fails, self.failed = status, fails, 0

    async def handle_async_request(self, request):
        if self.fails(self, request.url.path, request.content.decode()):
            self.failed += 1
            return httpx.Response(self.status, json={"error": {"message": "not now"}})
        return await super().handle_async_request(request)


def is_proof(path, body):
    return "prompt_logprobs" in body


def test_a_proof_without_an_answer_costs_neither_samples_nor_attempts():
    """One 503 of a proxy: the question is asked again, and what was drawn is kept."""
    staged = Failing(fails=lambda one, path, body: is_proof(path, body) and one.failed < 1)
    staged.failed = 1
    with published(staged) as machine:
        staged.failed = 0
        machine.run(machine.draw())
        assert staged.failed == 1
        assert machine.counts["servers/proofs_unanswered"] == 1
        assert machine.counts["discarded_groups"] == 0
        assert machine.counts["servers/proofs_failed"] == 0


def test_patience_and_not_attempts_ends_a_run_whose_proofs_are_unanswered():
    """Proofs after a batch go unanswered for a while, those of a push are answered."""

    def fails(one, path, body):
        return one.broken and is_proof(path, body) and machine.loop.time() < until

    staged = Failing(fails=fails)
    staged.broken, until = False, 0.0
    with published(staged) as machine:
        staged.broken, until = True, machine.loop.time() + OPTIONS.patience / 2
        machine.run(machine.draw())  # more than `attempts` proofs went unanswered meanwhile
        assert machine.counts["servers/proofs_unanswered"] >= OPTIONS.attempts
        until = machine.loop.time() + 100 * OPTIONS.patience
        with pytest.raises(RolloutError, match="no server has answered for 120 s"):
            machine.run(machine.draw())
        machine.servers[0].doubts(Unavailable("over"))


def test_attempts_end_a_run_whose_proofs_fail():
    staged = Failing()
    with published(staged) as machine:
        draw = staged._drawn

        async def drawn(path, body):
            answer = await draw(path, body)
            if "sampling_params" in body and body["sampling_params"]["max_tokens"] > 1:
                staged.weights = 500  # somebody loads others each time
            return answer

        staged._drawn = drawn
        with pytest.raises(RolloutError, match=f"discarded {OPTIONS.attempts} times, as servers"):
            machine.run(machine.draw())
        assert machine.counts["servers/proofs_failed"] >= OPTIONS.attempts
        assert machine.counts["servers/proofs_unanswered"] == 0


def begin(staged, **options):
    machine = Schedules()
    machine.staged, machine.options = [staged], replace(OPTIONS, **options)
    try:
        machine.run(machine.start())
    finally:
        machine.run(machine.fleet.close())
        machine.took = machine.loop.time()
        machine.loop.close()
    return machine


@pytest.mark.parametrize(
    ("status", "path", "message"),
    [
        (
            404,
            "/collective_rpc",
            r"takes no weights: start vLLM.*VLLM_SERVER_DEV_MODE=1.*asked 6 times",
        ),
        (500, "/v1/completions", r"completions answered 500: not now.*asked 6 times"),
    ],
)
def test_a_server_that_can_never_answer_is_told_from_one_that_is_busy(status, path, message):
    with pytest.raises(Refused, match=message):
        begin(Failing(status, lambda one, at, _: at == path), patience=1e6)
    with pytest.raises(Unavailable, match="answered 503"):
        begin(Failing(503, lambda one, at, _: at == path), patience=300.0)


class Swapping(Staged):
    """Gives the first two requests for samples each other's answer."""

    def __init__(self):
        super().__init__()
        self.kept, self.both = [], asyncio.Event()

    async def _drawn(self, path, body):
        answer = await super()._drawn(path, body)
        if body.get("sampling_params", {}).get("max_tokens", 1) == 1 or len(self.kept) == 2:
            return answer
        self.kept.append(answer)
        if len(self.kept) == 2:
            self.both.set()
        await self.both.wait()
        return next(other for other in self.kept if other is not answer)


def test_answers_that_a_proxy_swaps_are_refused_by_server_and_asked_for_again():
    with published(Swapping()) as machine:
        machine.run(machine.draw())
        assert machine.counts["rollout/refused/order"] == 4  # two groups of two
        assert machine.counts["rollout/refused/order/server0"] == 4
        assert machine.counts["rollout/refused"] == 4
