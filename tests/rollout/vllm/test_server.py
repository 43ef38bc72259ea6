"""The next action on a server as a function of what is known, and the limits of patience."""

import asyncio
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import PublishRefused, Refused, RolloutError, Unavailable
from ogrpo.rollout.vllm.capabilities import check_sampling
from ogrpo.rollout.vllm.push import load
from ogrpo.rollout.vllm.server import Observed, Trust, next_action
from tests.rollout.vllm.staged import Staged
from tests.rollout.vllm.test_schedules import OPTIONS, PROMPTS, SETTLED, Schedules, target


@contextmanager
def started(*staged, in_flight="wait", **options):
    """A fleet over the servers, once all were looked at."""
    machine = Schedules()
    machine.staged, machine.options = [*staged], replace(OPTIONS, **options)
    machine.in_flight = in_flight
    try:
        machine.run(machine.start())
        yield machine
    finally:
        machine.run(machine.fleet.close())
        machine.loop.close()


@contextmanager
def published(*staged):
    """The same, right after it has published."""
    with started(*staged) as machine:
        machine.run(machine.fleet.publish(target(1)))
        yield machine


OLD, NEW = SimpleNamespace(name="old"), SimpleNamespace(name="new")
FRESH = Observed(capabilities=object(), instance="1", trust=Trust.FULL)
SERVES = replace(FRESH, target=OLD, proven=OLD)


@pytest.mark.parametrize(
    ("observed", "action"),
    [
        (Observed(), "inspect"),
        (Observed(trust=Trust.DOUBTED, doubt=ValueError()), "back off"),
        (Observed(trust=Trust.BACKED_OFF, doubt=ValueError()), "inspect"),
        (replace(FRESH, trust=Trust.INSPECTED), "trust"),
        (FRESH, None),
        (replace(FRESH, target=OLD), "push"),
        (SERVES, None),
        (replace(SERVES, drawn=True), None),  # nobody asks yet
        (replace(SERVES, awaited=True), "prove"),
        (replace(SERVES, target=NEW), "push"),
        (replace(SERVES, target=NEW, drawn=True), "prove"),  # before the weights change
        (replace(SERVES, trust=Trust.INSPECTED), "prove"),
        (replace(SERVES, trust=Trust.INSPECTED, target=NEW), "prove"),
        (replace(SERVES, trust=Trust.PROVEN, target=NEW), "push"),
        (replace(SERVES, trust=Trust.PROVEN), "trust"),
        (replace(SERVES, trust=Trust.INSPECTED, proven=None), "push"),
        (replace(SERVES, target=None, drawn=True), None),
    ],
)
def test_the_next_action_follows_from_what_is_known(observed, action):
    assert next_action(observed) == action


def test_what_one_server_refuses_none_serves():
    with published(Staged(), Staged()) as machine:
        machine.staged[1].faults["load"] = "garbage"
        with pytest.raises(PublishRefused, match="it goes on serving version 1"):
            machine.run(machine.fleet.publish(target(2)))
        for version in (1, 3):
            if version == 3:
                machine.run(machine.fleet.publish(target(version)))
            machine.run(asyncio.sleep(SETTLED))
            assert [one.weights for one in machine.staged] == [version] * 2
            machine.run(machine.draw())


@pytest.mark.parametrize(
    ("share", "remedy"),
    [
        (None, r"must see that path.*publish by URL"),
        (SimpleNamespace(url="http://trainer:1", token=""), "room .* reach .*`listen` and `adver"),
    ],
)
def test_weights_out_of_reach_are_named_with_the_remedy_of_their_transport(share, remedy):
    staged = Staged()
    with published(staged) as machine:
        staged.faults["load"] = "unreachable"
        (server,), (able,) = machine.servers, machine.fleet.capabilities
        with pytest.raises(Unavailable, match=remedy):
            machine.run(load(server.api, able, target(2).release, share=share))


def test_weights_that_a_slow_server_refuses_too_late_do_not_stop_the_next_ones():
    fast, slow = Staged(), Staged()
    with published(fast, slow) as machine:
        slow.freeze()
        machine.run(machine.fleet.publish(target(2)))  # does not wait for the slow one
        slow.faults["load"] = "garbage"
        publishing = machine.loop.create_task(machine.fleet.publish(target(3)))
        machine.run(asyncio.sleep(0))
        slow.thaw()
        machine.run(publishing)
        machine.run(asyncio.sleep(SETTLED))
        assert [one.weights for one in machine.staged] == [3, 3]


def test_raw_log_probs_are_found_out_and_serve_at_temperature_one():
    staged = Staged()
    staged.raw = True
    with published(staged) as machine:
        (able,) = machine.fleet.capabilities
    assert able.log_probs == "raw"
    check_sampling(able, Sampling(1.0, 12, 4), 1)
    for sampling in (Sampling(0.7, 12, 4), Sampling(1.0, 12, 4, top_k=3)):
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            check_sampling(able, sampling, 1)


