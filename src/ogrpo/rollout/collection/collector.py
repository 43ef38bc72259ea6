"""Draws the batches of a run ahead of its trainer, in threads of its own.

    trainer          publish(params, version)         take(step)
                          |                           |      ^
    queue                 +-> push . draw . draw . push . draw  (first in, first out)
                                |                            |
    workers             engine.publish / engine.generate  -> whole batches

`take(step)` asks for the batches up to step + lead and waits for its own; `publish` returns at
once. With one worker, what the engine is called with depends on the order of the trainer's calls
alone. A batch is handed out when every prompt of it has its group, however long the slowest takes:
nothing favours prompts that are answered fast. An engine repeats by itself what may succeed later,
and its timeouts turn an answer that never comes into an error: any error of it ends collection.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from ogrpo.protocol import Engine, Group, Sampling
from ogrpo.rollout.check import REFUSED, Flaw, Requirements, flaws
from ogrpo.rollout.collection.request_queue import (
    CollectionLimits,
    GroupRewardFn,
    Publish,
    Request,
    RequestQueue,
    Rewarded,
    RewardedBatch,
)
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
TRAINER, WORKERS = "trainer", "workers"
"""Those who wait: the trainer in `take`, the workers for something to do."""


class Collector(AbstractContextManager["Collector"]):
    """Draws an engine's groups, batch by batch; its threads end with `close` or the `with` block.

    Args:
      engine: called from the collector's threads only, from several at once with several workers.
      request_at: step -> the prompts of its batch; called in the trainer's thread, once a step.
      sampling: how all batches are drawn.
      reward_fn: what judges groups; called from the judges' threads, from several at once.
      steps: the steps of the run that are to come; nothing is drawn beyond them.
      limits: see `CollectionLimits`.
      required: what completions are checked against, beside the versions published; by default
        the sampling alone.
    """

    def __init__(
        self,
        engine: Engine,
        request_at: Callable[[int], Request],
        sampling: Sampling,
        reward_fn: GroupRewardFn,
        *,
        steps: range,
        limits: CollectionLimits,
        required: Requirements | None = None,
    ) -> None:
        self._engine, self._sampling, self._limits = engine, sampling, limits
        self._reward_fn = reward_fn
        self._versions: set[int] = set()
        self._required = replace(required or Requirements(sampling), versions=self._versions)
        self._queue = RequestQueue(request_at, steps=steps, sampling=sampling, limits=limits)
        self._changed = threading.Condition()
        self._closed = False
        self._held = False
        self._waiting: Counter[str] = Counter()
        self._judging = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._start = self._last = time.perf_counter()
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
        """Returns the version published last, which the engine has in its turn; None before any."""
        with self._changed:
            return self._queue.version

    def publish(self, params: Any, version: int) -> None:
        """Has every batch that is requested from now on drawn from `params`; does not wait.

        Nobody may overwrite `params` until newer ones are published; lead + 1 are held at most. An
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
        """Requests the batches up to that of step `until`; `take` does so by itself.

        Raises:
          RuntimeError: nothing was published yet, or the collector was closed.
        """
        with self._changed:
            self._check_open()
            self._queue.request(until)
            self._changed.notify_all()

    def take(self, step: int) -> RewardedBatch:
        """Returns the batch of a step, waiting for it; steps are taken in order, each once.

        Raises:
          ValueError: the step is not the next.
          CollectionError: the batch cannot be had; the engine's error is chained.
          RuntimeError: nothing was published yet, or the collector was closed.
        """
        with self._changed:
            self.request(step + self._limits.lead)
            self._queue.check_turn(step)
            self._waits(TRAINER, 1)
            try:
                while not self._queue.complete(step):
                    self._check_open()
                    if self._queue.error is not None and self._queue.lost(step):
                        raise self._queue.error
                    self._changed.wait()
            finally:
                self._waits(TRAINER, -1)
            return self._queue.hand_out(step)

    @contextmanager
    def alone(self) -> Iterator[Engine]:
        """Yields the engine for the caller alone: nothing is under way, nothing begins meanwhile.

        The caller gives the engine back with the weights of `version`: calls that wait for older
        ones are made first.
        """
        with self._changed:
            while self._queue.push_waits and self._queue.error is None:
                self._check_open()
                self._changed.wait()
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

    def _waits(self, who: str, by: int) -> None:
        """Adds up the seconds waited until now; then `by` more threads wait, with -1 one less."""
        now = time.perf_counter()
        for name, count in self._waiting.items():
            self._seconds[name] += count * (now - self._last)
        self._last = now
        self._waiting[who] += by

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
            left = len(self._queue.under_way) + self._judging
        if left:
            log.warning(
                "%d calls of engine or rewards did not end in %g s: they are left to themselves",
                left,
                self._limits.grace,
            )

    def __exit__(self, *_: object) -> None:
        """Closes the collector."""
        self.close()

    # --- the workers' side ---------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                self._waits(WORKERS, 1)
                command = None
                while not self._closed and (self._held or (command := self._queue.begin()) is None):
                    self._changed.wait()
                self._waits(WORKERS, -1)
                if command is None:
                    return
            groups: Sequence[Group] = ()
            flawed: Mapping[int, Flaw] = {}
            error: BaseException | None = None
            try:
                if isinstance(command, Publish):
                    self._engine.publish(command.params, command.version)
                else:
                    groups = self._engine.generate(command.prompts, self._sampling, command.seed)
                    command.check(groups)
                    flawed = flaws(groups, self._required)
            except BaseException as caught:  # Not handled here: the trainer's thread raises it.
                error = caught
            with self._changed:
                if error is not None:
                    log.warning("collection: %s: %s", type(error).__name__, shown(error))
                    self._queue.failed(command, error)
                elif isinstance(command, Publish):
                    self._queue.under_way.remove(command)
                else:
                    self._tokens += sum(len(c.token_ids) for g in groups for c in g.completions)
                    for flaw in list(flawed.values())[:1]:
                        log.warning("collection: %d groups are refused: %s", len(flawed), flaw)
                    self._queue.drawn(command, groups, flawed)
                self._changed.notify_all()

    def _judge(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._queue.unjudged:
                    self._changed.wait()
                if self._closed:
                    return
                unjudged = self._queue.unjudged.popleft()
                self._judging += 1
            rewarded: Sequence[Rewarded] = ()
            error: BaseException | None = None
            try:
                rewarded = self._reward_fn(unjudged.request, unjudged.places, unjudged.groups)
                unjudged.check(rewarded)
            except BaseException as caught:  # Not handled here: the trainer's thread raises it.
                error = caught
            with self._changed:
                self._judging -= 1
                if error is None:
                    self._queue.judged(unjudged, rewarded)
                else:
                    self._queue.unjudgeable(unjudged, error)
                self._changed.notify_all()

    # --- statistics ----------------------------------------------------------------------------

    def metrics(self) -> Mapping[str, float]:
        """Returns counts and shares since the start, those of several workers added up.

        `idle/trainer` is the share of its time that the trainer waited in `take`, `idle/workers`
        the share that the workers waited for something to do; `tokens/s` counts every token that
        was drawn. `staleness/count/k` counts the completions handed out at staleness k,
        `retried` the groups that were refused and drawn again. `rollout/refused` counts the
        completions of groups that were refused, also by reason.
        """
        with self._changed:
            self._waits(TRAINER, 0)
            elapsed = max(self._last - self._start, 1e-9)
            counts = sorted(self._queue.staleness.items())
            values = {
                "idle/trainer": self._seconds[TRAINER] / elapsed,
                "idle/workers": self._seconds[WORKERS] / (elapsed * self._limits.workers),
                "tokens/s": self._tokens / elapsed,
                "retried": self._queue.retried,
                **{f"staleness/count/{k}": n for k, n in counts},
            }
            if total := sum(n for _, n in counts):
                values["staleness/mean"] = sum(k * n for k, n in counts) / total
                values["staleness/max"] = counts[-1][0]
            refused = {f"{REFUSED}/{x}": n for x, n in self._queue.refused.items()}
        refused[REFUSED] = sum(refused.values())
        named = {f"collect/{name}": value for name, value in values.items()} | refused
        return {name: float(value) for name, value in named.items()}
