"""What a set of answers says: the metrics of an evaluation, each with its interval."""

from collections.abc import Callable, Iterable, Sequence
from math import isnan

import numpy as np

from ogrpo.evaluation.answers import AnswerRecord, by_problem, padded, verdicts
from ogrpo.evaluation.estimates import majority_at_k, pass_at_k
from ogrpo.evaluation.intervals import Estimate, clustered_interval, mean_interval
from ogrpo.rewards.judge import Judge

Summary = dict[str, float | int | None]
AnswerOf = Callable[[str], str | None]


def summary(
    answers: Sequence[AnswerRecord],
    *,
    ks: Iterable[int] | None = None,
    by: str | None = None,
    answer_of: AnswerOf | None = None,
) -> Summary:
    """Return an evaluation's metrics by name; `NAME/low` and `NAME/high` bound `NAME`.

    - `pass@k`, and `maj@k` if there is `answer_of`; left out where `by` is graded and `ks` is None
    - `reward/NAME` of each reward, and `reward` of their weighted sum: means over the problems
    - `tokens`, the mean length with its interval, `tokens/median`, `tokens/max`
    - `truncated`, the share of answers that did not end themselves
    - `problems`, `answers`, and `failed`, the number of answers that a reward failed on

    An answer on which a reward failed, or to which it did not apply, has no verdict of that reward:
    it is in none of that reward's figures, rather than wrong. A bound that cannot be told (one
    problem's mean) is None.

    Args:
        answers: of one evaluation.
        ks: the k of Pass@k and maj@k; by default the powers of two up to the number of samples n,
            and n.
        by: the reward that says right (1) or wrong (0); by default the first.
        answer_of: text -> the answer in it or None, for maj@k. A completion that did not end itself
            has no answer.

    Raises:
        ValueError: there is no answer, no reward is named `by`, a k is above n, or Pass@k is asked
            of a graded reward.
    """
    _check(answers, by)
    name = by or next(iter(answers[0].values))
    groups = list(by_problem(answers))
    lengths = padded([[answer.tokens for answer in group] for group in groups])
    cut = padded([[answer.truncated for answer in group] for group in groups])
    return {
        **_at_k(groups, name, None if ks is None else sorted(set(ks)), answer_of),
        **_rewards(answers),
        **lines("tokens", mean_interval(lengths)),
        "tokens/median": float(np.nanmedian(lengths)),
        "tokens/max": int(np.nanmax(lengths)),
        **lines("truncated", clustered_interval(cut)),
        "problems": len(groups),
        "answers": len(answers),
        "failed": sum(answer.failed for answer in answers),
    }


def lines(name: str, estimate: Estimate) -> Summary:
    """Return an estimate as three metrics."""
    bounds = {"low": estimate.low, "high": estimate.high}
    told = {f"{name}/{end}": None if isnan(value) else value for end, value in bounds.items()}
    return {name: estimate.mean, **told}


def answer_reader(function: object) -> AnswerOf | None:
    """Return how a reward's function reads the answer in a text, or None if it does not say.

    It says so by an attribute `answer_of`; this project's own judges have `extract`.
    """
    name = "extract" if isinstance(function, Judge) else "answer_of"
    return getattr(function, name, None)


def powers_of_two(samples: int) -> list[int]:
    """Return the powers of two below `samples`, and `samples`.

    >>> powers_of_two(12)
    [1, 2, 4, 8, 12]
    """
    return [*(2**n for n in range((samples - 1).bit_length())), samples]


def _at_k(
    groups: Sequence[Sequence[AnswerRecord]],
    name: str,
    ks: Sequence[int] | None,
    answer_of: AnswerOf | None,
) -> Summary:
    outcomes = verdicts([answer for group in groups for answer in group], name)
    judged = np.count_nonzero(~np.isnan(outcomes), axis=1).max()
    graded = not np.isin(outcomes, (0, 1))[~np.isnan(outcomes)].all()
    if ks is None and (graded or not judged):
        return {}
    ks = powers_of_two(int(judged)) if ks is None else ks
    found: Summary = {}
    for k in ks:
        found |= lines(f"pass@{k}", pass_at_k(outcomes, k))
    if answer_of is not None:
        texts = [[_answer(a, answer_of) for a in group] for group in groups]
        full = [[*row, *[None] * (outcomes.shape[1] - len(row))] for row in texts]
        for k in ks:
            found |= lines(f"maj@{k}", majority_at_k(outcomes, full, k))
    return found


def _answer(answer: AnswerRecord, answer_of: AnswerOf) -> str | None:
    return None if answer.truncated else answer_of(answer.text)


def _rewards(answers: Sequence[AnswerRecord]) -> Summary:
    values = {f"reward/{name}": verdicts(answers, name) for name in answers[0].values}
    sums = padded([[answer.reward for answer in group] for group in by_problem(answers)])
    found: Summary = {}
    for name, array in {**values, "reward": sums}.items():
        if np.isnan(array).all():
            found |= {name: None, f"{name}/low": None, f"{name}/high": None}
        else:
            found |= lines(name, mean_interval(array))
    return found


def _check(answers: Sequence[AnswerRecord], by: str | None) -> None:
    if not answers:
        raise ValueError("there is no answer to sum up")
    names = list(answers[0].values)
    if by is not None and by not in names:
        raise ValueError(f"there is no reward {by!r}; the answers were judged by {names}")
    if not names:
        raise ValueError("the answers were judged by no reward")
