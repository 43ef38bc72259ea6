"""What a step asks for, the calls that it is cut into, and what the step is given in the end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ogrpo.rollout.protocol import Group, IntArray


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
class Taken:
    """One whole group for each prompt of a request, in the order of its prompts."""

    request: Request
    groups: list[Group]


@dataclass(frozen=True, eq=False)
class Draw:
    """One call of `generate`: the prompts at `places` of a request."""

    request: Request
    places: tuple[int, ...]
    seed: int
    attempt: int = 1

    @property
    def prompts(self) -> list[IntArray]:
        """The prompts of the call."""
        return [self.request.prompts[place] for place in self.places]

    def again(self, places: Sequence[int]) -> "Draw":
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


def draws(request: Request, prompts_per_call: int | None) -> list[Draw]:
    """The calls that a request is cut into; the only call of a request has the request's seed."""
    places = range(len(request.prompts))
    if prompts_per_call is None or prompts_per_call >= len(places):
        return [Draw(request, tuple(places), request.seed)]
    return [
        Draw(
            request, tuple(places[start : start + prompts_per_call]), derived_seed(request.seed, n)
        )
        for n, start in enumerate(places[::prompts_per_call])
    ]


def check_answer(draw: Draw, groups: Sequence[Group]) -> None:
    """Refuse an answer that is not one group for each prompt, in order.

    Raises:
        ValueError: rewards would be given for the answers to other prompts.
    """
    if len(groups) != len(draw.places):
        raise ValueError(
            f"step {draw.request.step}: the engine gave {len(groups)} groups for "
            f"{len(draw.places)} prompts; an engine returns one for each"
        )
    for place, prompt, group in zip(draw.places, draw.prompts, groups, strict=True):
        if not np.array_equal(prompt, group.prompt_ids):
            raise ValueError(
                f"step {draw.request.step}: the group at place {place} answers another prompt; "
                "an engine returns groups in the order of the prompts"
            )
