"""Adapters pushed alone, to ogrpo's own server; the same contract holds of vLLM in tests/server."""

import threading

import pytest

from ogrpo.rollout.http_server import BadRequest
from ogrpo.rollout.vllm import Refused
from tests.rollout.vllm import contract, world
from tests.rollout.vllm.conftest import Farm

pytestmark = pytest.mark.slow

CONFIG = world.decoder()
MANY = world.PROMPTS * 6


def connected(*endpoints, **options):
    return contract.connect([e.url for e in endpoints], CONFIG, push="adapters", **options)


@pytest.mark.parametrize(("native", "transport"), [(True, "url"), (False, "folder")])
def test_pushes_are_proven_one_after_the_other(farm, native, transport):
    endpoint = farm.start(native=native, lora_rank=8)
    with connected(endpoint, transport=transport) as engine:
        contract.check_adapter_pushes(engine, CONFIG, pulled=transport == "url")


def test_a_part_of_the_projections_may_have_adapters(farm):
    params = world.adapted(CONFIG, 1, rank=3, alpha=7.0, targets="attention")
    with connected(farm.start(lora_rank=8)) as engine:
        engine.publish(params, 0)
        contract.check_log_probs(engine, CONFIG, params, (1.0, 0.7))


# The others are in tests/rollout/test_adapters.py.
@pytest.mark.parametrize("kind", ["nan", "truncated"])
def test_garbage_is_refused_and_the_adapters_before_it_serve_on(farm, kind, monkeypatch):
    with connected(farm.start(lora_rank=8)) as engine:
        contract.check_adapter_garbage(engine, CONFIG, kind, monkeypatch)


def test_requests_under_way_end_with_the_adapters_that_they_began_with(farm):
    """No push waits for them, and none changes what they are drawn from."""
    endpoint = farm.start(lora_rank=8)
    policies = {n: world.adapted(CONFIG, n) for n in (1, 2)}
    with connected(endpoint) as engine:
        engine.publish(policies[1], 1)
        begun, go = threading.Event(), threading.Event()
        draw = endpoint.service._sample

        def held(prompts, options):
            begun.set()
            go.wait(30)
            return draw(prompts, options)

        endpoint.service._sample = held
        drawn = []
        thread = threading.Thread(
            target=lambda: drawn.extend(engine.generate(world.PROMPTS, contract.SAMPLING, 1))
        )
        thread.start()
        assert begun.wait(30)
        engine.publish(policies[2], 2)  # returns although nothing was answered yet
        assert engine.version == 2
        go.set()
        thread.join(60)
        assert not thread.is_alive()
        assert {c.policy_version for g in drawn for c in g.completions} == {1}
        assert world.worst_gap(CONFIG, policies[1], drawn) < contract.EXACT
        assert world.worst_gap(CONFIG, policies[2], drawn) > 100 * contract.EXACT
        assert engine.counts["discarded_groups"] == 0


@pytest.mark.parametrize("failing", [False, True])
def test_a_push_waits_for_requests_of_versions_that_the_server_may_forget(farm, failing):
    """A server reads adapters again that it has evicted, from a copy that does not stay for ever.

    It holds two versions; each attempt that fails puts one more copy on it.
    """
    endpoint = farm.start(lora_rank=8)
    policies = {n: world.adapted(CONFIG, n) for n in (1, 2, 3)}
    with connected(endpoint) as engine:
        engine.publish(policies[1], 1)
        (server,) = engine._fleet.servers
        model = server.take()

        def busy(_):
            raise BadRequest("busy", 503)

        with pytest.MonkeyPatch.context() as patch:
            if failing:
                patch.setattr(endpoint.service.adapters, "load", busy)
            engine.publish(policies[2], 2)
            assert (server.observed.proven is None) == failing
            assert model in endpoint.service.adapters.loaded
            assert server._in_the_way(engine._fleet.target)
        engine._loop.call_soon_threadsafe(server.release, model)
        last = 2 if failing else 3
        if not failing:
            engine.publish(policies[3], 3)
        groups = engine.generate(world.PROMPTS, contract.SAMPLING, 1)
        assert world.worst_gap(CONFIG, policies[last], groups) < contract.EXACT
        assert model not in endpoint.service.adapters.loaded


