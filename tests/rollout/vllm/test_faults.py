"""Servers that die, hang, restart or lie, in the middle of a batch."""

import dataclasses
import threading
import time

import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.endpoint import BadRequest
from ogrpo.rollout.vllm import (
    PublishRefused,
    Refused,
    RolloutError,
    Unavailable,
    Unproven,
)
from tests.rollout.vllm import contract, world

pytestmark = pytest.mark.slow

CONFIG = world.decoder()
MANY = world.PROMPTS * 6


def started(farm, params, *endpoints, version=1, **options):
    engine = contract.connect([e.url for e in endpoints], CONFIG, **options)
    engine.publish(params, version)
    return engine


def check(engine, params, prompts=MANY):
    groups = engine.generate(prompts, contract.SAMPLING, 1)
    contract.check_groups(groups, prompts, contract.SAMPLING)
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
    return groups


def during(endpoint, requests, act, *, later=False):
    """Calls `act` when an endpoint has been asked for so many samples, and `later` each time."""
    service, draw = endpoint.service, endpoint.service._sample
    seen = []

    def counted(prompts, options):
        seen.append(1)
        if len(seen) == requests or (later and len(seen) > requests):
            act()
        return draw(prompts, options)

    service._sample = counted


def test_several_servers_share_the_work(farm):
    params = world.make_params(CONFIG, 0)
    a, b = farm.start(), farm.start()
    with started(farm, params, a, b) as engine:
        before = a.service.generated, b.service.generated
        check(engine, params)
        assert a.service.generated > before[0]
        assert b.service.generated > before[1]


def test_a_server_that_dies_in_a_batch_leaves_its_work_to_the_other(farm):
    params = world.make_params(CONFIG, 0)
    a, b = farm.start(), farm.start()
    with started(farm, params, a, b) as engine:
        during(a, 4, lambda: farm.kill(a))
        check(engine, params)
        assert engine.counts["failed_requests"] >= 1
        check(engine, params)


def test_a_server_that_hangs_is_given_up_after_the_timeout(farm):
    params = world.make_params(CONFIG, 0)
    a, b = farm.start(), farm.start()
    with started(farm, params, a, b, timeout=6.0, per_server=2) as engine:
        check(engine, params)
        # Alive, and healthy by its own account, but nothing comes back.
        a.service.pause(drain=False)
        check(engine, params)
        assert engine.counts["failed_requests"] >= 1
        a.service.resume()


def test_a_server_that_restarts_is_pushed_to_before_its_samples_count(farm):
    params = world.make_params(CONFIG, 0)
    a = farm.start()
    with started(farm, params, a) as engine:
        during(a, 5, lambda: farm.restart(a))
        groups = check(engine, params)
        assert {c.policy_version for g in groups for c in g.completions} == {1}
        assert engine.counts["discarded_groups"] + engine.counts["failed_requests"] > 0


@pytest.mark.parametrize("native", [True, False])
def test_samples_of_a_server_that_lost_its_weights_unseen_are_discarded(farm, native):
    params, initial = world.make_params(CONFIG, 0), world.make_params(CONFIG, 100)
    a = farm.start(native=native)
    with started(farm, params, a) as engine:
        # As after a quick restart: nothing fails, but the weights are the first ones again.
        farm.reset(a)
        groups = check(engine, params)
        assert world.worst_gap(CONFIG, initial, groups) > 100 * contract.EXACT
        assert engine.counts["discarded_groups"] > 0


@pytest.mark.parametrize("native", [True, False])
def test_a_failure_does_not_hide_that_samples_before_it_had_lost_their_weights(farm, native):
    params = world.make_params(CONFIG, 0)
    a = farm.start(native=native)
    with started(farm, params, a, per_server=1) as engine:

        def fail():
            raise BadRequest("the engine died", 500)

        during(a, 5, lambda: farm.reset(a))
        during(a, 9, fail)
        check(engine, params)
        assert engine.counts["failed_requests"] == 1
        assert engine.counts["discarded_groups"] > 0


def test_without_any_server_the_run_gives_up_after_its_patience(farm):
    params = world.make_params(CONFIG, 0)
    a = farm.start()
    with started(farm, params, a, timeout=2.0, patience=1.5) as engine:
        farm.kill(a)
        begin = time.monotonic()
        with pytest.raises(RolloutError, match=r"resume\s+the run from its last checkpoint"):
            engine.generate(MANY, contract.SAMPLING, 1)
        assert time.monotonic() - begin < 60


def test_a_server_that_comes_back_is_used_again(farm):
    params = world.make_params(CONFIG, 0)
    a = farm.start()
    with started(farm, params, a, timeout=5.0, patience=60.0) as engine:
        farm.kill(a)
        threading.Timer(1.0, lambda: farm.restart(a)).start()
        check(engine, params)


def test_a_server_that_is_not_there_is_named(farm):
    a = farm.start()
    a.close()
    with pytest.raises(Unavailable, match=a.url):
        contract.connect([a.url], CONFIG, start_patience=0.0)


