"""Requests of a step, the calls that they are cut into, and the batch that the step gets."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ogrpo.protocol import FloatArray, Group, IntArray


@dataclass(frozen=True, eq=False)
class Request:
    """The prompts of one step's batch."""

    step: int
    problems: Sequence[int]
    """Where each prompt stands in the data set."""
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
    """A group and what its completions earned."""

    group: Group
    rewards: FloatArray
    """float32 `[G]`, what an update learns from; NaN where a completion was not judged."""
    values: Mapping[str, FloatArray] = field(default_factory=dict)
    """float32 `[G]` of each reward by its name, NaN where it gave none."""
    failures: tuple[str, ...] = ()
    """A message for each completion that no reward could judge, and that carries no loss."""


RewardFn = Callable[[Request, Sequence[int], Sequence[Group]], Sequence[Rewarded]]
"""`(request, places of its prompts, their groups) -> one Rewarded for each group`."""


@dataclass(frozen=True, eq=False)
class Taken:
    """One whole rewarded group for each prompt of a request, in the order of its prompts."""

    request: Request
    rewarded: list[Rewarded]

    @property
    def groups(self) -> list[Group]:
        """The groups without their rewards."""
        return [each.group for each in self.rewarded]


@dataclass(frozen=True, eq=False)
class Unjudged:
    """Groups that were drawn for the prompts at `places` of a request."""

    request: Request
    places: tuple[int, ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """One call of `generate`: the prompts at `places` of a request."""

    request: Request
    places: tuple[int, ...]
    seed: int
    attempt: int = 1

    @property
    def prompts(self) -> list[IntArray]:
        """The prompts of the call."""
        return [self.request.prompts[place] for place in self.places]

    def again(self, places: Sequence[int]) -> "Call":
        """Another attempt at some of the places.

        A call that gave nothing is repeated as it was, so that failures change no sample; a part
        of a call gets a seed of its own, as its prompts move to other places of the call.
        """
        whole = tuple(places) == self.places
        seed = self.seed if whole else derived_seed(self.seed, self.attempt)
        return replace(self, places=tuple(places), seed=seed, attempt=self.attempt + 1)


def derived_seed(seed: int, n: int) -> int:
    """The `n`-th independent 31-bit seed of a seed."""
    return int(np.random.SeedSequence([seed, n]).generate_state(1)[0] >> 1)


def calls(request: Request, prompts_per_call: int | None) -> list[Call]:
    """The calls that a request is cut into; the only call of a request has the request's seed."""
    places = range(len(request.prompts))
    if prompts_per_call is None or prompts_per_call >= len(places):
        return [Call(request, tuple(places), request.seed)]
    return [
        Call(
            request, tuple(places[start : start + prompts_per_call]), derived_seed(request.seed, n)
        )
        for n, start in enumerate(places[::prompts_per_call])
    ]


def check_answer(call: Call, groups: Sequence[Group]) -> None:
    """Refuses an answer that is not one group for each prompt, in order.

    Raises:
        ValueError: rewards would be given for the answers to other prompts.
    """
    if len(groups) != len(call.places):
        raise ValueError(
            f"step {call.request.step}: the engine gave {len(groups)} groups for "
            f"{len(call.places)} prompts; an engine returns one for each"
        )
    for place, prompt, group in zip(call.places, call.prompts, groups, strict=True):
        if not np.array_equal(prompt, group.prompt_ids):
            raise ValueError(
                f"step {call.request.step}: the group at place {place} answers another prompt; "
                "an engine returns groups in the order of the prompts"
            )


def check_rewards(unjudged: Unjudged, rewarded: Sequence[Rewarded]) -> None:
    """Refuses judgements that are not one for each group.

    Raises:
        ValueError: a group would get the rewards of another, or none.
    """
    sizes = [len(group.completions) for group in unjudged.groups]
    rewards = [len(each.rewards) for each in rewarded]
    if sizes != rewards:
        raise ValueError(
            f"step {unjudged.request.step}: groups of {sizes} completions came back with {rewards}"
            " rewards; a judge gives one for each completion"
        )