def load_foreign_weights(farm, endpoint):
    """The name and the adapters are right, and what they stand beside is not."""
    service = endpoint.service
    service.params = service.model.params_fn(world.base_tensors(CONFIG, 50))


def take_the_adapters_back(farm, endpoint):
    (name,) = endpoint.service.adapters.loaded
    endpoint.service.adapters.unload({"lora_name": name})


@pytest.mark.parametrize(
    "befall", [Farm.restart, load_foreign_weights, take_the_adapters_back], ids=lambda f: f.__name__
)
def test_a_server_gets_the_weights_beneath_and_the_adapters_again(farm, befall):
    endpoint = farm.start(lora_rank=8)
    params = world.adapted(CONFIG, 1)
    with connected(endpoint) as engine:
        engine.publish(params, 2)
        fresh = befall(farm, endpoint) or endpoint
        groups = engine.generate(MANY, contract.SAMPLING, 1)
        assert {c.policy_version for g in groups for c in g.completions} == {2}
        assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
        assert (
            engine.counts["discarded_groups"]
            + engine.counts["failed_requests"]
            + sum(
                engine.counts[f"rollout/refused/{reason}"] for reason in ("version", "status_404")
            )
        )
        assert fresh.service.place.where()["version"] == 2


def test_an_answer_by_another_model_than_was_asked_for_is_refused(farm):
    """As where vLLM is told to take any name for the model that it serves."""
    endpoint = farm.start(lora_rank=8)
    params = world.adapted(CONFIG, 1)
    with connected(endpoint) as engine:
        engine.publish(params, 1)
        generate, lies = endpoint.service.generate, [1, 2, 3]

        def lying(body):
            return generate({**body, "model": "policy"} if lies and lies.pop() else body)

        endpoint.service.generate = lying
        groups = engine.generate(MANY, contract.SAMPLING, 1)
        assert world.worst_gap(CONFIG, params, groups) < contract.EXACT
        assert engine.counts["rollout/refused/version"] > 0


def test_names_that_a_dead_trainer_left_are_taken_back(farm):
    endpoint = farm.start(lora_rank=8)
    with connected(endpoint) as engine:
        engine.publish(world.adapted(CONFIG, 1), 1)
        engine.publish(world.adapted(CONFIG, 2), 2)
        left = {*endpoint.service.adapters.loaded}
    with connected(endpoint) as engine:
        engine.publish(world.adapted(CONFIG, 3), 1)
        names = {*endpoint.service.adapters.loaded}
        assert len(names) == 1
        assert not names & left


def test_a_policy_without_adapters_has_none_to_push(farm):
    with (
        connected(farm.start(lora_rank=8)) as engine,
        pytest.raises(ValueError, match="no adapters that could be pushed alone: push='merged'"),
    ):
        engine.publish(world.make_params(CONFIG, 0), 0)


def test_a_server_that_takes_no_adapters_is_refused_with_the_remedy(farm):
    with pytest.raises(Refused, match="start it with ogrpo-serve --lora-rank R"):
        connected(farm.start())


def test_adapters_of_a_larger_rank_than_the_servers_are_refused(farm):
    with connected(farm.start(lora_rank=4)) as engine:
        contract.check_adapter_rank(engine, CONFIG)


def test_adapters_are_pushed_merged_where_nothing_is_said(farm):
    params = world.adapted(CONFIG, 1)
    endpoint = farm.start(lora_rank=8)
    with contract.connect([endpoint.url], CONFIG) as engine:
        engine.publish(params, 0)
        contract.check_log_probs(engine, CONFIG, params, (1.0,))
    assert not [*endpoint.service.adapters.loaded]
