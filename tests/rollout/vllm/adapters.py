"""What a push of adapters alone promises, checked alike against ogrpo's own server and vLLM."""

import pytest

from ogrpo.rollout.vllm import PublishRefused
from tests.rollout.vllm import contract, world


def check_pushes(engine, config, *, pulled):
    """Each version exact and proven; after the first push, adapters alone move."""
    policies = {n: world.adapted(config, n) for n in range(3)}
    engine.publish(policies[2], 0)
    first = engine.metrics()
    contract.check_pushes(engine, config, policies=policies)
    later = engine.metrics()
    assert later["sync/paused_seconds"] < first["sync/paused_seconds"]
    whole = sum(x.nbytes for x in world.base_tensors(config).values())
    alone = later["sync/bytes"]
    assert alone < 0.3 * whole
    assert later["sync/bytes_sent"] == alone * pulled
    assert (first["sync/bytes_sent"] > whole) == pulled
    assert later["sync/bytes_total"] - first["sync/bytes_total"] == 4 * alone * pulled


def check_garbage(engine, config, kind, monkeypatch):
    contract.check_garbage(
        engine,
        config,
        world.adapted(config, 1),
        kind,
        monkeypatch,
        other=world.adapted(config, 77),
        messages=contract.ADAPTER_GARBAGE,
    )


def check_rank(engine, config):
    params = world.adapted(config, 1, rank=3)
    engine.publish(params, 1)
    with pytest.raises(PublishRefused, match=r"rank 9, .* at most: start it with a larger --lora"):
        engine.publish(world.adapted(config, 2, rank=9), 2)
    assert engine.version == 1
    groups = engine.generate(world.PROMPTS, contract.SAMPLING, 5)
    assert world.worst_gap(config, params, groups) < contract.EXACT
