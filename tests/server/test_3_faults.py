"""Servers killed, hung and restarted in the middle of a batch, as they are in a cluster."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from ogrpo.rollout.protocol import Sampling
from tests.rollout.vllm import contract, world

CONFIG = world.decoder()
PARAMS = world.make_params(CONFIG, 0)
LONG = Sampling(temperature=1.0, max_tokens=48, group_size=8)
MANY = [np.array([n % 13, n % 11], np.int32) for n in range(96)]


def generate_while(engine, act, *, requests=12, params=PARAMS):
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
    assert world.worst_gap(CONFIG, params, groups) < contract.EXACT


@pytest.mark.parametrize("what", ["worker", "engine", "api"])
def test_one_of_two_servers_dies_in_the_middle_of_a_batch(fleet, what):
    survivor, victim = fleet
    urls = [survivor.url, victim.url]
    with contract.connect(urls, CONFIG, per_server=8, timeout=20.0) as engine:
        engine.publish(PARAMS, 1)
        generate_while(engine, lambda: os.kill(victim.member(what), signal.SIGKILL))
        assert engine.counts["failed_requests"] > 0
        victim.kill()
        generate_while(engine, lambda: None)
        victim.launch().wait()
        # It is back with its first weights, and is used again only with the pushed ones.
        deadline = time.monotonic() + 60
        while not all(state.ready for state in engine._fleet.servers):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        generate_while(engine, lambda: None)


def test_a_hung_server_is_given_up_and_comes_back(fleet):
    survivor, victim = fleet
    with contract.connect([survivor.url, victim.url], CONFIG, per_server=8, timeout=4.0) as engine:
        engine.publish(PARAMS, 1)
        stopped = [victim.member("engine"), victim.member("worker")]
        try:
            generate_while(engine, lambda: [os.kill(pid, signal.SIGSTOP) for pid in stopped])
            assert engine.counts["failed_requests"] > 0
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while not all(state.ready for state in engine._fleet.servers):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        generate_while(engine, lambda: None)


def test_the_only_server_restarts_and_the_batch_is_finished_with_the_pushed_adapters(native):
    """It is given the weights beneath them again, too."""
    params = world.adapted(CONFIG, 1)

    def restart():
        native.kill()
        native.launch()

    with contract.connect(
        [native.url], CONFIG, push="adapters", per_server=8, timeout=60.0, patience=200.0
    ) as engine:
        engine.publish(world.adapted(CONFIG, 2), 0)
        engine.publish(params, 1)
        generate_while(engine, restart, params=params)
        assert engine.counts["failed_requests"] > 0
