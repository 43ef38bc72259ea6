"""Answers that are not what was ordered, over HTTP: refused, counted, and asked for again."""

import json
from contextlib import ExitStack

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.endpoint import BadRequest
from ogrpo.rollout.vllm import errors
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.conftest import Farm

CONFIG = world.decoder()
SAMPLING = Sampling(temperature=1.0, max_tokens=12, group_size=4)


def set_log_prob(choice, value):
    """Sets the last token's log-prob, in either dialect."""
    if "content" in choice["logprobs"]:
        choice["logprobs"]["content"][-1]["logprob"] = value
    else:
        choice["logprobs"]["token_logprobs"][-1] = value


def set_token(choice, value):
    choice["token_ids"][0] = value


def drop(choice, count=1):
    """The last tokens."""
    del choice["token_ids"][-count:]
    content = choice["logprobs"].get("content") or choice["logprobs"]["token_logprobs"]
    del content[-count:]
    for span in choice.get("weight_versions", ()):
        span["end"] -= count


def lengthen(choice):
    """Beyond the limit, all of it in order otherwise."""
    extra = SAMPLING.max_tokens
    choice["token_ids"][:0] = [1] * extra
    content = choice["logprobs"].get("content") or choice["logprobs"]["token_logprobs"]
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


# What is wrong with an answer, and the reason by which it is counted.
FAULTS = {
    "a log-prob of +5": (on_one(lambda c: set_log_prob(c, 5.0)), "log_probs"),
    "a log-prob of NaN": (on_one(lambda c: set_log_prob(c, float("nan"))), "log_probs"),
    "a log-prob of null": (on_one(lambda c: set_log_prob(c, None)), "log_probs"),
    "a log-prob of -inf": (on_one(lambda c: set_log_prob(c, float("-inf"))), "log_probs"),
    "a log-prob of -9999, vLLM's -inf": (on_one(lambda c: set_log_prob(c, -9999.0)), "log_probs"),
    "a log-prob as text": (on_one(lambda c: set_log_prob(c, "-0.5")), "log_probs"),
    "a log-prob of 400 digits": (on_one(lambda c: set_log_prob(c, -(10**400))), "log_probs"),
    "a log-prob too few": (on_one(lambda c: c["token_ids"].append(world.EOS)), "log_probs"),
    "an id of 1.7": (on_one(lambda c: set_token(c, 1.7)), "tokens"),
    "an id of true": (on_one(lambda c: set_token(c, True)), "tokens"),
    "an id of null": (on_one(lambda c: set_token(c, None)), "tokens"),
    "an id of 2^40": (on_one(lambda c: set_token(c, 2**40)), "tokens"),
    "an id beyond the vocabulary": (on_one(lambda c: set_token(c, world.VOCAB)), "tokens"),
    "a negative id": (on_one(lambda c: set_token(c, -1)), "tokens"),
    "no token": (on_one(lambda c: drop(c, len(c["token_ids"]))), "tokens"),
    "more tokens than the limit": (on_one(lengthen), "length"),
    "cut off below the limit": (
        on_one(lambda c: (drop(c), c.update(finish_reason="length"))),
        "length",
    ),
    "no finish_reason": (on_one(lambda c: c.pop("finish_reason")), "finish"),
    "finish_reason null": (on_one(lambda c: c.update(finish_reason=None)), "finish"),
    "an end of another kind": (on_one(lambda c: c.update(finish_reason="repetition")), "finish"),
    "a stop without the end token": (
        on_one(lambda c: (c.update(finish_reason="stop"), c["token_ids"].__setitem__(-1, 0))),
        "finish",
    ),
    "an abort": (on_one(lambda c: c.update(finish_reason="abort")), "aborted"),
    "an abort before the first token": (
        on_one(lambda c: c.update(finish_reason="abort", token_ids=None, logprobs=None)),
        "aborted",
    ),
    "the answer to another request": (to_another, "order"),
    "the answer to another prompt": (for_another_prompt, "order"),
    "a choice missing": (on_all(lambda choices: choices[:-1]), "count"),
    "a choice too many": (
        on_all(lambda choices: [*choices, {**choices[0], "index": len(choices)}]),
        "count",
    ),
    "a choice twice": (on_all(lambda choices: [choices[0], *choices[:-1]]), "repeated"),
    "no token_ids": (on_one(lambda c: c.pop("token_ids")), "malformed"),
    "no logprobs": (on_one(lambda c: c.pop("logprobs")), "malformed"),
    "logprobs null": (on_one(lambda c: c.update(logprobs=None)), "malformed"),
    "no choices": (lambda reply: {"object": "text_completion"}, "malformed"),
    "choices null": (lambda reply: {"choices": None}, "malformed"),
    "choices of text": (lambda reply: {"choices": ["", ""]}, "malformed"),
    "an error under 200": (lambda reply: {"error": {"message": "overloaded"}}, "malformed"),
    "a list": (lambda reply: [reply], "malformed"),
    "404": (fails(404), "status_404"),
    "401": (fails(401), "status_401"),
    "429": (fails(429), None),
    "503": (fails(503), None),
    "half a body": (lambda reply: json.dumps(reply)[: len(json.dumps(reply)) // 2], None),
    "brackets without end": (lambda reply: "[" * 100_000, None),
}
ONLY_NATIVE = {
    "a version that nobody published": (
        on_one(lambda c: c["weight_versions"][0].update(version="7")),
        "version",
    ),
    "a version of a token too few": (
        on_one(lambda c: c["weight_versions"][0].update(start=1)),
        "version",
    ),
    "a version without a number": (
        on_one(lambda c: c["weight_versions"][0].update(version=1)),
        "malformed",
    ),
    "a token without a log-prob": (
        on_one(lambda c: c["logprobs"]["content"][0].pop("logprob")),
        "malformed",
    ),
    "log-probs without their tokens": (
        on_one(lambda c: c["logprobs"].update(content=[0.0])),
        "malformed",
    ),
    "spans of text": (on_one(lambda c: c.update(weight_versions="v1")), "malformed"),
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
    monkeypatch.setattr(errors, "FIRST_REST", 0.01)


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


def check_survived(bridge, fault, reason):
    server, engine, params = bridge
    before = dict(engine.counts)
    server.spoil(fault)
    check_whole(engine, params)
    assert server.spoilt == 1
    counted = {k: n - before.get(k, 0) for k, n in engine.counts.items() if n > before.get(k, 0)}
    if reason is None:
        assert counted["failed_requests"] == 1
        return
    completions = counted["rollout/refused"]
    assert completions in (SAMPLING.group_size, SAMPLING.group_size * len(world.PROMPTS))
    assert counted[f"rollout/refused/{reason}"] == completions
    assert counted[f"rollout/refused/{reason}/{server.place}"] == completions


@pytest.mark.parametrize("name", FAULTS)
def test_an_answer_that_is_not_what_was_ordered_is_counted_and_asked_for_again(bridge, name):
    check_survived(bridge, *FAULTS[name])


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


@pytest.mark.parametrize("name", ONLY_NATIVE)
def test_versions_that_cannot_be_are_refused(bridge, name):
    _, engine, _ = bridge
    if engine.capabilities[0].native:
        check_survived(bridge, *ONLY_NATIVE[name])


def test_one_completion_under_several_indices_is_told_from_chance(bridge):
    """Of a completion too unlikely to come twice; the equal answers of a sure policy are right."""
    server, engine, params = bridge
    before = engine.counts["rollout/refused/repeated"]
    server.spoil(on_all(one_unlikely))
    check_whole(engine, params)
    refused = engine.counts["rollout/refused"]
    assert engine.counts["rollout/refused/repeated"] > before
    # With scores 1,000 times as large every draw of a prompt is the same.
    sure = {**params, "norm": {"weight": params["norm"]["weight"] * np.float32(1000)}}
    engine.publish(sure, 2)
    groups = engine.generate(world.PROMPTS, SAMPLING, 1)
    assert engine.counts["rollout/refused"] == refused
    engine.publish(params, 3)
    same = [len({c.token_ids.tobytes() for c in g.completions}) == 1 for g in groups]
    assert any(same)


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
