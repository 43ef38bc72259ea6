"""A reward is a function with TRL's signature, a name and a weight.

    def reward(prompts, completions, answer, **columns) -> list[float]

None in the list says that it did not judge that completion, as in TRL: the reward is then the sum
of the others, and a completion that none of them judged carries no loss.

It is called with keyword arguments only: `prompts`, `completions`, `completion_ids`,
`finish_reasons` and every column of the task, each a list with an entry for each completion. Only
what the function names is passed, or everything if it has `**columns`.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

RewardFn = Callable[..., Any]
COUNTS = {"calls", "completions", "seconds", "repeated", "failed", "processes"}
COUNTS |= {"busy_seconds", "completions_per_second"}
"""What the pool's metrics are called, `reward/<count>`; a reward's mean is `reward/<name>`."""


@dataclass(frozen=True)
class Reward:
    """A reward function under a name, with its weight in the sum.

    Args:
        name: of the reward in the metrics; no other reward of the task has it.
        function: has TRL's signature; `async def` is awaited. With an attribute `bounded = True` it
            says that it bounds its own time and memory, and is called in the caller's thread.
        weight: of the reward in the sum. One of weight 0 is recorded and no more: its failure fails
            no completion.
    """

    name: str
    function: RewardFn
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name or "/" in self.name:
            raise ValueError(f"a reward is called {self.name!r}; give it a name without '/'.")
        if self.name in COUNTS:
            raise ValueError(
                f"a reward is called {self.name!r}, as a count of the metrics is; rename it:"
                f" Reward('my_{self.name}', function)."
            )
        if not callable(self.function):
            kind = type(self.function).__name__
            raise ValueError(f"reward {self.name!r} is no function but {kind}: {self.function!r}.")
        if not isinstance(self.weight, (int, float)) or not math.isfinite(self.weight):
            raise ValueError(f"{self} has weight {self.weight!r}; give a finite number.")
        if self.bounded and self.asynchronous:
            raise ValueError(
                f"{self} is a coroutine, which cannot be bounded in a caller's thread."
            )

    def __str__(self) -> str:
        return f"reward {self.name!r} ({place_of(self.function)})"

    @property
    def bounded(self) -> bool:
        """Whether the function bounds its own time and memory."""
        return getattr(self.function, "bounded", False) is True

    @property
    def asynchronous(self) -> bool:
        """Whether the function's calls are awaited, several at a time."""
        function: Any = _inner(self.function)
        called = (function, type(function).__call__)
        return any(inspect.iscoroutinefunction(each) for each in called)


def as_rewards(
    rewards: Sequence[Reward | RewardFn], weights: Sequence[float] | None = None
) -> tuple[Reward, ...]:
    """Return functions as rewards: named like the functions, of the given weights or 1.

    Raises:
        ValueError: there is none; something is no function; two have one name; a function has no
            name; or the weights are not one for each, or are given twice.
    """
    if callable(rewards) or isinstance(rewards, (str, Reward)):
        raise ValueError(f"rewards is {rewards!r}; give a list, such as rewards=[reward].")
    named = tuple(_as_reward(reward) for reward in rewards)
    if not named:
        raise ValueError("there is no reward; give at least one function.")
    if weights is not None:
        named = _weighted(named, tuple(weights))
    if all(reward.weight == 0.0 for reward in named):
        raise ValueError(f"no reward counts: {', '.join(r.name for r in named)} have weight 0.")
    seen: dict[str, Reward] = {}
    for reward in named:
        if reward.name in seen:
            raise ValueError(
                f"two rewards are called {reward.name!r}: {place_of(seen[reward.name].function)} "
                f"and {place_of(reward.function)}. Name one: Reward('another name', function)."
            )
        seen[reward.name] = reward
    return named


def _weighted(rewards: tuple[Reward, ...], weights: tuple[float, ...]) -> tuple[Reward, ...]:
    if len(weights) != len(rewards):
        raise ValueError(f"there are {len(weights)} weights for {len(rewards)} rewards.")
    if twice := [reward.name for reward in rewards if reward.weight != 1.0]:
        raise ValueError(f"{', '.join(twice)}: has a weight of its own; leave weights out.")
    pairs = zip(rewards, weights, strict=True)
    return tuple(Reward(r.name, r.function, w) for r, w in pairs)


def _as_reward(reward: Reward | RewardFn) -> Reward:
    if isinstance(reward, Reward):
        return reward
    if not callable(reward):
        raise ValueError(f"a reward is {type(reward).__name__}, not a function: {reward!r}.")
    function = _inner(reward)
    name = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        raise ValueError(
            f"{place_of(reward)}: a lambda has no name; give it one: Reward('name', lambda ...)."
        )
    return Reward(name, reward)


def place_of(function: RewardFn) -> str:
    """Return `file:line` of a function, or of a callable object's method.

    >>> place_of(len)
    'builtins.len'
    """
    inner: Any = inspect.unwrap(_inner(function))
    for each in (inner, type(inner).__call__):
        if (code := getattr(each, "__code__", None)) is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{kind.__qualname__}"


def _inner(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function
