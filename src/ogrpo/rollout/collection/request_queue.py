"""The collector without its threads: requests, what may begin, what is drawn and judged.

    request -> queue -> running -> unjudged -> batch -> handed out
    publish ->   "

One queue, first in first out, holds the pushes of weights and the calls of `generate`, and the
trainer alone appends to it. So the version that a call samples from is decided when the call is
queued, by what the trainer had published before.

Nothing here locks, waits or knows the time; the collector calls it under its lock.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ogrpo.protocol import FloatArray, Group, IntArray, Sampling, derived_seed
from ogrpo.rollout.check import Duplicates, Flaw
from ogrpo.system.files import describe


class CollectionError(RuntimeError):
    """Groups that were asked for cannot be had; the cause is chained."""


@dataclass(frozen=True)
class CollectionLimits:
    """Bounds on how far collection runs ahead of training, and on how hard it tries."""

    lead: int
    """Batches that may be asked for beyond the one that the trainer takes; 0: nothing overlaps."""
    workers: int = 1
    """Calls of `generate` under way at a time."""
    judges: int = 1
    """Calls of `reward_fn` under way at a time."""
    prompts_per_call: int | None = None
    """Prompts in one call of `generate`; None: a whole batch."""
    attempts: int = 3
    """Times that a prompt is drawn before the run gives up."""
    ordered: bool = True
    """Whether new weights wait for the calls under way. If so, the version that draws each group
    does not depend on timing, however many workers there are; if not, nobody waits, and a call
    under way deals with new weights as its engine does."""
    grace: float = 30.0
    """Seconds that the end of a run waits for calls under way."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name in ("lead", "grace") else 1
            if value is not None and name != "ordered" and value < least:
                raise ValueError(f"limits.{name} is {value}: give at least {least}")


@dataclass(frozen=True, eq=False)
class Request:
    """The prompts of one step's batch; `problems` are their places in the data set."""

    step: int
    problems: Sequence[int]
    prompts: Sequence[IntArray]
    seed: int

    def __post_init__(self) -> None:
        if len(self.problems) != len(self.prompts) or not self.prompts:
            raise ValueError(
                f"step {self.step} asks for {len(self.problems)} problems with "
                f"{len(self.prompts)} prompts: give one prompt a problem, and at least one"
            )


@dataclass(frozen=True, eq=False)
class Rewarded:
    """A group and the rewards of its completions.

    Attributes:
      group: the group.
      rewards: float32 `[G]`, what an update learns from; NaN where a completion was not judged.
      values: float32 `[G]` of each reward by its name, NaN where it gave none.
      failures: a message for each completion that no reward could judge, and that carries no
        loss.
    """

    group: Group
    rewards: FloatArray
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


GroupRewardFn = Callable[[Request, Sequence[int], Sequence[Group]], Sequence[Rewarded]]
"""`(request, places of its prompts, their groups) -> one Rewarded for each group`."""


@dataclass(frozen=True, eq=False)
class RewardedBatch:
    """One whole rewarded group for each prompt of a request, in the order of its prompts."""

    request: Request
    rewarded: list[Rewarded]

    @property
    def groups(self) -> list[Group]:
        """Returns the groups without their rewards."""
        return [each.group for each in self.rewarded]


@dataclass(frozen=True, eq=False)
class Unjudged:
    """Groups that were drawn for the prompts at `places` of a request."""

    request: Request
    places: tuple[int, ...]
    groups: tuple[Group, ...]

    def check(self, rewarded: Sequence[Rewarded]) -> None:
        """Raises ValueError unless there is one judgement for each completion."""
        sizes = [len(group.completions) for group in self.groups]
        rewards = [len(each.rewards) for each in rewarded]
        if sizes != rewards:
            raise ValueError(
                f"step {self.request.step}: groups of {sizes} completions came back with {rewards}"
                " rewards; a judge gives one for each completion"
            )


