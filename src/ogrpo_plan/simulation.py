"""Discrete-event simulation of one trainer and W rollout workers.

    trainer   publish(k) every v steps -> ask for batches up to k + lead -> take batch k -> train
    queue     pushes of weights and calls, first in first out, the trainer alone appending
    workers   take the head of the queue; a call draws some of a batch's groups from the weights
              published last; a push takes a worker, and nothing begins while it lasts

With `in_flight="wait"` this is `ogrpo.rollout.collection` with `ordered=True`: a push waits for
the calls under way. With "abort" and "keep" (`ordered=False`) it begins as soon as a worker is
free; the calls under way stop for it and begin again from the new weights, or go on and keep their
first version.

What a call costs does not depend on W, on the order or on the schedule: it is drawn from the seed
and the place of the call in the run, so that settings are compared on the same draws.

Written on `heapq` and not on a library: with SimPy 4.1.2, a process for each call, the same run of
60 steps of 1024 calls took four times as long (2026-11-20).
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
InFlight = Literal["wait", "abort", "keep"]
# step -> seconds of each call of its batch
ServiceFn = Callable[[int], Floats]
# step -> seconds that the trainer spends on its batch once it has it
TrainFn = Callable[[int], float]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """The trainer, its workers and the schedule between them."""

    steps: int
    workers: int
    """Calls under way at a time."""
    lead: int
    """Batches that may be asked for beyond the one that the trainer takes; 0: nothing overlaps."""
    v: int
    """Steps between two pushes of weights."""
    sync_seconds: float
    """A push, from the moment that it begins."""
    in_flight: InFlight = "wait"

    def __post_init__(self) -> None:
        for name, bound in {"steps": 1, "workers": 1, "lead": 0, "v": 1, "sync_seconds": 0}.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least {bound}")


@dataclass(eq=False)
class SimulatedCall:
    """Some of the groups of a batch, drawn together."""

    step: int
    seconds: float
    begun: float = np.nan
    ended: float = np.nan
    version: int = -1
    resumed: float = np.nan
    attempt: int = 0
    """How often a push stopped it; an end that was foreseen before that does not come."""
    work: list[tuple[float, float]] = field(default_factory=list)
    """From when to when it was worked on, pauses for a push left out."""

    @property
    def left(self) -> float:
        """Seconds of work that remain."""
        return max(self.seconds - sum(end - begun for begun, end in self.work), 0.0)


class Push(NamedTuple):
    """Weights on their way to the workers."""

    version: int


class Trace(NamedTuple):
    """Times and versions of a simulation: an entry a step, or an entry a call in queue order."""

    requested: Floats
    """When the trainer began to wait for the step's batch."""
    taken: Floats
    trained: Floats
    call_step: Ints
    call_begun: Floats
    call_ended: Floats
    call_version: Ints
    busy: Floats
    """[M, 2]: from when to when a worker worked on what was delivered."""
    lost: Floats
    """[K, 2]: the same of work that a push threw away."""
    pushes: Floats
    """[K, 2]: when each push began and ended."""
    workers: int

    @property
    def staleness(self) -> Ints:
        """Staleness of each call in steps: the step that it serves less its version."""
        return self.call_step - self.call_version


