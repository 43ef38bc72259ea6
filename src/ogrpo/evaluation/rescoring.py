"""Judges a file of answers again, without sampling."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path

from ogrpo.evaluation.answers import AnswerRecord, by_problem
from ogrpo.evaluation.judging import JudgeFn, judged
from ogrpo.evaluation.reading import read_answers


@dataclass(frozen=True)
class Rescored:
    """Answers with their new verdicts, and which verdicts are others than before."""

    answers: list[AnswerRecord]
    changed: list[tuple[AnswerRecord, AnswerRecord]]
    """Each such answer as it was, and as it is now."""

    def __str__(self) -> str:
        return f"{len(self.changed)} of {len(self.answers)} verdicts changed"


def rescore(path: str | Path, score: JudgeFn, *, judges: int = 8) -> Rescored:
    """Judge the answers in a file again; the file stays as it is.

    A verdict is the value of each reward that was asked before and now, and whether one failed.
    A reward of another name than before is judged and is no change.

    Args:
        path: what `AnswerFile` wrote.
        score: the rewards (`RewardPool.score`), called with the answers of one problem.
        judges: problems judged at once.

    Raises:
        ValueError: a line of the file is wrong, or no reward has the name of one of the file's.
        FileNotFoundError: there is no such file.
    """
    if judges < 1:
        raise ValueError(f"judges is {judges}; give at least 1")
    before = [answer for group in by_problem(read_answers(path)) for answer in group]
    answers = judged(before, score, judges)
    names = [name for name in before[0].values if name in answers[0].values]
    if not names:
        raise ValueError(
            f"{path} was judged by {sorted(before[0].values)}, and the rewards given are "
            f"{sorted(answers[0].values)}: nothing can be compared; give rewards of those names"
        )
    pairs = zip(before, answers, strict=True)
    return Rescored(answers, [(old, new) for old, new in pairs if _differ(old, new, names)])


def _differ(old: AnswerRecord, new: AnswerRecord, names: Sequence[str]) -> bool:
    pairs = ((old.values[name], new.values[name]) for name in names)
    return old.failed != new.failed or any(a != b and not (isnan(a) and isnan(b)) for a, b in pairs)
