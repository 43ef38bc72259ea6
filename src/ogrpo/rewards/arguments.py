"""Which keyword arguments a reward function is given: those that it accepts, and no others."""

import difflib
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import GIVEN, ScoreRequest

_OF_TRL = ("trainer_state", "log_extra", "log_metric", "environments")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Accepted:
    """The keyword arguments that a reward's function accepts.

    Raises:
        ValueError: the function has an argument that cannot be given by name.
    """

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self.everything = False
        self.names: tuple[str, ...] = ()
        self.required: tuple[str, ...] = ()
        try:
            parameters = inspect.signature(reward.function).parameters.values()
        except (TypeError, ValueError):  # some functions in C do not tell
            self.everything = True
            return
        for parameter in parameters:
            self._note(parameter)

    def _note(self, parameter: inspect.Parameter) -> None:
        needed = parameter.default is inspect.Parameter.empty
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            self.everything = True
        elif parameter.kind in _BY_NAME:
            self.names += (parameter.name,)
            self.required += (parameter.name,) * needed
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY and needed:
            raise ValueError(
                f"{self._reward} takes {parameter.name!r} by position only; rewards are called by "
                "name: write def reward(prompts, completions, **columns)."
            )

    def check(self, columns: Collection[str]) -> None:
        """Raise a ValueError if the function needs what neither we nor a column gives."""
        offered = (*GIVEN, *columns)
        for name in self.required:
            if name not in offered:
                raise ValueError(self._missing(name, columns))

    def _missing(self, name: str, columns: Collection[str]) -> str:
        there = f"there are {', '.join(columns)}" if columns else "there is none"
        near = difflib.get_close_matches(name, [*GIVEN, *columns], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        if name in _OF_TRL:
            hint = (
                f" TRL's trainer passes it and this one does not: give it a default, {name}=None."
            )
        return f"{self._reward} takes {name!r}, which no column of the task gives: {there}.{hint}"

    def choose(self, request: ScoreRequest) -> dict[str, list[Any]]:
        """Return what the function is called with."""
        self.check(request.columns)
        offered: Mapping[str, Sequence[Any]] = {name: getattr(request, name) for name in GIVEN}
        offered = {**offered, **request.columns}
        chosen = {
            name: list(values)
            for name, values in offered.items()
            if self.everything or name in self.names
        }
        if "completion_ids" in chosen:
            chosen["completion_ids"] = [_plain(ids) for ids in chosen["completion_ids"]]
        return chosen


def _plain(ids: Any) -> list[int]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)