class _Simulation:
    """The agenda of events, the trainer's steps, and the queue that workers take from."""

    def __init__(self, pipeline: Pipeline, service_fn: ServiceFn, train_fn: TrainFn) -> None:
        self._pipeline, self._service_fn, self._train_fn = pipeline, service_fn, train_fn
        self._now, self._order = 0.0, count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._step, self._requested_until = 0, 0
        self._loaded = -1
        self._queue: deque[SimulatedCall | Push] = deque()
        self._missing: dict[int, int] = {}
        self._running: dict[SimulatedCall, None] = {}
        self._idle, self._pushing = pipeline.workers, False
        self.requested: list[float] = []
        self.taken: list[float] = []
        self.trained: list[float] = []
        self.calls: list[SimulatedCall] = []
        self.lost: list[tuple[float, float]] = []
        self.pushes: list[tuple[float, float]] = []

    def run(self) -> None:
        """Runs events by time, and then by the order of their arrangement, until none is left."""
        self._begin_step()
        while self._agenda:
            self._now, _, action = heapq.heappop(self._agenda)
            action()

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self._now + seconds, next(self._order), action))

    # --- the trainer

    def _begin_step(self) -> None:
        """Publishes where a push is due, asks for batches up to the lead, and waits for its own."""
        if self._step == self._pipeline.steps:
            return
        if self._step % self._pipeline.v == 0:
            self._queue.append(Push(self._step))
            self._advance()
        until = min(self._step + self._pipeline.lead, self._pipeline.steps - 1)
        for step in range(self._requested_until, until + 1):
            calls = [SimulatedCall(step, float(seconds)) for seconds in self._service_fn(step)]
            self._missing[step] = len(calls)
            self._queue.extend(calls)
        self._requested_until = max(self._requested_until, until + 1)
        self._advance()
        self.requested.append(self._now)
        self._look()

    def _look(self) -> None:
        """Takes the batch if the trainer waits for one that is complete."""
        if len(self.requested) > len(self.taken) and self._missing.get(self._step) == 0:
            self.taken.append(self._now)
            self._after(self._train_fn(self._step), self._end_step)

    def _end_step(self) -> None:
        self.trained.append(self._now)
        self._step += 1
        self._begin_step()

    # --- the workers

    def _advance(self) -> None:
        """Gives idle workers the head of the queue, until there is no worker or it must wait."""
        while self._queue and self._idle and not self._pushing:
            head = self._queue[0]
            if isinstance(head, Push):
                if self._running and self._pipeline.in_flight == "wait":
                    return
                self._push(head.version)
            else:
                head.begun, head.version = self._now, self._loaded
                self.calls.append(head)
                self._running[head] = None
                self._resume(head)
            self._idle -= 1
            self._queue.popleft()

    def _resume(self, call: SimulatedCall) -> None:
        call.resumed = self._now
        self._after(call.left, partial(self._finish, call, call.attempt))

    def _finish(self, call: SimulatedCall, attempt: int) -> None:
        if attempt != call.attempt:
            return
        call.ended = self._now
        call.work.append((call.resumed, call.ended))
        del self._running[call]
        self._idle += 1
        self._missing[call.step] -= 1
        self._advance()
        self._look()

    def _push(self, version: int) -> None:
        """Stops the calls under way, whose work is lost if the push aborts them."""
        self._pushing, self._loaded = True, version
        for call in self._running:
            call.attempt += 1
            call.work.append((call.resumed, self._now))
            if self._pipeline.in_flight == "abort":
                self.lost += call.work
                call.work, call.version = [], version
        self._after(self._pipeline.sync_seconds, partial(self._pushed, self._now))

    def _pushed(self, begun: float) -> None:
        self.pushes.append((begun, self._now))
        self._pushing = False
        self._idle += 1
        for call in self._running:
            self._resume(call)
        self._advance()


def simulate(pipeline: Pipeline, service_fn: ServiceFn, train_fn: TrainFn) -> Trace:
    """Runs all steps; no batch beyond them is requested.

    Args:
      pipeline: see its fields.
      service_fn: step -> seconds of each call of its batch, at least one, none negative.
      train_fn: step -> seconds of the trainer's work on its batch.
    """
    run = _Simulation(pipeline, service_fn, train_fn)
    run.run()
    calls = run.calls
    return Trace(
        requested=np.array(run.requested),
        taken=np.array(run.taken),
        trained=np.array(run.trained),
        call_step=np.array([c.step for c in calls]),
        call_begun=np.array([c.begun for c in calls]),
        call_ended=np.array([c.ended for c in calls]),
        call_version=np.array([c.version for c in calls]),
        busy=_spans(span for c in calls for span in c.work),
        lost=_spans(run.lost),
        pushes=_spans(run.pushes),
        workers=pipeline.workers,
    )


def _spans(spans: Iterable[tuple[float, float]]) -> Floats:
    return np.array(list(spans), np.float64).reshape(-1, 2)


