"""The connections of one server's client."""

import asyncio

import pytest

from ogrpo.rollout.vllm import api as module
from ogrpo.rollout.vllm.api import ServerApi


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.0, 3)])
def test_a_connection_that_was_idle_for_too_long_is_not_used_again(
    farm, monkeypatch, idle, connections
):
    """The server may be closing it, and the request would be lost."""
    monkeypatch.setattr(module, "IDLE_SECONDS", idle)
    server = farm.start()

    async def calls():
        api = ServerApi(server.url, headers={}, timeout=60.0)
        for _ in range(3):
            await api.version()
        await api.close()

    asyncio.run(calls())
    assert len(server.connections) == connections
