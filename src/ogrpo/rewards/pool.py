"""Rewards run in processes that are killed when they overrun, for many threads at once.

    request -> a call for each reward, all at once -> replies -> a call that failed is repeated for
    each completion alone, all at once -> the weighted sum, and what failed

Plain functions run one call at a time in each of `processes` processes. Coroutines run side by side
in one process more. A function with `bounded = True` runs in the caller's thread.
"""

import contextlib
import math
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import cloudpickle

from ogrpo.rewards.reward import Reward, RewardFn, as_rewards
from ogrpo.rewards.scores import KINDS, Failure, RewardVerdict, ScoreRequest, Scores, weighted_sum
from ogrpo.rewards.workers import Workers
from ogrpo.system._serve import compute, refusal
from ogrpo.system.worker import CallFailure, Reply, WorkerProcess

_FAILED = {kind: f"failed/{kind.replace(' ', '_')}" for kind in KINDS}
_NONE: dict[str, float] = {"calls": 0, "completions": 0, "seconds": 0.0, "repeated": 0, "failed": 0}
_NONE |= dict.fromkeys(_FAILED.values(), 0)


class Tally:
    """Counts since its making, from several threads, in all and for each of some rewards."""

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self._before: dict[str, float] = {}
        self._lock = threading.Lock()
        self._by_reward = {reward.name: {**_NONE} for reward in rewards}
        self._counting = {reward.name for reward in rewards if reward.weight != 0.0}
        self._failed = {key: _NONE[key] for key in ("failed", *_FAILED.values())}
        self._completions = self._under_way = 0
        self._busy = self._since = 0.0

    @contextlib.contextmanager
    def scoring(self, completions: int) -> Iterator[None]:
        """Counts completions, and the time in which at least one thread is in here."""
        with self._lock:
            self._since = self._since if self._under_way else time.monotonic()
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._completions += completions
                self._under_way -= 1
                if not self._under_way:
                    self._busy += time.monotonic() - self._since

    def count(self, name: str, **counts: float) -> None:
        """Adds to the counts of a reward: `calls`, `completions`, `seconds`, `repeated`."""
        with self._lock:
            for key, count in counts.items():
                self._by_reward[name][key] += count

    def failed(self, failures: Iterable[Failure]) -> None:
        """Counts completions without a number for each reward; in all, those without loss, once."""
        without_loss: dict[int, Failure] = {}
        with self._lock:
            for failure in failures:
                _add(self._by_reward[failure.reward], failure)
                if failure.reward in self._counting:
                    without_loss.setdefault(failure.completion, failure)
            for failure in without_loss.values():
                _add(self._failed, failure)

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Continues an earlier tally, by the names of `metrics`; others are passed over.

        What was counted here until now is in the earlier tally too: a resumed run judges the shown
        answers of its start once more.
        """
        self._before = {}
        counted = self.metrics()
        with self._lock:
            self._before = {name: value - counted.get(name, 0) for name, value in before.items()}

    def metrics(self, processes: int = 0) -> Mapping[str, float]:
        """Returns every count, in all and by reward; `processes` were started so far."""
        with self._lock:
            groups = {f"reward/{name}": {**counts} for name, counts in self._by_reward.items()}
            now = time.monotonic() - self._since if self._under_way else 0.0
            busy, completions, failed = self._busy + now, self._completions, {**self._failed}
        total = {key: sum(counts[key] for counts in groups.values()) for key in _NONE} | failed
        metrics: dict[str, float] = {
            f"{prefix}/{key}": count
            for prefix, counts in ({"reward": total} | groups).items()
            for key, count in counts.items()
        }
        metrics["reward/completions"] = completions  # each once, however many rewards judge it
        metrics["reward/busy_seconds"] = busy
        metrics["reward/processes"] = processes
        metrics = {name: value + self._before.get(name, 0) for name, value in metrics.items()}
        completions, busy = metrics["reward/completions"], metrics["reward/busy_seconds"]
        metrics["reward/completions_per_second"] = completions / busy if busy else 0.0
        return metrics


def _add(counts: dict[str, float], failure: Failure) -> None:
    counts["failed"] += 1
    counts[_FAILED[failure.kind]] += 1


BROKEN_PROCESSES = 4
"""How many completions, judged alone after their call failed, may overrun or break their process
before the rest of that call is not judged any more: a function that never ends would take its bound
for each."""
FORGIVEN_AFTER = 16
"""Completions that went well and make up for one that did not: a few bad ones among many are no
reason to leave the others unjudged."""

GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, modulo 1, spread evenly."""
COSTLY = ("timeout", "memory", "died")
UNASKED = (
    "was not asked for this completion: its call over all of them failed, and too many of the"
    " others, asked alone, overran or broke their process"
)
"""What is said of a repeat that is not made any more."""