def test_a_server_that_comes_back_with_other_log_probs_is_left_out_until_it_is_as_it_was():
    first, second = Staged(), Staged()
    with published(first, second) as machine:
        for raw in (True, False):
            second.kill()
            second.raw = raw
            second.start()
            machine.run(machine.draw())
            machine.run(asyncio.sleep(SETTLED))
            doubt = machine.servers[1].observed.doubt
            assert isinstance(doubt, Unavailable) == raw
            assert not raw or "serves float32 and raw log-probs since a new start" in str(doubt)
            for able in machine.fleet.capabilities:
                check_sampling(able, Sampling(0.7, 12, 4), 1)
            machine.run(machine.fleet.publish(target(3 - raw)))
            machine.run(machine.draw())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", '{"data": [{"id": "policy", "max_model_len": 1e999}]}'),
        ("/get_world_size", '{"world_size": 1e999}'),
        (
            "/v1/completions",
            f'{{"choices": [{{"logprobs": {{"top_logprobs": [{{"1": {10**400}}}]}}}}]}}',
        ),
    ],
)
def test_an_odd_answer_at_the_start_is_asked_for_again_and_named(path, body):
    with (
        pytest.raises(Unavailable, match=f"{path} answered"),
        started(Failing(lambda at, _: at == path, 200, body), wait=5.0),
    ):
        pass


class CutOff(Staged):
    """Aborts what is under way where a push says so."""

    def _begin(self):
        super()._begin()
        self._cut = asyncio.Event()

    async def pause(self, body, query):
        if query["mode"] == "abort":
            self._cut.set()
            self._cut = asyncio.Event()
        return await super().pause(body, query)

    async def _drawn(self, path, body):
        cut, answer = self._cut, await super()._drawn(path, body)
        aborted = {"choices": [{"index": 0, "finish_reason": "abort"}]}
        return answer | aborted if cut.is_set() and "sampling_params" in body else answer


def test_completions_that_pushes_of_ours_cut_off_are_drawn_again_at_no_cost():
    with started(CutOff(), in_flight="abort") as machine:
        machine.run(machine.fleet.publish(target(1)))
        work = machine.fleet.generate(PROMPTS[:1], Sampling(1.0, 15, 2), 0)  # of 3 s
        draw = machine.loop.create_task(work)
        pushes = OPTIONS.attempts + 2
        for version in range(2, 2 + pushes):
            machine.run(asyncio.sleep(1.5))
            machine.run(machine.fleet.publish(target(version)))
        (group,) = machine.run(draw)
        assert {c.policy_version for c in group.completions} == {1 + pushes}
        assert machine.counts["rollout/refused"] == 0
        assert machine.counts["discarded_groups"] >= OPTIONS.attempts - 1


class Failing(Staged):
    """Answers requests for which `fails(path, body)` holds with a status and a body."""

    def __init__(self, fails, status=503, body='{"error": {"message": "not now"}}'):
        super().__init__()
        self.fails, self.status, self.body = fails, status, body

    async def handle_async_request(self, request):
        if self.fails(request.url.path, request.content.decode()):
            return httpx.Response(self.status, content=self.body)
        return await super().handle_async_request(request)


def test_a_proof_without_an_answer_costs_neither_samples_nor_attempts():
    """One 503 of a proxy: the question is asked again, and what was drawn is kept."""
    staged = Staged()
    with published(staged) as machine:
        staged.faults["completions"] = "refuse"  # samples are drawn by the native dialect
        machine.run(machine.draw())
        assert machine.counts["servers/proofs_unanswered"] == 1
        assert machine.counts["discarded_groups"] == 0
        assert machine.counts["servers/proofs_failed"] == 0


def test_patience_and_not_attempts_ends_a_run_whose_proofs_are_unanswered():
    """Proofs after a batch go unanswered for a while, those of a push are answered."""
    until = None

    def fails(path, body):
        return until is not None and "prompt_logprobs" in body and machine.loop.time() < until

    with published(Failing(fails)) as machine:
        until = machine.loop.time() + OPTIONS.patience / 2
        machine.run(machine.draw())  # more than `attempts` proofs went unanswered meanwhile
        assert machine.counts["servers/proofs_unanswered"] >= OPTIONS.attempts
        until = machine.loop.time() + 100 * OPTIONS.patience
        with pytest.raises(RolloutError, match="no server has been ready for 120 s"):
            machine.run(machine.draw())
        machine.servers[0].doubts(Unavailable("over"))


class Replaced(Staged):
    """Gets other weights from somebody whenever it has drawn."""

    async def _drawn(self, path, body):
        answer = await super()._drawn(path, body)
        if body.get("sampling_params", {}).get("max_tokens", 1) > 1:
            self.weights = 500
        return answer


def test_attempts_end_a_run_whose_proofs_fail():
    with published(Replaced()) as machine:
        with pytest.raises(RolloutError, match=f"discarded {OPTIONS.attempts} times, as servers"):
            machine.run(machine.draw())
        assert machine.counts["servers/proofs_failed"] >= OPTIONS.attempts
        assert machine.counts["servers/proofs_unanswered"] == 0


@pytest.mark.parametrize(
    ("status", "path", "message"),
    [
        (404, "/collective_rpc", "takes no weights: start vLLM.*VLLM_SERVER_DEV_MODE=1"),
        (500, "/v1/completions", "completions answered 500: not now"),
    ],
)
def test_a_server_that_can_never_answer_is_told_from_one_that_is_busy(status, path, message):
    refusal = (status, 1e6, Refused, f"{message}.*asked 6 times")
    for answer, wait, error, said in (refusal, (503, 300.0, Unavailable, "answered 503")):
        staged = Failing(lambda at, _: at == path, answer)
        with pytest.raises(error, match=said), started(staged, wait=wait):
            pass
