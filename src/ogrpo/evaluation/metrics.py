"""The metrics of an evaluation, each with its interval, and the reward that says right or wrong."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation.answers import AnswerRecord, by_problem, padded
from ogrpo.evaluation.estimates import (
    Estimate,
    clustered_interval,
    majority_at_k,
    mean_interval,
    pass_at_k,
)
from ogrpo.rewards.judge import Judge
from ogrpo.rewards.reward import Reward

Summary = dict[str, float | int | None]
AnswerOf = Callable[[str], str | None]
Values = Mapping[str, NDArray[np.floating]]
"""Each reward's values, by its name; NaN where it left no verdict."""


def summary(
    answers: Sequence[AnswerRecord],
    *,
    ks: Iterable[int] | None = None,
    by: str | None = None,
    answers_of: Mapping[str, AnswerOf] | None = None,
) -> Summary:
    """Returns an evaluation's metrics by name; `NAME/low` and `NAME/high` bound `NAME`.

    - `pass@k` of the reward that says right or wrong, and `maj@k` if `answers_of` has its name
    - `reward/NAME` of each reward, and `reward` of their weighted sum: means over the problems
    - `tokens`, the mean length with its interval, `tokens/median`, `tokens/max`
    - `truncated`, the share of answers that did not end themselves
    - `problems`, `answers`, and `failed`, the number of answers that a reward failed on

    An answer on which a reward failed, or to which it did not apply, has no verdict of that reward:
    it is left out of that reward's figures instead of counting as wrong. A bound that cannot be
    computed (of one problem's mean) is None.

    Args:
      ks: the k of Pass@k and maj@k; by default the powers of two up to the number of samples n,
        and n.
      by: the reward that says right (1) or wrong (0); by default the only one that is 0 or 1.
        Where there is none, there is no Pass@k.
      answers_of: by a reward's name, text -> the answer in it or None, for maj@k. A completion
        that did not end itself has no answer.

    Raises:
      ValueError: there is no answer, no reward is named `by` or it is graded, a k is above n, or
        `ks` are asked for where no reward says right or wrong.
    """
    if not answers:
        raise ValueError("there is no answer to sum up")
    if not answers[0].values:
        raise ValueError("the answers were judged by no reward")
    groups = list(by_problem(answers))
    values = {
        name: padded([[answer.values[name] for answer in group] for group in groups])
        for name in answers[0].values
    }
    success = success_reward(values, by)
    if success is None and ks is not None:
        many = f"{candidates(values) or 'none'} of {[*values]} gave nothing but 0 and 1; name one"
        why = f"{many} by --by" if by is None else f"{by!r} has no verdict on any answer"
        raise ValueError(f"Pass@k needs a reward that says right or wrong: {why}")
    metrics: Summary = {}
    if success is not None:
        outcomes, answer_of = values[success], (answers_of or {}).get(success)
        judged = int(np.count_nonzero(~np.isnan(outcomes), axis=1).max())
        powers = (2**n for n in range((judged - 1).bit_length()))
        ks = [*powers, judged] if ks is None else sorted(set(ks))
        for k in ks:
            metrics |= lines(f"pass@{k}", pass_at_k(outcomes, k))
        if answer_of is not None:
            rows = [[None if a.truncated else answer_of(a.text) for a in group] for group in groups]
            full = [[*row, *[None] * (outcomes.shape[1] - len(row))] for row in rows]
            for k in ks:
                metrics |= lines(f"maj@{k}", majority_at_k(outcomes, full, k))
    sums = padded([[answer.reward for answer in group] for group in groups])
    rewards = {f"reward/{name}": each for name, each in values.items()} | {"reward": sums}
    for name, array in rewards.items():
        metrics |= mean_lines(name, array)
    lengths = padded([[answer.tokens for answer in group] for group in groups])
    cut = padded([[answer.truncated for answer in group] for group in groups])
    return {
        **metrics,
        **mean_lines("tokens", lengths),
        "tokens/median": float(np.nanmedian(lengths)),
        "tokens/max": int(np.nanmax(lengths)),
        **mean_lines("truncated", cut, share=True),
        "problems": len(groups),
        "answers": len(answers),
        "failed": sum(answer.failed for answer in answers),
    }


def lines(name: str, estimate: Estimate | None) -> Summary:
    """Returns an estimate as three metrics, None where it or a bound cannot be computed."""
    mean, low, high, _ = estimate or (nan, nan, nan, 0)
    values = {name: mean, f"{name}/low": low, f"{name}/high": high}
    return {key: None if isnan(value) else value for key, value in values.items()}


def mean_lines(name: str, values: NDArray[np.floating], *, share: bool = False) -> Summary:
    """Returns the mean of `[N, k]` values and its interval as three metrics.

    They are None where there is no verdict. The interval of a share is `clustered_interval`, which
    needs values in [0, 1], else it is `mean_interval`.
    """
    if np.isnan(values).all():
        return lines(name, None)
    return lines(name, clustered_interval(values) if share else mean_interval(values))


def answer_readers(rewards: Iterable[Reward]) -> dict[str, AnswerOf]:
    """Returns how rewards read the answer in a text, by name, of those that say how.

    They say so by an attribute `answer_of`; this project's own judges have `extract`.
    """
    readers = {}
    for reward in rewards:
        attribute = "extract" if isinstance(reward.function, Judge) else "answer_of"
        if (reader := getattr(reward.function, attribute, None)) is not None:
            readers[reward.name] = reader
    return readers


def candidates(values: Values) -> list[str]:
    """Returns the names of the rewards that have verdicts, each of which is 0 or 1."""
    verdicts = {name: each[~np.isnan(each)] for name, each in values.items()}
    return [n for n, v in verdicts.items() if v.size and ((v == 0) | (v == 1)).all()]


def success_reward(values: Values, marked: str | None = None) -> str | None:
    """Returns the name of the reward that says right (1) or wrong (0); None if none does.

    Pass@k, maj@k and Wilson's intervals are of its values alone; all else are means.

    >>> correct, length = np.array([[1.0, 0.0]]), np.array([[0.3, 0.8]])
    >>> success_reward({"correct": correct, "length": length})
    'correct'
    >>> success_reward({"correct": correct, "format": correct}) is None
    True
    >>> success_reward({"correct": correct, "format": correct}, "format")
    'format'

    Args:
      values: of all rewards on the held-out answers, of any shape.
      marked: the reward that the task or the user names; without it the only one that is 0 or 1.

    Raises:
      ValueError: there is no reward `marked`, or it gave something other than 0 and 1.
    """
    if marked is None:
        names = candidates(values)
        return names[0] if len(names) == 1 else None
    if marked not in values:
        raise ValueError(f"there is no reward {marked!r}; the answers were judged by {[*values]}")
    verdicts = values[marked][~np.isnan(values[marked])]
    between = verdicts[(verdicts != 0) & (verdicts != 1)]
    if between.size:
        raise ValueError(
            f"reward {marked!r} is to say right or wrong, and it gave {between[0]:g}: name one that"
            " is 0 or 1"
        )
    return marked if verdicts.size else None
