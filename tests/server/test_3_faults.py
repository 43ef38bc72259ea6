"""Servers killed, hung and restarted in the middle of a batch, as they are in a cluster."""

import os
import signal
import threading
import time

import httpx
import numpy as np
import pytest

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Unavailable
from ogrpo.rollout.vllm.api import ServerApi
from tests.rollout.vllm import contract, updates, world

CONFIG = world.decoder()
PARAMS = world.make_params(CONFIG, 0)
LONG = Sampling(temperature=1.0, max_tokens=48, group_size=8)
MANY = [np.array([n % 13, n % 11], np.int32) for n in range(96)]


def generate_while(engine, act, *, requests=12):
    """A batch, with `act` called when so many of its requests are out."""
    reached = engine.counts["requests"] + requests

    def watch():
        while engine.counts["requests"] < reached:
            time.sleep(0.002)
        act()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    groups = engine.generate(MANY, LONG, 1)
    thread.join(300)
    contract.check_groups(groups, MANY, LONG)
    assert {c.policy_version for g in groups for c in g.completions} == {1}
    assert world.worst_gap(CONFIG, PARAMS, groups) < contract.EXACT


def generate_despite(engine, act):
    """The same, where `act` costs requests."""
    failed = engine.counts["failed_requests"]
    generate_while(engine, act)
    assert engine.counts["failed_requests"] > failed


def draw_from_all(engine):
    """A batch, once every server is used again."""
    deadline = time.monotonic() + 60
    while not all(state.observed.ready for state in engine._fleet.servers):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    generate_while(engine, lambda: None)


def ask(server, method, path, body=None):
    reply = httpx.request(method, f"{server.url}{path}", json=body, timeout=60, trust_env=False)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_what_a_killed_trainer_left_paused_the_next_one_resumes(native, caplog):
    """A trainer that is killed in a push leaves this: a pause, and no more."""
    updates.on(native.url, lambda api, _: api.pause("wait"))
    assert ask(native, "GET", "/is_paused")["is_paused"]
    ask(native, "GET", "/version")  # it is well, by its own account
    with contract.connect([native.url], CONFIG) as engine:
        engine.publish(PARAMS, 1)
        generate_while(engine, lambda: None)
    assert f"{native.url} was paused" in caplog.text


@pytest.mark.parametrize(("name", "arrives"), [("resume", False), ("pause", True)])
def test_a_server_that_is_left_paused_by_the_network_is_resumed(native, monkeypatch, name, arrives):
    """The first request is lost on its way, or its answer on the way back."""
    send, lost = getattr(ServerApi, name), []

    async def lose_the_first(api, *mode):
        if lost or arrives:
            await send(api, *mode)
        if not lost:
            lost.append(name)
            raise Unavailable(f"/{name} is lost")

    monkeypatch.setattr(ServerApi, name, lose_the_first)
    with contract.connect([native.url], CONFIG) as engine:
        engine.publish(PARAMS, 1)
        generate_while(engine, lambda: None)
    assert lost == [name]
    assert not ask(native, "GET", "/is_paused")["is_paused"]


@pytest.mark.parametrize("how", ["reloaded", "reset"])
def test_no_completion_of_weights_that_somebody_else_loaded_is_used(native, policies, how):
    other = {"weights_path": str(policies[True])}
    reload = ("/collective_rpc", {"method": "reload_weights", "kwargs": other})
    call = reload if how == "reloaded" else ("/weight_checker", {"action": "reset"})
    with contract.connect([native.url], CONFIG, per_server=8) as engine:
        engine.publish(PARAMS, 1)
        generate_while(engine, lambda: ask(native, "POST", *call), requests=40)
        assert engine.counts["discarded_groups"] > 0
        generate_while(engine, lambda: None)


def test_a_hung_server_is_given_up_and_comes_back(fleet):
    survivor, victim = fleet
    with contract.connect([survivor.url, victim.url], CONFIG, per_server=8, timeout=4.0) as engine:
        engine.publish(PARAMS, 1)
        stopped = [victim.member("EngineCore"), victim.member("EngineCore", "Worker")]
        try:
            generate_despite(engine, lambda: [os.kill(pid, signal.SIGSTOP) for pid in stopped])
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        draw_from_all(engine)


def test_servers_die_in_the_middle_of_a_batch_and_come_back(fleet):
    """An engine, then an API server, then the last server; it leaves one of the two dead."""
    native, portable = fleet
    urls = [server.url for server in fleet]
    with contract.connect(urls, CONFIG, per_server=8, timeout=60.0, patience=200.0) as engine:
        engine.publish(world.make_params(CONFIG, 2), 0)
        engine.publish(PARAMS, 1)
        core = portable.member("EngineCore")
        generate_despite(engine, lambda: os.kill(core, signal.SIGKILL))
        portable.kill()
        generate_while(engine, lambda: None)
        portable.launch().wait()
        # It is back with its first weights, and is used again only with the pushed ones.
        draw_from_all(engine)
        generate_despite(engine, lambda: os.kill(native.member(), signal.SIGKILL))
        native.kill()

        def replace_the_last():
            portable.kill()
            native.launch()

        generate_despite(engine, replace_the_last)