@dataclass(frozen=True, eq=False)
class Call:
    """One call of `generate`: the prompts at `places` of a request."""

    request: Request
    places: tuple[int, ...]
    seed: int
    attempt: int = 1

    @property
    def prompts(self) -> list[IntArray]:
        """Returns the prompts of the call."""
        return [self.request.prompts[place] for place in self.places]

    def check(self, groups: Sequence[Group]) -> None:
        """Raises ValueError unless an answer is one group for each prompt, in order."""
        step = self.request.step
        if len(groups) != len(self.places):
            raise ValueError(
                f"step {step}: the engine gave {len(groups)} groups for "
                f"{len(self.places)} prompts; an engine returns one for each"
            )
        for place, prompt, group in zip(self.places, self.prompts, groups, strict=True):
            if not np.array_equal(prompt, group.prompt_ids):
                raise ValueError(
                    f"step {step}: the group at place {place} answers another prompt; "
                    "an engine returns groups in the order of the prompts"
                )


@dataclass(frozen=True, eq=False)
class Publish:
    """Weights on their way to the engine."""

    params: Any
    version: int


EngineCommand = Call | Publish


@dataclass(eq=False)
class _Batch:
    request: Request
    rewarded: dict[int, Rewarded] = field(default_factory=dict)
    drawn: int = 0
    duplicates: Duplicates = field(default_factory=Duplicates)


