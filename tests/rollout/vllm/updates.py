"""vLLM's weight update, call by call: checked alike against the in-repo server and against vLLM."""

import asyncio

import pytest

from ogrpo.rollout.vllm import Unavailable
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Expected, describe, look
from ogrpo.rollout.vllm.push import load
from ogrpo.serving.bridge import named_tensors
from tests.rollout.vllm import world

EXPECTED = Expected(world.VOCAB, world.EOS, 60, ())


def on(url, act):
    """Returns the result of `act(api, found)` on a server whose capabilities were read first."""

    async def work():
        api = ServerApi(url, headers={}, timeout=60.0)
        try:
            return await act(api, await look(api, await describe(api), EXPECTED))
        finally:
            await api.close()

    return asyncio.run(work())


def write(store, version, config=None):
    config = config or world.decoder()
    return store.write(named_tensors(config, world.make_params(config, version)), version)


def loading(release, share=None):
    return lambda api, capabilities: load(api, capabilities, release, share=share)


def serving(url):
    state = on(url, lambda api, _: describe(api))
    return state["version"], state["sha256"]


def check_a_dead_trainers_update(url, store):
    """Checks that its open update is closed and its staged weights are nowhere live."""
    first, foreign, third = (write(store, version) for version in (1, 2, 3))

    async def die(api, _):
        await api.start_weight_update()
        staged = {"version": 2, "manifest_sha256": foreign.manifest_sha256}
        await api.update_weights({**staged, "path": str(foreign.folder)}, seconds=20)

    on(url, loading(first))
    on(url, die)
    assert serving(url) == (1, first.sha256)
    on(url, loading(third))
    assert serving(url) == (3, third.sha256)


def check_a_foreign_start(url, store, monkeypatch):
    """A second update in the middle of ours is refused, and ours goes on."""
    first, second = (write(store, version) for version in (1, 2))
    update, starts = ServerApi.update_weights, []

    async def interrupted(api, body, *, seconds):
        if body.get("install"):
            with pytest.raises(Unavailable, match="500") as refused:
                await api.start_weight_update()
            starts.append(refused.value.status)
        await update(api, body, seconds=seconds)

    on(url, loading(first))
    with monkeypatch.context() as patch:
        patch.setattr(ServerApi, "update_weights", interrupted)
        on(url, loading(second))
    assert starts == [500]
    assert serving(url) == (2, second.sha256)
