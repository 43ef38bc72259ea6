"""The tied policy on two servers that last for the session."""

import json
import threading
import time

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Unavailable
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.weights import Store
from tests.rollout.vllm import contract, updates, world

CONFIG = world.decoder()
LONG = Sampling(temperature=1.0, max_tokens=48, group_size=8)
MANY = [np.array([n % 13, n % 11], np.int32) for n in range(32)]


@pytest.mark.parametrize("which", [0, 1])
def test_log_probs_are_the_trainers_at_every_temperature(fleet, which):
    with contract.connect([fleet[which].url], CONFIG) as engine:
        capability = engine.capabilities[0]
        assert (capability.native, capability.log_probs) == (which == 0, "processed")
        assert capability.echoes == {"prompt", "request"}
        contract.check_log_probs(engine, CONFIG, (1.0, 0.7))


@pytest.mark.parametrize("transport", ["folder", "url"])
def test_pushes_are_proven_one_after_the_other(native, transport):
    with contract.connect([native.url], CONFIG, transport=transport) as engine:
        contract.check_pushes(engine, CONFIG)


def test_completions_are_distributed_as_the_policy(native):
    with contract.connect([native.url], CONFIG) as engine:
        contract.check_distribution(engine, CONFIG)


@pytest.mark.parametrize("kind", contract.GARBAGE)
def test_garbage_is_refused_and_the_live_model_stays(portable, kind, monkeypatch):
    with contract.connect([portable.url], CONFIG) as engine:
        contract.check_garbage(engine, CONFIG, contract.GARBAGE[kind], monkeypatch)


def test_an_update_that_a_dead_trainer_left_open_is_closed(portable, tmp_path):
    store, url = Store(tmp_path, keep=8), portable.url
    first, foreign, third = (updates.write(store, version) for version in (1, 2, 3))

    async def die(api, _):
        await api.start_weight_update()
        staged = {"version": 2, "manifest_sha256": foreign.manifest_sha256}
        await api.update_weights({**staged, "path": str(foreign.folder)}, seconds=20)

    updates.on(url, updates.loading(first))
    updates.on(url, die)
    assert updates.serving(url) == (1, first.sha256)
    updates.on(url, updates.loading(third))
    assert updates.serving(url) == (3, third.sha256)


def test_a_second_update_in_the_middle_of_ours_changes_nothing(native, tmp_path, monkeypatch):
    store, url = Store(tmp_path, keep=8), native.url
    first, second = (updates.write(store, version) for version in (1, 2))
    update, starts = ServerApi.update_weights, []

    async def interrupted(api, body, *, seconds):
        if body.get("install"):
            with pytest.raises(Unavailable, match="500") as refused:
                await api.start_weight_update()
            starts.append(refused.value.status)
        await update(api, body, seconds=seconds)

    updates.on(url, updates.loading(first))
    with monkeypatch.context() as patch:
        patch.setattr(ServerApi, "update_weights", interrupted)
        updates.on(url, updates.loading(second))
    assert starts == [500]
    assert updates.serving(url) == (2, second.sha256)


def test_a_push_leaves_no_prefix_of_older_weights_in_the_cache(portable):
    prompts = [np.tile(np.arange(10, dtype=np.int32), 4)] * 4  # long, and shared
    with contract.connect([portable.url], CONFIG) as engine:
        for version in (1, 2):
            params = world.make_params(CONFIG, version)
            engine.publish(params, version)
            for _ in range(2):
                groups = engine.generate(prompts, Sampling(1.0, 8, 4), 1)
                assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
        assert engine.metrics()["server/prefix_cache_hits"] > 0