class RequestQueue:
    """The state of collection.

    Attributes:
      version: the version published last, None before any.
      error: the error that ended collection.
      retried: prompts that were drawn again, as their groups were refused.
      refused: completions of the groups that were refused, by the reason.
      staleness: completions handed out, by their staleness.
      under_way: calls and pushes that the engine is at; one that is done is taken out.
      unjudged: what judges take next, from the left.
    """

    def __init__(
        self,
        request_at: Callable[[int], Request],
        *,
        steps: range,
        sampling: Sampling,
        limits: CollectionLimits,
    ) -> None:
        self.version: int | None = None
        self.error: CollectionError | None = None
        self.retried = 0
        self.refused: Counter[str] = Counter()
        self.staleness: Counter[int] = Counter()
        self.under_way: set[EngineCommand] = set()
        self._request_at, self._sampling = request_at, sampling
        self._limits, self._steps = limits, steps
        self._requested, self._next = steps.start, steps.start
        self._queue: deque[EngineCommand] = deque()
        self.unjudged: deque[Unjudged] = deque()
        self._batches: dict[int, _Batch] = {}

    @property
    def push_waits(self) -> bool:
        """Whether weights wait for the engine behind calls that are to be drawn from older ones."""
        return any(isinstance(command, Publish) for command in self._queue)

    # --- the trainer's side --------------------------------------------------------------------

    def request(self, until: int) -> None:
        """Requests every batch up to that of step `until`, once, as far as the run goes."""
        if self.version is None:
            raise RuntimeError(f"request({until}) before publish(): there are no weights yet")
        while self._requested <= until and self._requested in self._steps:
            request = self._request_at(self._requested)
            self._batches[request.step] = _Batch(request)
            places = tuple(range(len(request.prompts)))
            size = self._limits.prompts_per_call or len(places)
            for n, start in enumerate(range(0, len(places), size)):
                # An only call has the request's seed.
                seed = request.seed if size >= len(places) else derived_seed(request.seed, n)
                self._queue.append(Call(request, places[start : start + size], seed))
            self._requested += 1

    def publish(self, params: Any, version: int) -> None:
        """Has the calls that are queued from now on sample from `params`."""
        if self.version is not None and version <= self.version:
            raise ValueError(
                f"version {version} after version {self.version}: publish in ascending order"
            )
        self.version = version
        self._queue.append(Publish(params, version))

    # --- the workers' side ---------------------------------------------------------------------

    def begin(self) -> EngineCommand | None:
        """Returns what a free worker does next; None if it has to wait.

        A push of ordered weights waits for the calls under way, and calls wait for any push.
        """
        if self.error is not None or not self._queue:
            return None
        if isinstance(self._queue[0], Publish) and self._limits.ordered:
            barred = bool(self.under_way)
        else:
            barred = any(isinstance(command, Publish) for command in self.under_way)
        if barred:
            return None
        command = self._queue.popleft()
        self.under_way.add(command)
        return command

    def drawn(self, call: Call, groups: Sequence[Group], flaws: Mapping[int, Flaw]) -> None:
        """Keeps what is whole and as ordered; the prompts of the rest are drawn again.

        `flaws` are those of the groups, by their place among them (`ogrpo.rollout.check`).
        """
        self.under_way.remove(call)
        batch = self._batches[call.request.step]
        drawn = dict(zip(call.places, groups, strict=True))
        refused = {call.places[n]: flaw for n, flaw in flaws.items()}
        whole = {place: group for place, group in drawn.items() if place not in refused}
        refused |= batch.duplicates.repeated(whole, greedy=self._sampling.greedy)
        fit = {place: group for place, group in whole.items() if place not in refused}
        if fit:
            batch.drawn += len(fit)
            self.unjudged.append(Unjudged(call.request, (*fit,), (*fit.values(),)))
        for place, flaw in refused.items():
            self.refused[flaw.reason] += len(drawn[place].completions)
        if refused:
            self._draw_again(call, refused)

    def failed(self, command: EngineCommand, error: BaseException) -> None:
        """Ends collection, as the engine failed."""
        self.under_way.remove(command)
        if isinstance(command, Publish):
            self._end(f"version {command.version} was not published: ", error)
        else:
            self._end(f"step {command.request.step}: ", error)

    def _draw_again(self, call: Call, refused: Mapping[int, Flaw]) -> None:
        if call.attempt >= self._limits.attempts:
            first = next(iter(refused.values()))
            self._end(
                f"step {call.request.step}: {len(refused)} of {len(call.places)} groups are "
                f"refused after {call.attempt} attempts, the first: {first}",
                None,
            )
            return
        self.retried += len(refused)
        # With the same seed they would be drawn as they were.
        seed = derived_seed(call.seed, call.attempt)
        again = replace(call, places=tuple(refused), seed=seed, attempt=call.attempt + 1)
        # Ahead of the queue: what was requested before the next weights is drawn before them.
        self._queue.appendleft(again)

    def _end(self, message: str, cause: BaseException | None) -> None:
        if self.error is None:
            reason = describe(cause) if isinstance(cause, OSError) else str(cause or "")
            self.error = CollectionError(message + reason)
            self.error.__cause__ = cause

    # --- the judges' side ----------------------------------------------------------------------

    def judged(self, unjudged: Unjudged, rewarded: Sequence[Rewarded]) -> None:
        """Keeps groups with their rewards."""
        batch = self._batches[unjudged.request.step]
        batch.rewarded.update(zip(unjudged.places, rewarded, strict=True))

    def unjudgeable(self, unjudged: Unjudged, error: BaseException) -> None:
        """Ends collection, as a judge failed."""
        self._batches[unjudged.request.step].drawn -= len(unjudged.places)
        self._end(f"step {unjudged.request.step}: ", error)

    # --- batches -------------------------------------------------------------------------------

    def complete(self, step: int) -> bool:
        """Returns whether the whole batch of a step is there."""
        batch = self._batches.get(step)
        return batch is not None and len(batch.rewarded) == len(batch.request.prompts)

    def lost(self, step: int) -> bool:
        """Returns whether collection has ended before every group of a step was drawn."""
        batch = self._batches.get(step)
        whole = batch is not None and batch.drawn == len(batch.request.prompts)
        return self.error is not None and not whole

    def check_turn(self, step: int) -> None:
        """Raises ValueError unless the step is the next of the run."""
        if step != self._next or step not in self._steps:
            raise ValueError(
                f"take({step}), but the next step is {self._next} of {self._steps}: each step's "
                "batch is taken once, in order"
            )

    def hand_out(self, step: int) -> RewardedBatch:
        """Returns the batch of a step, which must be complete."""
        batch = self._batches.pop(step)
        self._next = step + 1
        rewarded = [batch.rewarded[place] for place in range(len(batch.request.prompts))]
        self.staleness.update(
            step - c.policy_version for each in rewarded for c in each.group.completions
        )
        return RewardedBatch(batch.request, rewarded)
