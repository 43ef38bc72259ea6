"""Adapters pushed alone to vLLM: the contract, and what only vLLM can show."""

import threading

import pytest

from ogrpo.rollout.vllm import Refused
from tests.rollout.vllm import contract, world
from tests.server.test_2_tied import CONFIG, LONG, MANY, by_version


def connected(server, **options):
    return contract.connect([server.url], CONFIG, push="adapters", **options)


@pytest.mark.parametrize("transport", ["folder", "url"])
def test_pushes_are_proven_one_after_the_other(native, transport):
    with connected(native, transport=transport) as engine:
        contract.check_adapter_pushes(engine, CONFIG, pulled=transport == "url")


# vLLM itself takes these without a word.
@pytest.mark.parametrize("kind", ["nan", "extra"])
def test_garbage_is_refused_and_the_adapters_before_it_serve_on(native, kind, monkeypatch):
    with connected(native) as engine:
        contract.check_adapter_garbage(engine, CONFIG, kind, monkeypatch)


def test_a_server_that_takes_no_adapters_is_refused_with_the_remedy(portable):
    with pytest.raises(Refused, match="start it with ogrpo-serve --lora-rank R"):
        connected(portable)


def test_pushes_while_requests_are_under_way_leave_every_log_prob_exact(native):
    """More versions than vLLM holds at a time: those that it evicts it reads again."""
    policies = {v: world.adapted(CONFIG, v) for v in range(1, 5)}
    groups = []
    with connected(native, per_server=32) as engine:
        engine.publish(policies[1], 1)
        for version in range(1, 5):
            begun = engine.counts["requests"]
            thread = threading.Thread(
                target=lambda: groups.extend(engine.generate(MANY[:16], LONG, 1))
            )
            thread.start()
            while engine.counts["requests"] == begun:
                thread.join(0.005)
            if version + 1 in policies:
                engine.publish(policies[version + 1], version + 1)
            thread.join(120)
            assert not thread.is_alive()
        assert engine.counts["discarded_groups"] == 0
    found = by_version(groups)
    assert len(found) > 2
    for version, drawn in found.items():
        assert world.worst_gap(CONFIG, policies[version], drawn) < contract.EXACT


def test_a_prefix_of_older_adapters_is_not_used(native):
    with connected(native) as engine:
        contract.check_prefix_cache(engine, CONFIG, [world.adapted(CONFIG, n) for n in (1, 2)])
