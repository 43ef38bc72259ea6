"""Answers that are not what was ordered, over HTTP: refused, counted, and asked for again."""

import json
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.endpoint import BadRequest
from ogrpo.rollout.vllm import errors
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.conftest import Farm

CONFIG = world.decoder()
SAMPLING = Sampling(temperature=1.0, max_tokens=12, group_size=4)


def content_of(choice):
    """Returns the log-probs of a choice, in either dialect."""
    return choice["logprobs"].get("content") or choice["logprobs"]["token_logprobs"]


def set_log_prob(choice, value):
    """Sets the last token's log-prob."""
    content = content_of(choice)
    content[-1] = {**content[-1], "logprob": value} if "weight_versions" in choice else value


def set_token(choice, value):
    choice["token_ids"][0] = value


def set_span(choice, **changes):
    choice["weight_versions"][0].update(changes)


def drop(choice, count=1):
    """The last tokens."""
    del choice["token_ids"][-count:]
    del content_of(choice)[-count:]
    for span in choice.get("weight_versions", ()):
        span["end"] -= count


def lengthen(choice):
    """Beyond the limit, all of it in order otherwise."""
    extra, content = SAMPLING.max_tokens, content_of(choice)
    choice["token_ids"][:0] = [1] * extra
    content[:0] = [content[0]] * extra
    for span in choice.get("weight_versions", ()):
        span["end"] += extra


def on_one(change):
    """A fault of the second choice of an answer."""

    def applied(reply):
        change(reply["choices"][1])
        return reply

    return applied


def on_all(change):
    def applied(reply):
        return {**reply, "choices": change(reply["choices"])}

    return applied


def one_unlikely(choices):
    """One completion for all, of a chance of exp(-50) or less at which that is no accident."""
    set_log_prob(choices[0], -50.0)
    return [{**choices[0], "index": n} for n in range(len(choices))]


def fails(status):
    def applied(_):
        raise BadRequest("somebody is in between", status)

    return applied


def to_another(reply):
    """The answer to another request, whole in itself."""
    return {**reply, "request_id" if "request_id" in reply else "id": "cmpl-0123456789abcdef"}


def for_another_prompt(reply):
    holder = reply if "request_id" in reply else reply["choices"][1]
    holder["prompt_token_ids"] = [11, 12]
    return reply


