"""Draws the batches of a run ahead of its trainer, in threads of its own.

    trainer          publish(params, version)         take(step)
                          |                           |      ^
    queue                 +-> push . draw . draw . push . draw  (first in, first out)
                                |                            |
    workers             engine.publish / engine.generate  -> whole batches

`take(step)` asks for the batches up to step + lead and waits for its own; `publish` returns at
once. With one worker, what the engine is called with depends on the order of the trainer's calls
alone. A batch is handed out when every prompt of it has its group, however long the slowest takes:
nothing favours prompts that are answered fast. An engine's own timeouts turn an answer that never
comes into an error, and the prompt is tried again.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from ogrpo.protocol import Engine, Group, Sampling
from ogrpo.rollout.check import REFUSED, Flaw, Terms, flaws
from ogrpo.rollout.collection.occupancy import Occupancy
from ogrpo.rollout.collection.request_queue import (
    REASONS,
    CollectionLimits,
    Command,
    Publish,
    RequestQueue,
)
from ogrpo.rollout.collection.requests import (
    Request,
    RewardFn,
    Taken,
    Unjudged,
    check_answer,
    check_rewards,
)
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
TRAINER_WAITS, WORKERS_WAIT = "trainer/waiting", "workers/waiting"
GENERATING, PUBLISHING = "workers/generating", "workers/publishing"
JUDGING = "workers/judging"


class Collector:
    """An engine's groups, batch by batch; its threads end with `close` or the `with` block.

    Args:
        engine: called from the collector's threads only, from several at once with several workers.
        request_at: step -> the prompts of its batch; called in the trainer's thread, once a step.
        sampling: how all batches are drawn.
        reward_fn: what judges groups; called from the judges' threads, from several at once.
        steps: the steps of the run that are to come; nothing is bought beyond them.
        limits: see `CollectionLimits`.
        retry_on: errors of `generate` that pass. Any other error ends the run, as does one of
            `publish`.
        terms: what completions are checked against, beside the versions published; by default
            the sampling alone.
        clock: seconds, for the statistics.
    """

    def __init__(
        self,
        engine: Engine,
        request_at: Callable[[int], Request],
        sampling: Sampling,
        reward_fn: RewardFn,
        *,
        steps: range,
        limits: CollectionLimits,
        retry_on: tuple[type[Exception], ...],
        terms: Terms | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine, self._sampling, self._limits = engine, sampling, limits
        self._reward_fn = reward_fn
        self._versions: set[int] = set()
        self._terms = replace(terms or Terms(sampling), versions=self._versions)
        self._queue = RequestQueue(
            request_at,
            steps=steps,
            sampling=sampling,
            limits=limits,
            retry_on=retry_on,
        )
        self._changed = threading.Condition()
        self._closed = False
        self._held = False
        self._spent = Occupancy(clock)
        self._tokens = 0
        self._threads = [
            threading.Thread(target=target, name=f"collector-{name}-{n}", daemon=True)
            for target, name, count in (
                (self._work, "worker", limits.workers),
                (self._judge, "judge", limits.judges),
            )
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    # --- the trainer's side --------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """The version published last, which the engine takes in its turn; None before any."""
        with self._changed:
            return self._queue.version

    def publish(self, params: Any, version: int) -> None:
        """Has every batch that is asked for from now on drawn from `params`; does not wait.

        Nobody may overwrite `params` afterwards; at most lead + 1 of them are held at a time. An
        error of the engine is raised by the first `take` that needs what comes after it.

        Raises:
            ValueError: the version is not above the one before.
        """
        with self._changed:
            self._check_open()
            self._queue.publish(params, version)
            self._versions.add(version)
            self._changed.notify_all()

    def request(self, until: int) -> None:
        """Asks for the batches up to that of step `until`; `take` does so by itself."""
        with self._changed:
            self._check_open()
            self._queue.request(until)
            self._changed.notify_all()

    def take(self, step: int) -> Taken:
        """The batch of a step, waiting for it; steps are taken in order, each once.

        Raises:
            ValueError: the step is not the next, or the weights published last are too old for it.
            CollectionError: the batch cannot be had; the engine's error is chained.
            RuntimeError: nothing was published yet, or the collector was closed.
        """
        with self._changed:
            self.request(step + self._limits.lead)
            self._queue.check_turn(step)
            self._wait_for(step)
            return self._queue.hand_out(step)

    @contextmanager
    def alone(self) -> Iterator[Engine]:
        """The engine for the caller's own use: nothing is under way and nothing begins meanwhile.

        The caller gives the engine back with the weights of `version`.
        """
        with self._changed:
            self._held = True
            while self._queue.under_way:
                self._check_open()
                self._changed.wait()
        try:
            yield self._engine
        finally:
            with self._changed:
                self._held = False
                self._changed.notify_all()

    def _wait_for(self, step: int) -> None:
        self._spent.enter(TRAINER_WAITS)
        try:
            while not self._queue.complete(step):
                self._check_open()
                if self._queue.error is not None and not self._queue.whole(step):
                    raise self._queue.error
                self._changed.wait()
        finally:
            self._spent.leave(TRAINER_WAITS)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the collector is closed")

    def close(self) -> None:
        """Begins nothing more and waits for what is under way, `grace` seconds at most."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + self._limits.grace
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._changed:
            left = self._spent.active(GENERATING, PUBLISHING, JUDGING)
        if left:
            log.warning(
                "%d calls of the engine did not end within %g s: they are left to themselves",
                left,
                self._limits.grace,
            )

    def __enter__(self) -> "Collector":
        """The collector itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()

    # --- the workers' side ---------------------------------------------------------------------

    def _work(self) -> None:
        while (command := self._begin()) is not None:
            answer = self._perform(command)
            with self._changed:
                self._settle(command, answer)
                self._changed.notify_all()

    def _begin(self) -> Command | None:
        with self._changed:
            self._spent.enter(WORKERS_WAIT)
            command = None
            while not self._closed and (self._held or (command := self._queue.begin()) is None):
                self._changed.wait()
            self._spent.leave(WORKERS_WAIT)
            if command is not None:
                self._spent.enter(_activity(command))
            return command

    def _perform(self, command: Command) -> "_Answer | BaseException":
        try:
            if isinstance(command, Publish):
                self._engine.publish(command.params, command.version)
                return _Answer([], {})
            groups = self._engine.generate(command.prompts, self._sampling, command.seed)
            check_answer(command, groups)
            return _Answer(groups, flaws(groups, self._terms))
        except BaseException as error:  # Not handled here: the trainer's thread raises it.
            return error

    def _settle(self, command: Command, answer: "_Answer | BaseException") -> None:
        self._spent.leave(_activity(command))
        if isinstance(answer, BaseException):
            log.warning("collection: %s: %s", type(answer).__name__, shown(answer))
            self._queue.failed(command, answer)
        elif isinstance(command, Publish):
            self._queue.published(command)
        else:
            self._tokens += sum(len(c.token_ids) for g in answer.groups for c in g.completions)
            for flaw in list(answer.flaws.values())[:1]:
                log.warning("collection: %d groups are refused: %s", len(answer.flaws), flaw)
            self._queue.drawn(command, answer.groups, answer.flaws)

    # --- the judges' side ----------------------------------------------------------------------

    def _judge(self) -> None:
        while (unjudged := self._next_unjudged()) is not None:
            try:
                rewarded = self._reward_fn(unjudged.request, unjudged.places, unjudged.groups)
                check_rewards(unjudged, rewarded)
            except BaseException as error:  # Not handled here: the trainer's thread raises it.
                with self._changed:
                    self._spent.leave(JUDGING)
                    self._queue.unjudgeable(unjudged, error)
                    self._changed.notify_all()
                continue
            with self._changed:
                self._spent.leave(JUDGING)
                self._queue.judged(unjudged, rewarded)
                self._changed.notify_all()

    def _next_unjudged(self) -> Unjudged | None:
        with self._changed:
            unjudged = None
            while not self._closed and (unjudged := self._queue.next_unjudged()) is None:
                self._changed.wait()
            if unjudged is not None:
                self._spent.enter(JUDGING)
            return unjudged

    # --- statistics ----------------------------------------------------------------------------

    def metrics(self) -> Mapping[str, float]:
        """Counts and seconds since the start, those of several workers added up.

        `idle/trainer` is the share of its time that the trainer waited in `take`, `idle/workers`
        the share that the workers waited for something to do; `tokens/s` counts every token that
        was drawn against the wall clock, `tokens/busy_s` against the seconds spent generating.
        `staleness/count/k` counts the completions handed out at staleness k, `retried/*` the groups
        that were asked for again: the call failed, or what came was incomplete, refused or stale.
        `rollout/refused` counts the completions of groups that were refused, also by reason.
        """
        with self._changed:
            values = {
                **self._times(),
                **{f"retried/{x}": self._queue.retried[x] for x in REASONS},
                **_histogram(self._queue.staleness),
                "ahead": self._queue.ahead,
            }
            refused = {f"{REFUSED}/{x}": n for x, n in self._queue.refused.items()}
        refused[REFUSED] = sum(refused.values())
        named = {f"collect/{name}": value for name, value in values.items()} | refused
        return {name: float(value) for name, value in named.items()}

    def _times(self) -> dict[str, float]:
        activities = (TRAINER_WAITS, WORKERS_WAIT, GENERATING, PUBLISHING, JUDGING)
        seconds = {activity: self._spent.seconds(activity) for activity in activities}
        elapsed = self._spent.elapsed()
        return {
            **{f"seconds/{activity}": spent for activity, spent in seconds.items()},
            "idle/trainer": _share(seconds[TRAINER_WAITS], elapsed),
            "idle/workers": _share(seconds[WORKERS_WAIT], elapsed * self._limits.workers),
            "tokens/s": _share(self._tokens, elapsed),
            "tokens/busy_s": _share(self._tokens, seconds[GENERATING]),
        }


class _Answer(NamedTuple):
    """The groups of a call of `generate`, and their flaws by the group's place in it."""

    groups: Sequence[Group]
    flaws: Mapping[int, Flaw]


def _activity(command: Command) -> str:
    return PUBLISHING if isinstance(command, Publish) else GENERATING


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _histogram(counts: Mapping[int, int]) -> Mapping[str, float]:
    total = sum(counts.values())
    by_value = {f"staleness/count/{value}": n for value, n in sorted(counts.items())}
    if not total:
        return by_value
    mean = sum(value * n for value, n in counts.items()) / total
    return {**by_value, "staleness/mean": mean, "staleness/max": max(counts)}
