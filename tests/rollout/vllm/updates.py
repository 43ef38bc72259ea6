"""vLLM's weight update, call by call, on the in-repo server and on vLLM."""

import asyncio

from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Expected, describe, look
from ogrpo.rollout.vllm.push import load
from ogrpo.serving.bridge import named_tensors
from tests.rollout.vllm import world

EXPECTED = Expected(world.VOCAB, world.EOS, 60)


def on(url, act):
    """Returns the result of `act(api, found)` on a server whose capabilities were read first."""

    async def work():
        api = ServerApi(url, headers={}, timeout=60.0)
        try:
            return await act(api, await look(api, await describe(api), EXPECTED))
        finally:
            await api.close()

    return asyncio.run(work())


def write(store, version):
    config = world.decoder()
    return store.write(named_tensors(config, world.make_params(config, version)), version)


def loading(release, share=None):
    return lambda api, capabilities: load(api, capabilities, release, share=share)


def serving(url):
    state = on(url, lambda api, _: describe(api))
    return state["version"], state["sha256"]