LOG_PROBS = (5.0, float("nan"), None, float("-inf"), -9999.0, "-0.5", -(10**400))
"""One above 0, and vLLM's minus infinity, among those that are no log-probs."""
IDS = (1.7, True, None, 2**40, world.VOCAB, -1)
# What is wrong with the second choice of an answer, and the reason by which it is counted.
OF_ONE = {
    **{f"a log-prob of {x!r:.9}": (partial(set_log_prob, value=x), "log_probs") for x in LOG_PROBS},
    **{f"an id of {x}": (partial(set_token, value=x), "tokens") for x in IDS},
    "a log-prob too few": (lambda c: c["token_ids"].append(world.EOS), "log_probs"),
    "no token": (lambda c: drop(c, len(c["token_ids"])), "tokens"),
    "more tokens than the limit": (lengthen, "length"),
    "cut off below the limit": (lambda c: (drop(c), c.update(finish_reason="length")), "length"),
    "no finish_reason": (lambda c: c.pop("finish_reason"), "finish"),
    "finish_reason null": (lambda c: c.update(finish_reason=None), "finish"),
    "an end of another kind": (lambda c: c.update(finish_reason="repetition"), "finish"),
    "a stop without the end token": (
        lambda c: (c.update(finish_reason="stop"), c["token_ids"].__setitem__(-1, 0)),
        "finish",
    ),
    "an abort": (lambda c: c.update(finish_reason="abort"), "aborted"),
    "an abort before the first token": (
        lambda c: c.update(finish_reason="abort", token_ids=None, logprobs=None),
        "aborted",
    ),
    "no token_ids": (lambda c: c.pop("token_ids"), "malformed"),
    "no logprobs": (lambda c: c.pop("logprobs"), "malformed"),
    "logprobs null": (lambda c: c.update(logprobs=None), "malformed"),
}
OF_ONE_NATIVE = {  # in the dialect that tells of versions alone
    "a version that nobody published": (partial(set_span, version="7"), "version"),
    "a version of a token too few": (partial(set_span, start=1), "version"),
    "a version without a number": (partial(set_span, version=1), "malformed"),
    "a token without a log-prob": (lambda c: content_of(c)[0].pop("logprob"), "malformed"),
    "log-probs without their tokens": (lambda c: c["logprobs"].update(content=[0.0]), "malformed"),
    "spans of text": (lambda c: c.update(weight_versions="v1"), "malformed"),
}
REPLIES = (
    {"object": "text_completion"},
    {"choices": None},
    {"choices": ["", ""]},
    {"error": {"message": "overloaded"}},
    [{"choices": []}],
)
# What is wrong with a whole answer.
FAULTS = {
    **{name: (on_one(change), why) for name, (change, why) in (OF_ONE | OF_ONE_NATIVE).items()},
    **{f"{reply}": (lambda _, reply=reply: reply, "malformed") for reply in REPLIES},
    **{f"{status}": (fails(status), f"status_{status}") for status in (404, 401)},
    **{f"{status}": (fails(status), None) for status in (429, 503)},
    "the answer to another request": (to_another, "order"),
    "the answer to another prompt": (for_another_prompt, "order"),
    "a choice missing": (on_all(lambda choices: choices[:-1]), "count"),
    "a choice too many": (on_all(lambda x: [*x, {**x[0], "index": len(x)}]), "count"),
    "a choice twice": (on_all(lambda choices: [choices[0], *choices[:-1]]), "repeated"),
    "one completion under several indices": (on_all(one_unlikely), "repeated"),
    "half a body": (lambda reply: json.dumps(reply)[: len(json.dumps(reply)) // 2], None),
    "brackets without end": (lambda reply: "[" * 100_000, None),
}


class Lying:
    """A server that answers as it should but for the samples that it is told to spoil."""

    def __init__(self, farm, **options):
        self.endpoint = farm.start(**options)
        self.place = self.endpoint.url.removeprefix("http://")
        self.fault, self.left, self.spoilt = None, 0, 0
        service = self.endpoint.service
        for name in ("complete", "generate"):
            setattr(service, name, self._lie(getattr(service, name)))

    def _lie(self, answer):
        def lying(body):
            reply = answer(body)
            params = body.get("sampling_params", body)
            if not self.left or params.get("max_tokens") == 1:
                return reply
            self.left -= 1
            self.spoilt += 1
            return self.fault(reply)

        return lying

    def spoil(self, fault, count=1):
        self.fault, self.left, self.spoilt = fault, count, 0


@pytest.fixture(autouse=True)
def _without_rests(monkeypatch):
    monkeypatch.setattr(errors, "FIRST_BACKOFF", 0.01)


@pytest.fixture(scope="module", params=[True, False], ids=["native", "portable"])
def bridge(request, folders):
    """A server and an engine that has published to it, for all faults one after the other."""
    with ExitStack() as stack:
        server = Lying(Farm(folders, stack), native=request.param)
        engine = stack.enter_context(contract.connect([server.endpoint.url], CONFIG))
        params = world.make_params(CONFIG, 0)
        engine.publish(params, 1)
        yield server, engine, params


def check_whole(engine, params, prompts=world.PROMPTS):
    groups = engine.generate(prompts, SAMPLING, 1)
    contract.check_groups(groups, prompts, SAMPLING)
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
    return groups


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_that_is_not_what_was_ordered_is_counted_and_asked_for_again(bridge, name):
    server, engine, params = bridge
    if name in OF_ONE_NATIVE and not engine.capabilities[0].native:
        pytest.skip("this dialect tells of no versions")
    fault, reason = FAULTS[name]
    before = dict(engine.counts)
    server.spoil(fault)
    check_whole(engine, params)
    assert server.spoilt == 1
    counted = {k: n - before.get(k, 0) for k, n in engine.counts.items() if n > before.get(k, 0)}
    if reason is None:
        assert counted["failed_requests"] == 1
        return
    for kind in ("", f"/{reason}", f"/{reason}/{server.place}"):
        assert counted[f"rollout/refused{kind}"] == SAMPLING.group_size


def test_what_could_be_drawn_is_recorded_whole(bridge):
    """In either dialect: the three likeliest tokens of each place, or fewer, and their law."""
    _, engine, params = bridge
    sampling = Sampling(0.8, max_tokens=3, group_size=4, top_k=3, top_p=0.9, record=3)
    for group in engine.generate(world.PROMPTS, sampling, 1):
        law = np.log(world.next_token_probs(CONFIG, params, group.prompt_ids)) / 0.8
        best = np.argsort(-law)[:3]
        share = np.exp(law[best]) / np.exp(law[best]).sum()
        share = share[: np.sum(np.cumsum(share) - share < 0.9)]
        for c in group.completions:
            expected = np.where(np.arange(3) < len(share), best, -1)
            np.testing.assert_array_equal(c.top_ids[0], expected)
            np.testing.assert_allclose(np.exp(c.top_log_probs).sum(axis=1), 1, rtol=1e-4)
            left = np.exp(c.top_log_probs[0, : len(share)])
            np.testing.assert_allclose(left, share / share.sum(), rtol=1e-3)
            assert np.all(np.any(c.top_ids == c.token_ids[:, None], axis=1))


def test_a_server_that_lies_every_time_leaves_its_work_to_the_other(farm):
    lying, honest = Lying(farm), Lying(farm)
    params = world.make_params(CONFIG, 0)
    urls = [lying.endpoint.url, honest.endpoint.url]
    with contract.connect(urls, CONFIG, per_server=2, attempts=3) as engine:
        engine.publish(params, 1)
        lying.spoil(on_one(lambda c: set_log_prob(c, 5.0)), count=1 << 30)
        groups = check_whole(engine, params, world.PROMPTS * 6)
        assert lying.spoilt > 1
        assert engine.counts[f"rollout/refused/log_probs/{lying.place}"] == 4 * lying.spoilt
        assert f"rollout/refused/log_probs/{honest.place}" not in engine.counts
    drawn = [c for group in groups for c in group.completions]
    assert max(float(c.log_probs.max()) for c in drawn) <= 0
