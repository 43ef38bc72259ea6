"""Hands each problem's answers to the rewards, several problems at once, and takes the verdicts."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from math import nan

from ogrpo.evaluation.answers import AnswerRecord, by_problem
from ogrpo.rewards.scores import ScoreRequest, Scores

JudgeFn = Callable[[ScoreRequest], Scores]
"""`RewardPool.score`, or anything like it that many threads may call at once."""


def judged(answers: Sequence[AnswerRecord], score: JudgeFn, judges: int) -> list[AnswerRecord]:
    """Return the answers, by problem and sample, with the verdicts of `score`.

    The answers of one problem are judged by one call, as a group is in training, and those of
    `judges` problems at once.

    Raises:
        ValueError: the verdicts are not one for each answer.
    """
    with ThreadPoolExecutor(judges, thread_name_prefix="evaluation-reward") as threads:
        groups = threads.map(partial(_judge_group, score=score), by_problem(answers))
        return [answer for group in groups for answer in group]


def _judge_group(answers: Sequence[AnswerRecord], score: JudgeFn) -> list[AnswerRecord]:
    first = answers[0]
    request = ScoreRequest.of_group(
        first.prompt,
        [answer.text for answer in answers],
        completion_ids=[[*answer.token_ids] for answer in answers],
        finish_reasons=[answer.finish_reason for answer in answers],
        columns=first.columns,
    )
    scores = score(request)
    _check_sizes(scores, len(answers), first.source)
    return [_with_verdict(answer, scores, n) for n, answer in enumerate(answers)]


def _with_verdict(answer: AnswerRecord, scores: Scores, n: int) -> AnswerRecord:
    failed = bool(scores.failed[n])
    values = {name: float(given[n]) for name, given in scores.values.items()}
    reward = nan if failed else float(scores.rewards[n])
    return replace(answer, values=values, reward=reward, failed=failed)


def _check_sizes(scores: Scores, n: int, source: str) -> None:
    sizes = [len(scores.rewards), len(scores.failed), *map(len, scores.values.values())]
    if sizes != [n] * len(sizes):
        raise ValueError(f"{source}: {n} answers were judged and {sizes} verdicts came back")
