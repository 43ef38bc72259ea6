"""The real collector with engines and a trainer that sleep: its pace beside the simulation's.

Nothing is computed, so that a busy machine changes little; threads, queue and pushes are those of a
run. What is simulated has the same calls, but where a server is slow: there calls are drawn from
those that were measured, as `plan --validate` does.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from ogrpo.config.values import Count, Index, NonNegative, Positive, check
from ogrpo.protocol import Completion, Group, IntArray, Sampling
from ogrpo.rollout.collection import CollectionLimits, Collector, Request, Rewarded
from ogrpo_plan.simulation import (
    Floats,
    InFlight,
    Pipeline,
    measured_service,
    simulate,
    summarize,
    window,
)

SAMPLING = Sampling(temperature=1.0, max_tokens=1, group_size=1)
Kind = Literal["even", "uneven", "slow server"]
SLOWER = 3.0
"""Factor by which the calls of the slow server are longer."""
SPREAD = 1.0
"""Standard deviation of the log of uneven calls."""


@dataclass(frozen=True)
class Fleet:
    """Workers that answer calls, and how far they run ahead of a trainer."""

    workers: Count = 1
    kind: Kind = "even"
    """All calls alike; log-normal calls of the same mean; or one server slower than the others."""
    in_flight: InFlight = "wait"
    """Effect of a push of weights on calls under way."""
    lead: Index = 2
    """Batches that may be asked for ahead."""
    v: Count = 1
    """Steps between two pushes."""
    calls: Count = 8
    """Calls of a batch."""
    call: NonNegative = 1.0
    """Mean seconds of one."""
    train: NonNegative = 2.0
    """Seconds of the trainer's work on a batch."""
    push: NonNegative = 0.05
    """Seconds of a push."""

    def __post_init__(self) -> None:
        check(self, "fleet.")

    def seconds(self, seed: int, step: int) -> Floats:
        """Returns the seconds of a step's calls, were every server as fast as the first."""
        if self.kind != "uneven":
            return np.full(self.calls, self.call)
        draws = np.random.default_rng([seed, 6, step]).normal(size=self.calls)
        return self.call * np.exp(SPREAD * draws - SPREAD**2 / 2)

    @property
    def factors(self) -> list[float]:
        """Factor of each server's seconds."""
        slow = SLOWER if self.kind == "slow server" else 1.0
        return [1.0] * (self.workers - 1) + [slow]

    def pipeline(self, steps: int) -> Pipeline:
        """Returns the fleet as `plan` simulates it."""
        return Pipeline(
            steps=steps,
            workers=self.workers,
            lead=self.lead,
            v=self.v,
            sync_seconds=self.push,
            in_flight=self.in_flight,
        )


@dataclass(frozen=True)
class Pace:
    """A fleet on the wall clock."""

    fleet: Fleet = field(default_factory=Fleet)
    steps: int = 20
    scale: Positive = 0.05
    """Seconds of the wall clock for one of the fleet."""
    seed: int = 0

    def __post_init__(self) -> None:
        check(self, "pace.")
        window(self.steps, self.fleet.lead, self.fleet.v)


class SleepingEngine:
    """Servers that sleep; a call takes one that is free, and its weights as it begins.

    Args:
      pace: how long what takes.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._free = list(pace.fleet.factors)
        self._lock = threading.Lock()
        self.version = -1
        self.calls: list[float] = []

    def publish(self, params: Any, version: int) -> None:  # noqa: ARG002
        """Serves `version` from now on."""
        time.sleep(self._pace.fleet.push * self._pace.scale)
        self.version = version

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:  # noqa: ARG002
        """Returns one token to each prompt, whose ids are the step and the place of the call."""
        step, place = prompts[0].tolist()
        with self._lock:
            factor, version = self._free.pop(0), self.version
        seconds = float(self._pace.fleet.seconds(self._pace.seed, step)[place]) * factor
        begun = time.perf_counter()
        time.sleep(seconds * self._pace.scale)
        with self._lock:
            self._free.append(factor)
            self.calls.append((time.perf_counter() - begun) / self._pace.scale)
        completion = Completion(
            token_ids=np.zeros(1, np.int32),
            log_probs=np.zeros(1, np.float32),
            policy_version=version,
            temperature=1.0,
            finish_reason="stop",
        )
        return [Group(prompt, (completion,)) for prompt in prompts]

    def metrics(self) -> Mapping[str, float]:
        """Returns no counters."""
        return {}


def measure(cell: Cell, _: object) -> Mapping[str, Any]:
    """Returns pace, idleness and staleness of the collector, measured and simulated."""
    pace: Pace = cell.config
    engine = SleepingEngine(pace)
    driven = run(pace, engine)
    fleet = pace.fleet
    first, end = window(pace.steps, fleet.lead, fleet.v)
    ends = driven.requested[1:] / pace.scale
    seen = {
        "rate": (end - first) / (ends[end - 1] - ends[first - 1]),
        **summary_of(np.concatenate(driven.ages[first:end])),
    }
    service = partial(fleet.seconds, pace.seed)
    if fleet.kind == "slow server":
        service = measured_service(np.array(engine.calls), calls=fleet.calls, seed=pace.seed)
    trace = simulate(fleet.pipeline(pace.steps), service, lambda _step: fleet.train)
    foreseen = summarize(trace, lead=fleet.lead, v=fleet.v)
    late = (trace.call_step >= first) & (trace.call_step < end)
    predicted = {"rate": foreseen.steps_per_second, **summary_of(trace.staleness[late])}
    return {
        "measured": rounded(seen),
        "predicted": rounded(predicted),
        "trainer_idle": rounded(foreseen.trainer_idle),
        "workers_idle": rounded(foreseen.workers_idle),
    }


def summary_of(ages: NDArray[np.int64]) -> dict[str, float]:
    """Returns mean and largest of the ages of what was delivered, in steps."""
    return {"staleness": float(ages.mean()), "staleness/max": int(ages.max())}


class Driven(NamedTuple):
    """Seconds of a collector's steps from the first on, and the staleness of their groups."""

    requested: Floats
    """When each step asked for its batch, and when the last one ended."""
    ages: list[list[int]]


def run(pace: Pace, engine: SleepingEngine) -> Driven:
    """Runs a collector: pushes every v steps, takes each batch and trains on it; returns times."""
    fleet = pace.fleet

    def request(step: int) -> Request:
        prompts = [np.array([step, place], np.int32) for place in range(fleet.calls)]
        return Request(step, range(fleet.calls), prompts, seed=step)

    limits = CollectionLimits(
        lead=fleet.lead,
        workers=fleet.workers,
        prompts_per_call=1,
        ordered=fleet.in_flight == "wait",
    )
    requested, ages = [], []
    collection = Collector(
        *(engine, request, SAMPLING, unrewarded),
        steps=range(pace.steps),
        limits=limits,
        retry_on=(),
    )
    with collection as collector:
        origin = time.perf_counter()
        for step in range(pace.steps):
            if step % fleet.v == 0:
                collector.publish((), step)
            requested.append(time.perf_counter() - origin)
            groups = collector.take(step).groups
            ages.append([step - group.completions[0].policy_version for group in groups])
            time.sleep(fleet.train * pace.scale)
        requested.append(time.perf_counter() - origin)
    return Driven(np.array(requested), ages)


def unrewarded(
    _request: Request, _places: Sequence[int], groups: Sequence[Group]
) -> list[Rewarded]:
    """Returns the groups with rewards of 0."""
    return [Rewarded(group, np.zeros(len(group.completions), np.float32)) for group in groups]
