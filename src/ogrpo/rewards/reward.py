"""A reward is a function with TRL's signature, a name and a weight.

    def reward(prompts, completions, answer, **columns) -> list[float]

None in the list says that it did not judge that completion, as in TRL: the reward is then the sum
of the others, and a completion that none of them judged carries no loss.

It is called with keyword arguments only: `ARGUMENTS` and every column of the task, each a list with
an entry for each completion. Only what the function names is passed, or everything if it has
`**columns`. A command line names one as `my_rewards.py:reward` or `package.module:reward`.
"""

import functools
import importlib
import inspect
import math
import os
import sys
import traceback
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from ogrpo import system
from ogrpo.system._serve import import_file
from ogrpo.system.terminal import nearest

RewardFn = Callable[..., Any]
ARGUMENTS = ("prompts", "completions", "completion_ids", "finish_reasons")
"""What every reward may name beside the columns of its task."""
COUNTS = {"calls", "completions", "seconds", "repeated", "failed", "processes"}
COUNTS |= {"busy_seconds", "completions_per_second", "low", "high"}
"""What counts and the ends of means are called, `reward/<count>`; a mean is `reward/<name>`."""

_OF_TRL = ("trainer_state", "log_extra", "log_metric", "environments")
_FILE_PREFIX = "file_of_rewards_"


