"""A reward: a function that judges completions, with a name and a weight; no JAX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

RewardFn = Callable[..., Any]
"""`fn(prompts, completions, **columns) -> list[float]`, TRL's signature."""


@dataclass(frozen=True)
class Reward:
    """A reward function, the name of its metrics, and its weight in the sum."""

    name: str
    function: RewardFn
    weight: float = 1.0


def as_rewards(
    rewards: Sequence[Reward | RewardFn], weights: Sequence[float] | None = None
) -> tuple[Reward, ...]:
    """Name plain functions by their `__name__`, and set weights where they are given.

    Raises:
        ValueError: there is no reward, two have one name, or the weights are not one for each.
    """
    if not rewards:
        raise ValueError("there is no reward: give at least one function.")
    if weights is not None and len(weights) != len(rewards):
        raise ValueError(f"{len(weights)} weights for {len(rewards)} rewards: give one for each.")
    named = [r if isinstance(r, Reward) else Reward(_name(r), r) for r in rewards]
    names = [reward.name for reward in named]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"two rewards are named {twice[0]!r}: name one by Reward(name, function).")
    if weights is None:
        return tuple(named)
    return tuple(Reward(r.name, r.function, w) for r, w in zip(named, weights, strict=True))


def _name(function: RewardFn) -> str:
    return getattr(function, "__name__", None) or getattr(function, "name", type(function).__name__)
