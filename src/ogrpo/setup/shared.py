"""What the first process owns, as the loop meets it in every process of a run.

    engine      servers: the first publishes and asks; no other hears the groups of an evaluation
    collector   the first's batches, told to all; over the embedded sampler all sample in step
    buffer      the first's draws, told to all
    rewards     of an evaluation, told to all
    run folder  written by the first

Their methods are called by all processes in the same order, from the loop's thread alone.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from ogrpo.data.replay import Draw, Experience, ReplayBuffer
from ogrpo.learner.hosts import fetch, from_first, is_first, on_first, several
from ogrpo.loop.parts import Parts
from ogrpo.protocol import Engine, Group, IntArray, Sampling
from ogrpo.report.metrics_file import MetricsWriter, Rewound
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.collection import Collector, Request, Rewarded, RewardFn, Taken


class SharedEngine:
    """Servers that the first process talks to, behind the engine interface of all.

    Args:
      engine: that of the first process; None in the others.
    """

    def __init__(self, engine: Engine | None) -> None:
        self.engine = engine
        self._version = -1

    @property
    def version(self) -> int:
        """The version published last through this, -1 before any."""
        return self._version

    def publish(self, params: Any, version: int) -> None:
        """Fetches the weights from all processes, and has the first push them."""
        host = fetch(params, everywhere=False)
        on_first(lambda: cast(Engine, self.engine).publish(host, version))
        self._version = version

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """The groups, in the first process; none in the others."""
        return on_first(lambda: cast(Engine, self.engine).generate(prompts, sampling, seed)) or []

    def metrics(self) -> Mapping[str, float]:
        """Of the first process, which makes the records."""
        return {} if self.engine is None else self.engine.metrics()


class SharedCollector:
    """The first process's collector, whose batches all processes take.

    Args:
      engine: a `SharedEngine`, which the first process's collector alone calls; or the embedded
        sampler over the mesh, which every process's calls at the same time.
      request_at, sampling, reward_fn, options: as `Collector` takes them.
    """

    def __init__(
        self,
        engine: Engine,
        request_at: Callable[[int], Request],
        sampling: Sampling,
        reward_fn: RewardFn,
        **options: Any,
    ) -> None:
        self._engine = engine
        self._samples = not isinstance(engine, SharedEngine)
        self._version: int | None = None
        self._collector: Collector | None = None
        judge = reward_fn if is_first() else unjudged
        own = engine.engine if isinstance(engine, SharedEngine) else engine
        if own is not None:
            self._collector = Collector(own, request_at, sampling, judge, **options)

    @property
    def version(self) -> int | None:
        """The version published last; None before any."""
        return self._version

    def publish(self, params: Any, version: int) -> None:
        """As `Collector.publish`; servers are given whole weights, which all processes fetch."""
        self._version = version
        if self._samples:
            cast(Collector, self._collector).publish(params, version)
            return
        host = fetch(params, everywhere=False)
        on_first(lambda: cast(Collector, self._collector).publish(host, version))

    def request(self, until: int) -> None:
        """As `Collector.request`."""
        if self._collector is not None:
            self._collector.request(until)

    def take(self, step: int) -> Taken:
        """The first process's batch; all wait for it."""
        if self._samples and not is_first():
            cast(Collector, self._collector).take(step)
        return from_first(lambda: cast(Collector, self._collector).take(step))

    @contextmanager
    def alone(self) -> Iterator[Engine]:
        """The engine, while the first process's collector rests."""
        with ExitStack() as stack:
            on_first(lambda: stack.enter_context(cast(Collector, self._collector).alone()))
            yield self._engine

    def metrics(self) -> Mapping[str, float]:
        """Of the first process, which makes the records."""
        return {} if self._collector is None else self._collector.metrics()

    def close(self) -> None:
        """As `Collector.close`."""
        if self._collector is not None:
            self._collector.close()

    def __enter__(self) -> "SharedCollector":
        """The collector itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def unjudged(_request: Request, _places: Sequence[int], groups: Sequence[Group]) -> list[Rewarded]:
    """The groups without rewards: what the first process's were worth comes with its batch."""
    return [Rewarded(group, np.zeros(len(group.completions), np.float32)) for group in groups]


class SharedBuffer:
    """The first process's replay buffer, whose draws all processes get."""

    def __init__(self, make: Callable[[], ReplayBuffer]) -> None:
        self._buffer = on_first(make)

    @property
    def _own(self) -> ReplayBuffer:
        return cast(ReplayBuffer, self._buffer)

    def insert(self, experiences: Sequence[Experience]) -> None:
        """As `ReplayBuffer.insert`."""
        on_first(lambda: self._own.insert(experiences))

    def expire(self, version: int) -> None:
        """As `ReplayBuffer.expire`."""
        on_first(lambda: self._own.expire(version))

    def sample(self, count: int, *, seed: int) -> Draw:
        """As `ReplayBuffer.sample`, the draw told to all."""
        return from_first(lambda: self._own.sample(count, seed=seed))

    @property
    def changes(self) -> int:
        """Of the first process; 0 in the others."""
        return 0 if self._buffer is None else self._buffer.changes

    def statistics(self) -> dict[str, float]:
        """Of the first process, which makes the records."""
        return {} if self._buffer is None else self._buffer.statistics()

    def state(self) -> dict[str, Any]:
        """What the first process's checkpoint says; nothing in the others."""
        return on_first(lambda: self._own.state()) or {}

    def prune(self, states: Iterable[dict[str, Any]] = ()) -> None:
        """As `ReplayBuffer.prune`."""
        held = list(states)  # read from checkpoints, which all processes read together
        on_first(lambda: self._own.prune(held))


class WatchedRun(RunDir):
    """A run's folder in a process that only reads it."""

    def write_config(self, config: dict[str, Any]) -> None:
        """Left to the first process."""

    def rewind(self, step: int, *, keep: bool = False) -> Rewound:  # noqa: ARG002
        """Left to the first process."""
        return Rewound(0, 0)

    @contextmanager
    def metrics_writer(self) -> Iterator[MetricsWriter]:
        """A writer whose records go nowhere."""
        with MetricsWriter(os.devnull) as writer:
            yield writer


def shared_run(open_run: Callable[[], RunDir]) -> RunDir:
    """The folder that the first process opens, in all of them."""
    path = from_first(lambda: open_run().path)
    return RunDir(path) if is_first() else WatchedRun(path)


def shared_parts(parts: Parts) -> Parts:
    """The parts of a loop that several processes run; the same where there is one."""
    if not several():
        return parts
    judge = parts.evaluator.judge
    return replace(
        parts,
        make_buffer=partial(_make_shared_buffer, parts.make_buffer),
        evaluator=replace(parts.evaluator, judge=lambda groups: from_first(lambda: judge(groups))),
        collection=replace(parts.collection, collector=cast(Any, SharedCollector)),
    )


def _make_shared_buffer(
    make: Callable[[dict[str, Any] | None], ReplayBuffer], state: dict[str, Any] | None
) -> ReplayBuffer:
    return cast(ReplayBuffer, SharedBuffer(lambda: make(state)))
