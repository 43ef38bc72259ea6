"""Every order of pushes, samples and faults leaves no wrong sample, idle server or needless end.

Servers, client and clock are staged (`staged`), the client's code is the real one.
`OGRPO_SCHEDULES` sets how many schedules are drawn.
"""

import asyncio
import os
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from ogrpo.protocol import Sampling
from ogrpo.rollout.vllm import Expected, PublishRefused, RolloutError, ServerOptions
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.errors import LONGEST_BACKOFF, Changes
from ogrpo.rollout.vllm.fleet import Fleet
from ogrpo.rollout.vllm.push import Target
from ogrpo.rollout.vllm.server import Server, Setup
from ogrpo.rollout.weights import Release
from tests.rollout.vllm.staged import EOS, Staged, VirtualLoop, log_prob_of, weights_of

pytestmark = pytest.mark.slow

SCHEDULES = int(os.environ.get("OGRPO_SCHEDULES", "150"))
PROMPTS = [np.array([n + 1], np.int32) for n in range(4)]
SAMPLING = Sampling(temperature=1.0, max_tokens=3, group_size=2)
OPTIONS = ServerOptions(timeout=20.0, patience=120.0, wait=120.0, attempts=6, per_server=2)
PATHS = (
    *("generate", "completions", "collective_rpc", "pause", "resume", "is_paused"),
    *("start_weight_update", "update_weights", "finish_weight_update", "reset_prefix_cache"),
    *("models", "version", "get_world_size"),
)
KINDS = ("refuse", "drop", "lose", "hang", "odd", "late", "ignore")
SETTLED = 2 * OPTIONS.timeout + 2 * LONGEST_BACKOFF
"""Seconds after which a server that is well serves what is wanted: the calls that still wait for a
lost answer, a rest, and the calls that bring it there."""
LONG = 2000.0


def target(version):
    sha256, sequences = f"sha{version}", [np.array([1, 2, 3], np.int32)]
    release = Release(version, Path("nowhere"), sha256, sha256, bytes=0, seconds=0.0)
    log_probs = [np.full(2, log_prob_of(version), np.float32)]
    return Target(release, sequences, log_probs, tolerance=1e-3)