def leak(server, params, *, salted, release):
    """Log-prob gap after a load without any reset of the cache, with and without a salt."""
    prompt = [int(n) for n in np.tile(np.arange(12), 5)]
    body = {"model": "policy", "prompt": prompt, "n": 4, "max_tokens": 1, "temperature": 1.0}
    body |= {"logprobs": 0, "return_token_ids": True}
    before, after = ({"cache_salt": text} if salted else {} for text in ("before", "after"))
    ticket = {"version": 9, "manifest_sha256": release.manifest_sha256}

    async def load_in_between(api, _):
        await api.complete(body | before)
        await api.start_weight_update()
        await api.update_weights({**ticket, "path": str(release.folder)}, seconds=60)
        await api.update_weights({**ticket, "install": True}, seconds=60)
        await api.finish_weight_update(None)
        return await api.complete(body | after)

    probs = world.next_token_probs(CONFIG, params, np.array(prompt, np.int32))
    return max(
        abs(choice["logprobs"]["token_logprobs"][0] - float(np.log(probs[choice["token_ids"][0]])))
        for choice in updates.on(server.url, load_in_between)["choices"]
    )


def test_the_salt_alone_keeps_the_prefix_cache_from_leaking(portable, tmp_path):
    store = Store(tmp_path, keep=8)
    gaps = {}
    for n, salted in enumerate((False, True)):
        params = world.make_params(CONFIG, 10 + n)
        release = updates.write(store, 10 + n)
        gaps[salted] = leak(portable, params, salted=salted, release=release)
    assert gaps[True] < contract.EXACT
    # Without it the old weights' keys and values are used: this is the leak.
    assert gaps[False] > 100 * contract.EXACT


def in_flight(server, mode, *, pushes=4):
    """Pushes while two threads draw; the groups, and the policies by version."""
    policies = {v: world.make_params(CONFIG, v % 2) for v in range(1, pushes + 2)}
    groups, stop = [], threading.Event()
    with contract.connect([server.url], CONFIG, in_flight=mode, per_server=32) as engine:
        engine.publish(policies[1], 1)

        def sample():
            while not stop.is_set():
                groups.extend(engine.generate(MANY, LONG, 1))

        threads = [threading.Thread(target=sample, daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for version in range(2, pushes + 2):
            expected = engine.counts["requests"] + 9
            while engine.counts["requests"] < expected:
                time.sleep(0.005)
            engine.publish(policies[version], version)
        stop.set()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
    return groups, policies, engine.counts


@pytest.mark.parametrize("mode", ["wait", "abort"])
@pytest.mark.parametrize("which", [0, 1])
def test_a_push_in_the_middle_of_a_batch_leaves_every_log_prob_exact(fleet, which, mode):
    groups, policies, counts = in_flight(fleet[which], mode)
    grouped = {}
    for group in groups:
        (version,) = {c.policy_version for c in group.completions}
        grouped.setdefault(version, []).append(group)
    assert len(grouped) > 1
    for version, drawn in grouped.items():
        assert world.worst_gap(CONFIG, policies[version], drawn) < contract.EXACT
    if mode == "wait":  # whether a push that aborts meets a completion under way is chance
        assert counts["rollout/refused/aborted"] == 0


def check_versions_of_tokens(server):
    """Every token has the log-prob of the version that its span names; completions of several."""
    groups, policies, _ = in_flight(server, "keep", pushes=24)
    # Two sets of weights take turns, so that two scorings serve every version.
    scores = [world.log_probs(CONFIG, policies[v], groups, 1.0) for v in (2, 1)]
    drawn = [c for g in groups for c in g.completions]
    mixed = 0
    for n, completion in enumerate(drawn):
        spans = completion.version_spans
        assert [s.start for s in spans] == [0, *(s.end for s in spans[:-1])]
        assert spans[-1].end == len(completion.token_ids)
        mixed += len(spans) > 1
        for span in spans:
            part = slice(span.start, span.end)
            gap = np.abs(completion.log_probs[part] - scores[span.version % 2][n][part])
            assert gap.max(initial=0.0) < contract.EXACT
    return mixed


def test_kept_requests_know_the_version_of_every_token(native):
    # Whether a push meets a completion under way is chance, and on a busy machine a rare one.
    assert any(check_versions_of_tokens(native) for _ in range(8))


def test_the_metrics_can_be_written_as_json(native):
    with contract.connect([native.url], CONFIG) as engine:
        engine.publish(world.make_params(CONFIG, 0), 1)
        engine.generate(world.PROMPTS, contract.SAMPLING, 1)
        metrics = json.loads(json.dumps(engine.metrics()))
    assert metrics["server/generated_tokens"] > 0
    assert metrics["sync/probe_gap"] < contract.EXACT
