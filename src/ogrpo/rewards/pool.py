"""Rewards run in processes that are killed when they overrun, for many threads at once.

    request -> a call for each reward, all at once -> replies -> a call that failed is repeated for
    each completion alone, all at once -> the weighted sum, and what failed

Plain functions run one call at a time in each of `processes` processes. Coroutines run side by side
in one process more. A function with `bounded = True` runs in the caller's thread.
"""

import math
import weakref
from collections.abc import Collection, Mapping, Sequence

import cloudpickle

from ogrpo.rewards.arguments import Accepted
from ogrpo.rewards.asking import Asker
from ogrpo.rewards.calls import CallBounds, RewardCall
from ogrpo.rewards.lanes import Crew
from ogrpo.rewards.reward import Reward, RewardFn, as_rewards
from ogrpo.rewards.scores import ScoreRequest, Scores
from ogrpo.rewards.tally import Tally
from ogrpo.rewards.verdicts import Verdict, summed, verdicts
from ogrpo.system.worker import Reply


class RewardPool:
    """Scores completions by rewards. `score` may be called from many threads at once.

    The constructor starts one process, which shows that the functions can be loaded; the others
    start when they are needed. What a group is worth depends on the group alone, whichever process
    judges it and in whichever order threads ask.

    What a function prints goes to the standard error. Its memory is bounded on Linux only. A
    process that it starts is ended with it, unless that one made a session of its own.

    A call that raises, overruns, runs out of memory or dies is repeated for each of its completions
    alone, over all processes at once, so that one bad completion does not take the others along; a
    function that compares the completions of a group with each other should therefore not raise.
    When 4 of the repeats have overrun or broken their process, and one more for every 16 that went
    well, the rest of that call fails unasked. A call whose process was stopped or killed by
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
        _check_counts(processes=processes, concurrency=concurrency)
        _check_sizes(seconds=seconds, memory_gib=memory_gib, start_seconds=start_seconds)
        self.rewards = as_rewards(rewards)
        self._accepted = {reward.name: Accepted(reward) for reward in self.rewards}
        self._bounds = CallBounds(seconds, memory_gib)
        self._tally = Tally([reward.name for reward in self.rewards])
        sent = [reward for reward in self.rewards if not reward.bounded]
        functions = {str(reward): _shipped(reward) for reward in sent}
        self._crew = Crew(functions, memory_gib=memory_gib, start_seconds=start_seconds)
        self._asker = Asker(
            self._crew, self._tally, self._bounds, processes=processes, concurrency=concurrency
        )
        self._end = weakref.finalize(self, self._asker.close)
        if sent:
            self._asker.warm(plain=not all(reward.asynchronous for reward in sent))

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def score(self, request: ScoreRequest) -> Scores:
        """Return what completions are worth, when all rewards have judged them.

        Raises:
            ValueError: a function takes an argument that no column gives, or a column cannot be
                sent to a process.
            RuntimeError: the pool is closed, or a process that is needed does not start.
        """
        if not self._end.alive:
            raise RuntimeError("the pool of rewards is closed.")
        n = len(request)
        chosen = [self._accepted[reward.name].choose(request) for reward in self.rewards]
        calls = [RewardCall(r, given, n) for r, given in zip(self.rewards, chosen, strict=True)]
        with self._tally.scoring(n):
            found = self._judge(calls) if n else [[] for _ in calls]
        scores = summed(self.rewards, found)
        self._tally.failed(scores.failures)
        return scores

    def check_columns(self, columns: Collection[str]) -> None:
        """Raise a ValueError if a function takes an argument that is none of a task's columns."""
        for accepted in self._accepted.values():
            accepted.check(columns)

    def metrics(self) -> Mapping[str, float]:
        """Return counts since the pool was made, and what it goes on from, in all and by reward.

        `reward/calls`, `reward/completions`, `reward/seconds` (of work, which overlaps),
        `reward/busy_seconds` (of wall time in which something was scored),
        `reward/completions_per_second` (of busy time), `reward/repeated` (calls repeated for each
        completion alone), `reward/failed` and `reward/failed/<kind>` (completions),
        `reward/processes` (started so far); and `reward/<name>/calls` and so on.
        """
        return self._tally.metrics(self._crew.started)

    def go_on_from(self, before: Mapping[str, float]) -> None:
        """Count on from the `metrics` of an earlier pool, as a resumed run does."""
        self._tally.go_on_from(before)

    def close(self) -> None:
        """End all processes; a `score` under way raises a RuntimeError."""
        self._end()

    def _judge(self, calls: Sequence[RewardCall]) -> list[list[Verdict]]:
        found: dict[str, list[Verdict]] = {}
        singles: list[RewardCall] = []
        for call, reply in self._asker.settle(calls):
            if call.may_be_repeated(reply):
                self._tally.repeated(call.reward.name)
                singles += call.singles()
                found[call.reward.name] = []
            else:
                found[call.reward.name] = self._verdicts(call, reply)
        settled = sorted(self._asker.settle(singles), key=lambda pair: pair[0].first)
        for call, reply in settled:
            found[call.reward.name] += self._verdicts(call, reply)
        return [found[call.reward.name] for call in calls]

    def _verdicts(self, call: RewardCall, reply: Reply) -> list[Verdict]:
        return verdicts(call, reply, self._bounds)


def _shipped(reward: Reward) -> bytes:
    try:
        return cloudpickle.dumps(reward.function)
    except Exception as error:  # a __reduce__ of the user's own may raise anything
        raise ValueError(
            f"{reward} cannot be sent to a process of its own: {error}. Make what it needs inside "
            "the function, or at the top of a file that is imported: my_rewards.py."
        ) from error


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name} is {count!r}; give a whole number of at least 1.")


def _check_sizes(**sizes: float) -> None:
    for name, size in sizes.items():
        if not 0 < size < math.inf:
            raise ValueError(f"{name} is {size!r}; give a finite number > 0.")