def test_a_server_that_serves_other_weights_than_it_was_sent_is_quarantined(farm):
    a = farm.start()
    params, stale = world.make_params(CONFIG, 0), world.make_params(CONFIG, 5)
    load = a.service.model.params_fn

    def with_stale_norm(tensors):
        return {**load(tensors), "norm": stale["norm"]}

    a.service.model = dataclasses.replace(a.service.model, params_fn=with_stale_norm)
    with contract.connect([a.url], CONFIG) as engine:
        with pytest.raises(Unproven, match="serves other weights than it was sent"):
            engine.publish(params, 1)
        with pytest.raises(RuntimeError, match="before publish"):
            engine.generate(world.PROMPTS, contract.SAMPLING, 1)


def test_what_one_server_refuses_none_serves(farm):
    params, other = world.make_params(CONFIG, 0), world.make_params(CONFIG, 1)
    a, b = farm.start(), farm.start()
    with started(farm, params, a, b) as engine:
        whole = b.service.model
        b.service.model = dataclasses.replace(whole, shapes={})
        with pytest.raises(PublishRefused, match="it goes on serving version 1"):
            engine.publish(other, 2)
        b.service.model = whole
        assert engine.version == 1
        for _ in range(3):
            groups = check(engine, params)
            assert {c.policy_version for g in groups for c in g.completions} == {1}
        engine.publish(other, 2)
        check(engine, other)


def test_a_push_drains_what_is_in_flight(farm):
    first, second = world.make_params(CONFIG, 0), world.make_params(CONFIG, 1)
    a = farm.start()
    with started(farm, first, a, per_server=4) as engine:
        results, state = [], engine._fleet.servers[0]
        reached = threading.Event()

        def hold():
            reached.set()
            while state.observed.ready and engine.version == 1:
                time.sleep(0.01)

        during(a, 6, hold, later=True)
        thread = threading.Thread(
            target=lambda: results.append(engine.generate(MANY, contract.SAMPLING, 1))
        )
        thread.start()
        assert reached.wait(30)
        engine.publish(second, 2)
        thread.join(60)
        by_version = {1: [], 2: []}
        for group in results[0]:
            versions = {c.policy_version for c in group.completions}
            by_version[versions.pop()].append(group)
            assert not versions
        assert by_version[1]
        assert by_version[2]
        assert world.worst_gap(CONFIG, first, by_version[1]) < contract.EXACT
        assert world.worst_gap(CONFIG, second, by_version[2]) < contract.EXACT


def test_what_would_make_log_probs_wrong_is_refused(farm):
    params = world.make_params(CONFIG, 0)
    raw = farm.start(raw_log_probs=True)
    with started(farm, params, raw) as engine:
        assert engine.capabilities[0].log_probs == "raw"
        check(engine, params)
        with pytest.raises(Refused, match="--logprobs-mode processed_logprobs"):
            engine.generate(MANY, Sampling(0.7, 12, 4), 1)
    with (
        started(farm, params, farm.start()) as engine,
        pytest.raises(Refused, match="raise its --max-model-len"),
    ):
        engine.generate(MANY, Sampling(1.0, world.POSITIONS, 4), 1)


def test_a_server_of_another_model_is_refused_at_the_start(farm):
    a = farm.start()
    with pytest.raises(Refused, match="serves a vocabulary of 16, the trainer's model has 17"):
        contract.connect([a.url], dataclasses.replace(CONFIG, vocab_size=17))
    with pytest.raises(Refused, match="start it with a larger --max-model-len"):
        contract.connect([a.url], CONFIG, max_length=world.POSITIONS + 1)
    with pytest.raises(Refused, match="'keep'"):
        contract.connect([farm.start(native=False).url], CONFIG, in_flight="keep")


def test_what_is_not_compared_is_said(farm):
    a = farm.start()
    with contract.connect([a.url], CONFIG, texts=()) as engine:
        assert "tokenizer      not compared: no texts given" in engine.table()

    def absent(_):
        raise BadRequest("Not Found", 404)

    a.service.detokenize = absent
    with contract.connect([a.url], CONFIG) as engine:
        assert "tokenizer      not compared: no /detokenize" in engine.table()


def test_a_server_without_dev_mode_takes_no_weights(farm):
    with pytest.raises(Refused, match="VLLM_SERVER_DEV_MODE=1"):
        contract.connect([farm.start(dev_mode=False).url], CONFIG, attempts=2)


def test_the_same_seed_gives_the_same_samples_where_the_server_takes_one(farm):
    params = world.make_params(CONFIG, 0)
    with started(farm, params, farm.start()) as engine:
        assert engine.capabilities[0].seeds
        first, again, other = (engine.generate(MANY, contract.SAMPLING, s) for s in (1, 1, 2))

    def tokens(groups):
        return np.concatenate([c.token_ids for g in groups for c in g.completions])

    np.testing.assert_array_equal(tokens(first), tokens(again))
    assert tokens(first).tolist() != tokens(other).tolist()