class RepeatBudget:
    """Failures that repeats may still have: `BROKEN_PROCESSES`, more where others went well."""

    def __init__(self) -> None:
        self.kind: CallFailure = "timeout"  # of the last that was costly
        self._left = float(BROKEN_PROCESSES)
        self._lock = threading.Lock()

    @property
    def exhausted(self) -> bool:
        """Whether no more repeats are made."""
        with self._lock:
            return self._left <= 0

    def note(self, reply: Reply) -> None:
        """Counts a costly reply, or one that makes up for a part of one."""
        with self._lock:
            self._left -= 1 if reply.kind in COSTLY else -1 / FORGIVEN_AFTER
            self.kind = reply.kind if reply.kind in COSTLY else self.kind


@dataclass(frozen=True)
class RewardCall:
    """A call of a reward over completions `first`, `first + 1`, ... of a request."""

    reward: Reward
    arguments: dict[str, list[Any]]
    count: int
    first: int = 0
    alone: bool = False  # in a process of its own, though it is a coroutine
    repeats: RepeatBudget | None = field(default=None, compare=False)

    @property
    def shared(self) -> bool:
        """Whether the call shares its process with others."""
        return self.reward.asynchronous and not self.alone

    def blameless(self, reply: Reply) -> bool:
        """Whether the end of the process may be the fault of another call, or of none.

        So it is where the process was stopped or killed from outside, and with a coroutine, whose
        process another one may have ended.
        """
        return reply.outside or (reply.ended and self.shared)

    def singles(self) -> Iterator["RewardCall"]:
        """Yields a call for each completion, bad neighbours (of one prompt, say) far apart."""
        repeats = RepeatBudget()
        for index in sorted(range(self.count), key=lambda n: n * GOLDEN % 1):
            arguments = {name: values[index : index + 1] for name, values in self.arguments.items()}
            yield replace(self, arguments=arguments, count=1, first=index, repeats=repeats)