class Summary(NamedTuple):
    """Rates and shares of the steady part of a run."""

    steps_per_second: float
    trainer_idle: float
    """Share of its time that the trainer waited for a batch."""
    workers_idle: float
    """Share of the workers' time that was spent on nothing that was delivered: waiting for a
    call, standing still for a push, or on work that a push threw away."""
    workers_lost: float
    """Of that, the work thrown away."""
    staleness_mean: float
    staleness_p95: float
    staleness_max: int
    staleness_counts: dict[int, float]
    """Share of the calls at each staleness."""


def window(steps: int, lead: int, v: int) -> tuple[int, int]:
    """Returns first step and end of the steady part: whole periods of v steps.

    Left out are the first lead + 1 steps, which fill the pipeline, and the last `lead`, during
    which it runs empty because nothing is asked for beyond the run.

    Raises:
      ValueError: no whole period is left.
    """
    first = v * -(-(lead + 1) // v)
    end = first + (steps - lead - first) // v * v
    if end <= first:
        raise ValueError(
            f"{steps} steps hold no whole period of v = {v} between the first {first} and the "
            f"last {lead}: simulate at least {first + v + lead}"
        )
    return first, end


def summarize(trace: Trace, *, lead: int, v: int) -> Summary:
    """Computes rates and shares over the steady part of a run (see `window`)."""
    first, end = window(len(trace.trained), lead, v)
    began, ended = trace.trained[first - 1], trace.trained[end - 1]
    span = ended - began
    waited = (trace.taken - trace.requested)[first:end].sum()
    staleness = trace.staleness[(trace.call_step >= first) & (trace.call_step < end)]
    values, counts = np.unique(staleness, return_counts=True)
    return Summary(
        steps_per_second=float((end - first) / span),
        trainer_idle=float(waited / span),
        workers_idle=float(1 - _within(trace.busy, began, ended) / (span * trace.workers)),
        workers_lost=float(_within(trace.lost, began, ended) / (span * trace.workers)),
        staleness_mean=float(staleness.mean()),
        staleness_p95=float(np.quantile(staleness, 0.95, method="inverted_cdf")),
        staleness_max=int(staleness.max()),
        staleness_counts=dict(zip(values.tolist(), (counts / counts.sum()).tolist(), strict=True)),
    )


def _within(spans: Floats, began: float, ended: float) -> float:
    """Seconds of the spans that lie between two moments."""
    return float(np.diff(np.clip(spans, began, ended), axis=1).sum())


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Distribution of completion lengths: log-normal, cut at the longest that is allowed."""

    mean: float
    """Of the log-normal before the cut, in tokens."""
    spread: float
    """Standard deviation over mean; 0: all alike."""
    longest: int

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Draws lengths of that shape, at least 1."""
        variance = np.log1p(self.spread**2)
        logs = rng.normal(np.log(self.mean) - variance / 2, np.sqrt(variance), shape)
        return np.clip(np.exp(logs), 1.0, self.longest)

    def expected_longest(self, completions: int, points: int = 4_000) -> float:
        """Mean of the longest of so many lengths, by quantiles of u^(1/k)."""
        levels = ((np.arange(points) + 0.5) / points) ** (1 / completions)
        normal = NormalDist()
        scores = np.array([normal.inv_cdf(u) for u in levels.tolist()])
        variance = np.log1p(self.spread**2)
        logs = np.log(self.mean) - variance / 2 + np.sqrt(variance) * scores
        return float(np.clip(np.exp(logs), 1.0, self.longest).mean())


def drawn_service(
    lengths: Lengths,
    *,
    calls: int,
    groups_per_call: int,
    group_size: int,
    seconds_per_token: float,
    overhead: float,
    seed: int,
) -> ServiceFn:
    """Draws calls that last as long as the longest of their completions.

    seconds = overhead + seconds_per_token * max over the call's completions of their length
    """

    def service(step: int) -> Floats:
        rng = np.random.default_rng([seed, step])
        drawn = lengths.draw(rng, (calls, groups_per_call * group_size))
        return overhead + seconds_per_token * drawn.max(axis=1)

    return service


def measured_service(seconds: Floats, *, calls: int, seed: int) -> ServiceFn:
    """Draws each call from durations that were measured."""

    def service(step: int) -> Floats:
        return np.random.default_rng([seed, step]).choice(seconds, calls)

    return service
