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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.staleness.fleet import Fleet
from ogrpo.config.values import require
from ogrpo.protocol import Completion, Group, IntArray, Sampling
from ogrpo.rollout.collection import CollectionLimits, Collector, Request
from ogrpo_plan.rehearsal import unrewarded
from ogrpo_plan.simulation import measured_service, simulate, summarize, window

SAMPLING = Sampling(temperature=1.0, max_tokens=1, group_size=1)


@dataclass(frozen=True)
class Pace:
    """A fleet on the wall clock."""

    fleet: Fleet = field(default_factory=Fleet)
    steps: int = 20
    scale: float = 0.05
    """Seconds of the wall clock for one of the fleet."""
    seed: int = 0

    def __post_init__(self) -> None:
        window(self.steps, self.fleet.lead, self.fleet.v)
        require(self.scale > 0, f"pace.scale is {self.scale}: give more than 0")


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
        """One token to each prompt, which says the step and the place of the call in it."""
        step, place = prompts[0].tolist()
        with self._lock:
            factor, version = self._free.pop(0), self.version
        own = float(self._pace.fleet.seconds(self._pace.seed, step)[place]) * factor
        begun = time.perf_counter()
        time.sleep(own * self._pace.scale)
        with self._lock:
            self._free.append(factor)
            self.calls.append((time.perf_counter() - begun) / self._pace.scale)
        return [Group(prompt, (_completion(version),)) for prompt in prompts]

    def metrics(self) -> Mapping[str, float]:
        """Nothing of its own."""
        return {}


def _completion(version: int) -> Completion:
    return Completion(
        token_ids=np.zeros(1, np.int32),
        log_probs=np.zeros(1, np.float32),
        policy_version=version,
        temperature=1.0,
        finish_reason="stop",
    )


def measure(cell: Cell, _: object) -> Mapping[str, Any]:
    """Pace, idleness and staleness of the collector, and what the simulation says of them."""
    pace: Pace = cell.config
    engine = SleepingEngine(pace)
    asked, ages = run(pace, engine)
    fleet = pace.fleet
    first, end = window(pace.steps, fleet.lead, fleet.v)
    ends = np.array(asked[1:]) / pace.scale
    seen = {
        "rate": (end - first) / (ends[end - 1] - ends[first - 1]),
        **summary_of(np.concatenate(ages[first:end])),
    }
    service = partial(fleet.seconds, pace.seed)
    if fleet.kind == "slow server":
        service = measured_service(np.array(engine.calls), calls=fleet.calls, seed=pace.seed)
    trace = simulate(fleet.pipeline(pace.steps), service, lambda _step: fleet.train)
    foreseen = summarize(trace, lead=fleet.lead, v=fleet.v)
    late = (trace.call_step >= first) & (trace.call_step < end)
    told = {"rate": foreseen.steps_per_second, **summary_of(trace.staleness[late])}
    return {
        "measured": rounded(seen),
        "predicted": rounded(told),
        "trainer_idle": rounded(foreseen.trainer_idle),
        "workers_idle": rounded(foreseen.workers_idle),
    }


def summary_of(ages: NDArray[np.int64]) -> dict[str, float]:
    """Of the ages of what was delivered, in steps."""
    return {"staleness": float(ages.mean()), "staleness/max": int(ages.max())}


def run(pace: Pace, engine: SleepingEngine) -> tuple[list[float], list[NDArray[np.int64]]]:
    """When each step began, the end after the last, and the ages of each step's groups."""
    fleet, asked, ages = pace.fleet, [], []
    limits = CollectionLimits(
        lead=fleet.lead,
        max_staleness=None,
        workers=fleet.workers,
        prompts_per_call=1,
        ordered=fleet.in_flight == "wait",
    )
    with Collector(
        engine,
        partial(request, fleet),
        SAMPLING,
        unrewarded,
        steps=range(pace.steps),
        limits=limits,
        retry_on=(),
    ) as collector:
        for step in range(pace.steps):
            if step % fleet.v == 0:
                collector.publish((), step)
            asked.append(time.perf_counter())
            taken = collector.take(step)
            versions = [g.completions[0].policy_version for g in taken.groups]
            ages.append(step - np.array(versions, np.int64))
            time.sleep(fleet.train * pace.scale)
        asked.append(time.perf_counter())
    return asked, ages


def request(fleet: Fleet, step: int) -> Request:
    """A prompt for each call of a step."""
    prompts = [np.array([step, place], np.int32) for place in range(fleet.calls)]
    return Request(step, range(fleet.calls), prompts, seed=step)