class RewardPool(contextlib.AbstractContextManager["RewardPool"]):
    """Scores completions by rewards. `score` may be called from many threads at once.

    The constructor starts one process, which shows that the functions can be loaded; the others
    start when they are needed. A group's rewards depend on the group alone, whichever process
    judges it and in whichever order threads call.

    What a function prints goes to the standard error. Its memory is bounded on Linux only. A
    process that it starts is ended with it, unless that one made a session of its own.

    A call that raises, overruns, runs out of memory or dies is repeated for each of its completions
    alone, over all processes at once, so that one bad completion does not take the others along; a
    function that compares the completions of a group with each other should therefore not raise.
    When 4 of the repeats have overrun or broken their process, and one more for every 16 that went
    well, the rest of that call fails unjudged. A call whose process was stopped or killed by
    somebody else (the kernel, for want of memory) is first made once more, in another process.

    Args:
      rewards: functions with TRL's signature, or `Reward`s. The pool does not close those with
        `bounded = True`.
      processes: how many plain functions run at once.
      seconds: of wall time, the bound on one call; waiting for a process does not count, nor does
        its start.
      memory_gib: GiB of address space of each process, with the interpreter and what it imports.
      concurrency: how many calls of coroutines are under way at once.
      start_seconds: the bound on a process's start, with the imports of its functions.

    Raises:
      ValueError: a function cannot be sent to a process, or cannot be loaded there; it is named.
      RuntimeError: a process does not start.
    """

    def __init__(
        self,
        rewards: Sequence[Reward | RewardFn],
        *,
        processes: int,
        seconds: float,
        memory_gib: float,
        concurrency: int = 32,
        start_seconds: float = 120.0,
    ) -> None:
        for name, count in {"processes": processes, "concurrency": concurrency}.items():
            if not isinstance(count, int) or count < 1:
                raise ValueError(f"{name} is {count!r}; give a whole number of at least 1.")
        sizes = {"seconds": seconds, "memory_gib": memory_gib, "start_seconds": start_seconds}
        for name, size in sizes.items():
            if not 0 < size < math.inf:
                raise ValueError(f"{name} is {size!r}; give a finite number > 0.")
        self.rewards = as_rewards(rewards)
        self._seconds, self._memory_gib = seconds, memory_gib
        self._tally = Tally(self.rewards)
        sent = [reward for reward in self.rewards if not reward.bounded]
        self._workers = Workers(
            {str(reward): _pickled(reward) for reward in sent},
            memory_gib=memory_gib,
            start_seconds=start_seconds,
            processes=processes,
            concurrency=concurrency,
        )
        self._end = weakref.finalize(self, self._workers.close)
        if sent:
            self._workers.warm(shared=all(reward.asynchronous for reward in sent))

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, request: ScoreRequest) -> Scores:
        """Returns the rewards of completions, when all functions have judged them.

        Raises:
          ValueError: a function takes an argument that no column gives, or a column cannot be
            sent to a process.
          RuntimeError: the pool is closed, or a process that is needed does not start.
        """
        if not self._end.alive:
            raise RuntimeError("the pool of rewards is closed.")
        n = len(request)
        calls = [RewardCall(r, request.arguments(r), n) for r in self.rewards]
        with self._tally.scoring(n):
            verdicts = self._judge(calls) if n else [[] for _ in calls]
        scores = weighted_sum(self.rewards, verdicts)
        self._tally.failed(scores.failures)
        return scores

    def metrics(self) -> Mapping[str, float]:
        """Returns counts since the pool was made, and what it goes on from, in all and by reward.

        `reward/calls`, `reward/completions`, `reward/seconds` (of work, which overlaps),
        `reward/busy_seconds` (of wall time in which something was scored),
        `reward/completions_per_second` (of busy time), `reward/repeated` (calls repeated for each
        completion alone), `reward/failed` and `reward/failed/<kind>` (completions without a reward,
        each once), `reward/processes` (started so far); and `reward/<name>/calls` and so on.
        """
        return self._tally.metrics(self._workers.started)

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Counts on from the `metrics` of an earlier pool, as a resumed run does."""
        self._tally.go_on_from(before)

    def close(self) -> None:
        """Ends all processes; a `score` under way raises a RuntimeError."""
        self._end()

    def _judge(self, calls: Sequence[RewardCall]) -> list[list[RewardVerdict]]:
        verdicts: dict[str, list[RewardVerdict]] = {call.reward.name: [] for call in calls}
        singles: list[RewardCall] = []
        for call, reply in self._replies(calls):
            # A wrong number of values is the function's fault: one that returns a single number for
            # any list would seem to be right when it judges one completion.
            if call.count > 1 and reply.kind not in (None, "wrong count"):
                self._tally.count(call.reward.name, repeated=1)
                singles += call.singles()
            else:
                verdicts[call.reward.name] = self._verdicts(call, reply)
        for call, reply in sorted(self._replies(singles), key=lambda pair: pair[0].first):
            verdicts[call.reward.name] += self._verdicts(call, reply)
        return list(verdicts.values())

    def _replies(self, calls: Sequence[RewardCall]) -> list[tuple[RewardCall, Reply]]:
        """Makes calls, and makes those once more in another process that may not be to blame."""
        replied = self._call_all(calls)
        again = [i for i, (call, reply) in enumerate(replied) if call.blameless(reply)]
        repeated = self._call_all([replace(calls[i], alone=True) for i in again])
        for i, pair in zip(again, repeated, strict=True):
            replied[i] = pair
        return replied

    def _call_all(self, calls: Sequence[RewardCall]) -> list[tuple[RewardCall, Reply]]:
        try:
            futures = {
                i: self._workers.submit(partial(self._call, call), shared=call.shared)
                for i, call in enumerate(calls)
                if not call.reward.bounded
            }
            here = {i: self._call(call) for i, call in enumerate(calls) if i not in futures}
            replies = [here[i] if i in here else futures[i].result() for i in range(len(calls))]
        except (RuntimeError, CancelledError) as error:
            if not self._workers.closed:
                raise
            raise RuntimeError("the pool of rewards was closed.") from error
        if self._workers.closed:
            raise RuntimeError("the pool of rewards was closed.")
        return list(zip(calls, replies, strict=True))

    def _call(self, call: RewardCall, worker: WorkerProcess | None = None) -> Reply:
        """Calls in a process, or in the caller's thread where there is none, and counts it."""
        if call.repeats is not None and call.repeats.exhausted:
            return Reply(kind=call.repeats.kind, message=UNASKED)
        if worker is None:
            begun = time.monotonic()
            try:
                answer = compute(call.reward.function, call.arguments, call.count)
            except Exception as error:  # a user's function may raise anything
                answer = refusal(error)
            reply = Reply.of({**answer, "seconds": time.monotonic() - begun})
        else:
            reply = worker.call(
                str(call.reward),
                call.arguments,
                seconds=self._seconds,
                count=call.count,
                asynchronous=call.reward.asynchronous,
            )
        if call.repeats is not None and (call.alone or not call.blameless(reply)):
            call.repeats.note(reply)
        counts = {"calls": 1, "completions": call.count, "seconds": reply.seconds}
        self._tally.count(call.reward.name, **counts)
        return reply

    def _verdicts(self, call: RewardCall, reply: Reply) -> list[RewardVerdict]:
        """Returns a verdict on each completion of a call."""
        name = call.reward.name
        indices = range(call.first, call.first + call.count)
        if reply.kind is not None:
            message = f"{call.reward} {self._why(call, reply)}"
            return [Failure(name, i, reply.kind, message) for i in indices]
        verdicts: list[RewardVerdict] = []
        for i, value in zip(indices, reply.result, strict=True):
            if isinstance(value, float) or value["kind"] == "none":
                verdicts.append(value if isinstance(value, float) else None)
            else:
                message = f"{call.reward} {value['message']} for completion {i}"
                message += ", which is no finite float32 number"
                verdicts.append(Failure(name, i, value["kind"], message))
        return verdicts

    def _why(self, call: RewardCall, reply: Reply) -> str:
        if reply.message == UNASKED:
            return UNASKED
        over = f" for {call.count} completions at once" if call.count > 1 else ""
        messages = {
            "timeout": f"did not end within {self._seconds:g} s of wall time{over}",
            "memory": f"ran out of its {self._memory_gib:g} GiB of memory{over}: {reply.message}",
            "died": f"was not done{over}: {reply.message}",
        }
        return messages.get(reply.kind or "", reply.message)


def _pickled(reward: Reward) -> bytes:
    try:
        return cloudpickle.dumps(reward.function)
    except Exception as error:  # a __reduce__ of the user's own may raise anything
        raise ValueError(
            f"{reward} cannot be sent to a process of its own: {error}. Make what it needs inside "
            "the function, or at the top of a file that is imported: my_rewards.py."
        ) from error
