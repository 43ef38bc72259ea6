"""Hands completions to the rewards, as `ogrpo.rewards` takes them, and reads their verdicts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation.answers import AnswerRecord


class ScoresLike(Protocol):
    """The verdicts on n completions (`ogrpo.rewards` has the class)."""

    @property
    def rewards(self) -> NDArray[np.float32]:
        """The rewards' weighted sums `[n]`."""
        ...

    @property
    def values(self) -> Mapping[str, NDArray[np.float32]]:
        """Each reward's values `[n]` by its name, NaN where it failed."""
        ...

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Whether a reward failed `[n]`."""
        ...


class JudgeFn(Protocol):
    """Judges n completions; called in a thread of the evaluation's."""

    def __call__(
        self,
        *,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        finish_reasons: Sequence[str],
        columns: Mapping[str, Sequence[Any]],
    ) -> ScoresLike:
        """Return the verdicts, in the order of the completions."""
        ...


def judged(answers: Sequence[AnswerRecord], score: JudgeFn) -> list[AnswerRecord]:
    """Return the answers with the verdicts of `score`.

    Prompts that are chat messages go with completions that are lists of one message of the
    assistant, as in TRL; texts go with texts. A column that a problem lacks is None for it.

    Raises:
        ValueError: the verdicts are not one for each answer.
    """
    names = dict.fromkeys(name for answer in answers for name in answer.columns)
    scores = score(
        prompts=[a.prompt if isinstance(a.prompt, str) else [*a.prompt] for a in answers],
        completions=[_completion(answer) for answer in answers],
        completion_ids=[[*answer.token_ids] for answer in answers],
        finish_reasons=[answer.finish_reason for answer in answers],
        columns={name: [answer.columns.get(name) for answer in answers] for name in names},
    )
    _check_sizes(scores, len(answers))
    return [_with_verdict(answer, scores, n) for n, answer in enumerate(answers)]


def _completion(answer: AnswerRecord) -> Any:
    if isinstance(answer.prompt, str):
        return answer.text
    return [{"role": "assistant", "content": answer.text}]


def _with_verdict(answer: AnswerRecord, scores: ScoresLike, n: int) -> AnswerRecord:
    failed = bool(scores.failed[n])
    values = {name: float(given[n]) for name, given in scores.values.items()}
    reward = nan if failed else float(scores.rewards[n])
    return replace(answer, values=values, reward=reward, failed=failed)


def _check_sizes(scores: ScoresLike, n: int) -> None:
    sizes = [len(scores.rewards), len(scores.failed), *map(len, scores.values.values())]
    if sizes != [n] * len(sizes):
        raise ValueError(f"{n} answers were judged and {sizes} verdicts came back")
