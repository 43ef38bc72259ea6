"""Adapters pushed alone, to ogrpo's own server; the same contract holds of vLLM in tests/server."""

import pytest

from ogrpo.rollout.http_server import BadRequest
from tests.rollout.vllm import contract, world

pytestmark = pytest.mark.slow

CONFIG = world.decoder()


def connected(*endpoints, **options):
    return contract.connect([e.url for e in endpoints], CONFIG, push="adapters", **options)


@pytest.mark.parametrize(("native", "transport"), [(True, "url"), (False, "folder")])
def test_pushes_are_proven_one_after_the_other(farm, native, transport):
    endpoint = farm.start(native=native, lora_rank=8)
    with connected(endpoint, transport=transport) as engine:
        contract.check_adapter_pushes(engine, CONFIG, pulled=transport == "url")


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


def test_adapters_of_a_larger_rank_than_the_servers_are_refused(farm):
    with connected(farm.start(lora_rank=4)) as engine:
        contract.check_adapter_rank(engine, CONFIG)
