"""The request to rewards, their verdicts on each completion, and the scores they add up to."""

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ogrpo.rewards.judge import TextOrChat
from ogrpo.rewards.reward import ARGUMENTS, Reward
from ogrpo.system.terminal import shown
from ogrpo.system.worker import CallFailure

log = logging.getLogger(__name__)

FailureKind = Literal[CallFailure, "none", "not finite", "not a number"]
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)


@dataclass(frozen=True)
class ScoreRequest:
    """`n` completions to score, of one prompt or of several.

    Args:
      prompts: `n` texts, or `n` lists of chat messages.
      completions: `n` texts, or `n` lists of one message of the assistant, as the prompts are.
      completion_ids: `n` sequences of token ids.
      finish_reasons: `n` words: "stop", "length", "abort".
      columns: the task's other columns, each with `n` values.
    """

    prompts: Sequence[Any]
    completions: Sequence[Any]
    completion_ids: Sequence[Sequence[int]]
    finish_reasons: Sequence[str]
    columns: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if taken := [name for name in ARGUMENTS if name in self.columns]:
            raise ValueError(
                f"the column {taken[0]!r} has the name of an argument that every reward is given; "
                "rename the column."
            )
        lengths = {name: len(values) for name, values in self._lists().items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"what is scored together must be of one length, not {lengths}.")

    @classmethod
    def of_group(
        cls,
        prompt: TextOrChat,
        texts: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]],
        finish_reasons: Sequence[str],
        columns: Mapping[str, Any],
    ) -> "ScoreRequest":
        """Returns the request of a prompt's completions; a chat's are messages, as in TRL.

        >>> request = ScoreRequest.of_group(
        ...     [{"role": "user", "content": "2 + 2?"}],
        ...     ["4"],
        ...     completion_ids=[[7]],
        ...     finish_reasons=["stop"],
        ...     columns={"answer": "4"},
        ... )
        >>> request.completions, request.columns
        ([[{'role': 'assistant', 'content': '4'}]], {'answer': ['4']})
        """
        n = len(texts)
        prompts, completions = [prompt] * n, list(texts)
        if not isinstance(prompt, str):
            prompts = [[dict(message) for message in prompt] for _ in texts]
            completions = [[{"role": "assistant", "content": text}] for text in texts]
        repeated = {name: [value] * n for name, value in columns.items()}
        return cls(prompts, completions, completion_ids, finish_reasons, repeated)

    def __len__(self) -> int:
        return len(self.completions)

    def arguments(self, reward: Reward) -> dict[str, list[Any]]:
        """Returns the keyword arguments that a reward is called with.

        Raises:
          ValueError: the function takes an argument that no column is.
        """
        reward.check_columns(self.columns)
        names, _, everything = reward.parameters
        lists = self._lists().items()
        arguments = {name: list(values) for name, values in lists if everything or name in names}
        if "completion_ids" in arguments:
            arguments["completion_ids"] = [
                ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
                for ids in arguments["completion_ids"]
            ]
        return arguments

    def _lists(self) -> dict[str, Sequence[Any]]:
        return {name: getattr(self, name) for name in ARGUMENTS} | dict(self.columns)


class Failure(NamedTuple):
    """A completion that a reward gave no number for."""

    reward: str
    completion: int  # its index
    kind: FailureKind
    message: str  # names the reward, its function's file and line


class FailureLog:
    """Logs the first failure of each reward and kind; many threads may share it."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def add(self, failures: Iterable[Failure]) -> None:
        """Logs the failures of a kind that has not been logged."""
        with self._lock:
            for failure in failures:
                if (kind := (failure.reward, failure.kind)) not in self._logged:
                    self._logged.add(kind)
                    log.warning("%s (this and others like it are counted)", shown(failure.message))


RewardVerdict = float | Failure | None
"""What one reward says of one completion: a number, why there is none, or None: not judged."""


class Scores(NamedTuple):
    """The rewards of `n` completions, and what went wrong."""

    rewards: npt.NDArray[np.float32]  # [n], the weighted sum over the rewards; 0 where failed
    values: dict[str, npt.NDArray[np.float32]]  # [n] by reward, NaN where failed or not judged
    failed: npt.NDArray[np.bool_]  # [n], a reward that counts gave no number: no loss for it
    failures: tuple[Failure, ...]  # of rewards that count first, then of the sums


def weighted_sum(rewards: Sequence[Reward], verdicts: Sequence[Sequence[RewardVerdict]]) -> Scores:
    """Returns the weighted sum over the rewards of their verdicts on each completion.

    A completion fails, and does not get 0, if a reward that counts failed, if none judged it, or if
    the sum is too large for float32.
    """
    values = {
        reward.name: np.array([v if isinstance(v, float) else np.nan for v in row], np.float32)
        for reward, row in zip(rewards, verdicts, strict=True)
    }
    failures = [v for row in verdicts for v in row if isinstance(v, Failure)]
    counting = [reward for reward in rewards if reward.weight != 0.0]
    weighted = np.stack([r.weight * values[r.name].astype(np.float64) for r in counting])
    total = np.where(np.all(np.isnan(weighted), axis=0), np.nan, np.nansum(weighted, axis=0))
    names = {reward.name for reward in counting}
    failures.sort(key=lambda failure: failure.reward not in names)
    explained = {f.completion for f in failures if f.reward in names}
    unusable = np.flatnonzero(~(np.abs(total) <= np.finfo(np.float32).max)).tolist()
    described = ", ".join(map(str, counting))
    for i in unusable:
        if i in explained:
            continue
        kind: FailureKind = "none" if np.isnan(total[i]) else "not finite"
        message = f"{described} gave None for completion {i}, which no reward judged"
        if kind == "not finite":
            message = f"the weighted sum of {described} for completion {i} is {total[i]}, too large"
            message += " for float32"
        failures.append(Failure(counting[0].name, i, kind, message))
    failed = np.zeros(total.shape, bool)
    failed[[*explained, *unusable]] = True
    return Scores(np.where(failed, 0.0, total).astype(np.float32), values, failed, tuple(failures))