class Parameters(NamedTuple):
    """The keyword arguments that a function accepts, and those without a default among them."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    all_columns: bool  # it has **columns, or is a function in C that does not say


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
        function: Any = _innermost(self.function)
        return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))

    @functools.cached_property
    def parameters(self) -> Parameters:
        """The keyword arguments that the function accepts.

        Raises:
          ValueError: the function has an argument that can be passed by position only.
        """
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):  # some functions in C have no signature
            return Parameters((), (), all_columns=True)
        for p in parameters:
            if p.kind is p.POSITIONAL_ONLY and p.default is p.empty:
                raise ValueError(
                    f"{self} takes {p.name!r} by position only; rewards are called by name: write "
                    "def reward(prompts, completions, **columns)."
                )
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        return Parameters(
            names=tuple(p.name for p in named),
            required=tuple(p.name for p in named if p.default is p.empty),
            all_columns=any(p.kind is p.VAR_KEYWORD for p in parameters),
        )

    def check_columns(self, columns: Collection[str]) -> None:
        """Raises a ValueError if the function needs an argument that no column of a task is."""
        for name in self.parameters.required:
            if name not in (*ARGUMENTS, *columns):
                there = f"there are {', '.join(columns)}" if columns else "there is none"
                hint = nearest(name, [*ARGUMENTS, *columns])
                if name in _OF_TRL:
                    hint = (
                        " TRL's trainer passes it and this one does not: give it a default,"
                        f" {name}=None."
                    )
                raise ValueError(
                    f"{self} takes {name!r}, which no column of the task gives: {there}.{hint}"
                )


def as_rewards(
    rewards: Sequence[Reward | RewardFn], weights: Sequence[float] | None = None
) -> tuple[Reward, ...]:
    """Returns functions as rewards: named like the functions, weighted by `weights` or by 1.

    Raises:
      ValueError: there is none; something is no function; two have one name; a function has no
        name; or the weights are not one for each, or a reward has one already.
    """
    if callable(rewards) or isinstance(rewards, (str, Reward)):
        raise ValueError(f"rewards is {rewards!r}; give a list, such as rewards=[reward].")
    named: dict[str, Reward] = {}
    for function in rewards:
        reward = function if isinstance(function, Reward) else _named(function)
        if reward.name in named:
            raise ValueError(
                f"two rewards are called {reward.name!r}: {place_of(named[reward.name].function)} "
                f"and {place_of(reward.function)}. Name one: Reward('another name', function)."
            )
        named[reward.name] = reward
    result = tuple(named.values())
    if not result:
        raise ValueError("there is no reward; give at least one function.")
    if weights is not None:
        if len(weights) != len(result):
            raise ValueError(f"there are {len(weights)} weights for {len(result)} rewards.")
        if twice := [reward.name for reward in result if reward.weight != 1.0]:
            raise ValueError(f"{', '.join(twice)}: has a weight of its own; leave weights out.")
        result = tuple(replace(r, weight=w) for r, w in zip(result, weights, strict=True))
    if all(reward.weight == 0.0 for reward in result):
        raise ValueError(f"no reward counts: {', '.join(named)} have weight 0.")
    return result


def _named(function: RewardFn) -> Reward:
    if not callable(function):
        raise ValueError(f"a reward is {type(function).__name__}, not a function: {function!r}.")
    name = getattr(_innermost(function), "__name__", type(_innermost(function)).__name__)
    if name == "<lambda>":
        raise ValueError(
            f"{place_of(function)}: a lambda has no name; give it one: Reward('name', lambda ...)."
        )
    return Reward(name, function)


def place_of(function: RewardFn) -> str:
    """Returns `file:line` of a function, or of a callable object's method.

    >>> place_of(len)
    'builtins.len'
    """
    inner: Any = inspect.unwrap(_innermost(function))
    for each in (inner, type(inner).__call__):
        if (code := getattr(each, "__code__", None)) is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    kind = inner if hasattr(inner, "__qualname__") else type(inner)
    return f"{kind.__module__}.{kind.__qualname__}"


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def load_reward(spec: str) -> Reward | RewardFn:
    """Returns the function, or the `Reward`, that `FILE.py:NAME` or `PACKAGE.MODULE:NAME` names.

    A file's own folder is searched for the modules that the file imports. A module is searched for
    in the current folder too.

    Raises:
      ValueError: there is no such file, module or name; or the import failed, and where.
    """
    source, colon, name = spec.rpartition(":")
    if not colon or not source or not name:
        raise ValueError(f"{spec!r} names no reward; write FILE.py:NAME or PACKAGE.MODULE:NAME.")
    module = _import_file(source) if source.endswith(".py") else _import_module(source)
    reward: Any = module
    for part in name.split("."):
        if not hasattr(reward, part):
            names = [key for key in vars(module) if not key.startswith("_")]
            raise ValueError(f"{source} has no {name!r}.{nearest(name, names)}")
        reward = getattr(reward, part)
    if not isinstance(reward, Reward) and not callable(reward):
        raise ValueError(f"{spec} is {type(reward).__name__}, not a function.")
    return reward


def files_of_rewards() -> dict[str, str]:
    """Returns the files that `load_reward` has loaded, by the names of their modules."""
    modules = list(sys.modules.items())
    return {name: str(m.__file__) for name, m in modules if name.startswith(_FILE_PREFIX)}


def _import_file(source: str) -> ModuleType:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        names = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ValueError(f"there is no file {path}.{nearest(path.name, names)}")
    name = f"{_FILE_PREFIX}{path.stem}_{zlib.crc32(bytes(path)):08x}"
    if name in sys.modules:
        return sys.modules[name]
    return _guarded(lambda: import_file(name, str(path)), str(path))


def _import_module(source: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)
    try:
        return _guarded(lambda: importlib.import_module(source), source)
    except ValueError as error:
        missing = error.__cause__
        if isinstance(missing, ModuleNotFoundError) and f"{source}.".startswith(f"{missing.name}."):
            raise ValueError(
                f"there is no module {missing.name!r}, neither installed nor in {folder}; "
                "a file is named with its ending: my_rewards.py:reward."
            ) from missing
        raise


def _guarded(load: Callable[[], ModuleType], source: str) -> ModuleType:
    """Imports by `load`; raises a ValueError that names file and line of what goes wrong."""
    try:
        return load()
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        ours = (Path(__file__).parent, Path(system.__file__).parent)
        if isinstance(error, SyntaxError) and error.filename:
            places = [f"{error.filename}:{error.lineno}"]
        else:
            places = [
                f"{frame.filename}:{frame.lineno}"
                for frame in traceback.extract_tb(error.__traceback__)
                if not frame.filename.startswith("<frozen")
                and frame.filename != importlib.__file__
                and Path(frame.filename).parent not in ours
            ]
        what = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        place = places[0] if places else source
        raise ValueError(f"{place}: {source} cannot be imported: {what}") from error