class Schedules(RuleBasedStateMachine):
    """A trainer that publishes and samples, and a world that does what it likes to two servers."""

    options, in_flight = OPTIONS, "wait"

    def __init__(self):
        super().__init__()
        self.loop = VirtualLoop()
        self.counts = Counter()
        self.version, self.faults = 0, 0
        self.publishing, self.sampling = None, []
        self.unwell = {}

    @initialize(count=st.integers(1, 2))
    def begin(self, count):
        self.staged = [Staged() for _ in range(count)]
        self.run(self.start())
        self.publish()
        self.advance(5.0)

    async def start(self):
        expected = Expected(vocab_size=16, eos_id=EOS, max_length=16)
        setup = Setup(expected, self.options, None, self.counts, Changes(), self.in_flight)
        apis = [
            ServerApi(f"http://server{n}", headers={}, timeout=OPTIONS.timeout, transport=staged)
            for n, staged in enumerate(self.staged)
        ]
        self.servers = [Server(api, setup) for api in apis]
        self.fleet = Fleet(self.servers, setup)
        await self.fleet.start()

    def run(self, work):
        return self.loop.run_until_complete(work)

    def settle(self):
        """Notes since when a server is well, and looks at what has ended."""
        now = self.loop.time()
        for n, staged in enumerate(self.staged):
            if not staged.well:
                self.unwell[n] = now
        if self.publishing is not None and self.publishing.done():
            self.look_at(self.publishing)
            self.publishing = None
        for task in [task for task in self.sampling if task.done()]:
            self.sampling.remove(task)
            self.look_at(task)

    def look_at(self, task):
        error = task.exception()
        if isinstance(error, PublishRefused):
            assert self.refused, "publish was refused by nobody"
        elif error is not None:
            assert isinstance(error, RolloutError), error
            assert self.faults >= OPTIONS.attempts or not self.one_was_well(), error

    def one_was_well(self):
        """Whether a server was well long enough to have been used."""
        now = self.loop.time()
        return any(now - self.unwell.get(n, 0.0) > SETTLED for n in range(len(self.staged)))

    # --- the trainer ---------------------------------------------------------------------------

    @rule()
    def publish(self):
        if self.publishing is None:
            self.version += 1
            self.refused = any("garbage" in x.faults.values() for x in self.staged)
            self.publishing = self.loop.create_task(self.fleet.publish(target(self.version)))
            self.advance(0.0)

    @rule()
    def sample(self):
        if len(self.sampling) < 3:
            self.sampling.append(self.loop.create_task(self.draw()))
            self.advance(0.0)

    async def draw(self):
        groups = await self.fleet.generate(PROMPTS, SAMPLING, 0)
        assert len(groups) == len(PROMPTS)
        for completion in (c for group in groups for c in group.completions):
            assert {weights_of(x) for x in completion.log_probs} == {completion.policy_version}

    @rule(seconds=st.sampled_from([0.005, 0.1, 0.3, 0.6, 1.0, 3.0, 20.0]))
    def advance(self, seconds):
        self.run(asyncio.sleep(seconds))
        self.settle()

    # --- the world -----------------------------------------------------------------------------

    def one(self, n):
        return self.staged[n % len(self.staged)]

    @rule(n=st.integers(0, 1))
    def kill(self, n):
        self.one(n).kill()
        self.faults += 1
        self.settle()

    @rule(n=st.integers(0, 1))
    def restart(self, n):
        self.one(n).start()
        self.faults += 1
        self.settle()

    @rule(n=st.integers(0, 1))
    def freeze(self, n):
        self.one(n).freeze()
        self.faults += 1
        self.settle()

    @rule(n=st.integers(0, 1))
    def thaw(self, n):
        self.one(n).thaw()

    @rule(n=st.integers(0, 1), path=st.sampled_from(PATHS), kind=st.sampled_from(KINDS))
    def disturb(self, n, path, kind):
        self.one(n).faults[path] = kind
        self.faults += 1
        self.settle()

    @rule(n=st.integers(0, 1), code=st.sampled_from(["broken", "unreachable", "garbage"]))
    def fail_to_load(self, n, code):
        """A broken one is found out while it is installed, the others before."""
        self.one(n).faults["install" if code == "broken" else "load"] = code
        self.refused = self.refused or code == "garbage"
        self.faults += 1
        self.settle()

    @rule(n=st.integers(0, 1))
    def load_others(self, n):
        """Somebody else's weights, of which the extension knows nothing."""
        self.one(n).weights = 500
        self.faults += 1

    @rule(n=st.integers(0, 1))
    def pause(self, n):
        self.one(n).paused = True
        self.faults += 1

    # --- the end -------------------------------------------------------------------------------

    def teardown(self):
        try:
            if hasattr(self, "fleet"):
                self.end()
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.run(asyncio.wait(left))
            self.loop.close()

    def end(self):
        self.heal()
        self.run(asyncio.sleep(LONG))  # a call to load may take ten minutes
        self.settle()
        assert not self.sampling, "a batch does not end"
        assert self.publishing is None, "a publication does not end"
        self.run(self.draw())  # what befell a server that nobody used is met here
        self.run(asyncio.sleep(SETTLED))
        for server, staged in zip(self.servers, self.staged, strict=True):
            assert server.observed.ready, server.state()
            assert staged.weights == self.fleet.target.version
            assert not staged.paused
        self.run(self.fleet.close())
        assert not asyncio.all_tasks(self.loop)

    def heal(self):
        for staged in self.staged:
            staged.faults.clear()
            staged.thaw()
            if not staged.alive:
                staged.start()


TestSchedules = Schedules.TestCase
TestSchedules.settings = settings(
    max_examples=SCHEDULES,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
