"""What rewards are asked, what they answer, and what went wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ogrpo.system.worker import CallFailure

FailureKind = Literal[CallFailure, "none", "not finite", "not a number"]
KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
GIVEN = ("prompts", "completions", "completion_ids", "finish_reasons")
"""The keyword arguments that are no columns."""

Prompt = str | Sequence[Mapping[str, Any]]


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
        if taken := [name for name in GIVEN if name in self.columns]:
            raise ValueError(
                f"the column {taken[0]!r} has the name of an argument that every reward is given; "
                "rename the column."
            )
        lists = {name: getattr(self, name) for name in GIVEN} | dict(self.columns)
        lengths = {name: len(values) for name, values in lists.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"what is scored together must be of one length, not {lengths}.")

    @classmethod
    def of_group(
        cls,
        prompt: Prompt,
        texts: Sequence[str],
        *,
        completion_ids: Sequence[Sequence[int]],
        finish_reasons: Sequence[str],
        columns: Mapping[str, Any],
    ) -> "ScoreRequest":
        """Return the request of a prompt's completions; a chat's are messages, as in TRL.

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
        return cls(
            prompts=prompts,
            completions=completions,
            completion_ids=completion_ids,
            finish_reasons=finish_reasons,
            columns={name: [value] * n for name, value in columns.items()},
        )

    def __len__(self) -> int:
        return len(self.completions)


class Failure(NamedTuple):
    """A completion that a reward gave no number for."""

    reward: str
    completion: int  # its index
    kind: FailureKind
    message: str  # names the reward, its function's file and line


class Scores(NamedTuple):
    """What `n` completions are worth."""

    rewards: npt.NDArray[np.float32]  # [n], the weighted sum over the rewards; 0 where failed
    values: dict[
        str, npt.NDArray[np.float32]
    ]  # [n] by reward, NaN where it failed or did not apply
    failed: npt.NDArray[np.bool_]  # [n], a reward that counts gave no number: no loss for it
    failures: tuple[Failure, ...]  # by reward and completion, then of the sums
