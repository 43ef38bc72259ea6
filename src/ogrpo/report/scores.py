"""The held-out figures of a run: Pass@k where a reward decides success, mean rewards everywhere.

Pass@k, Wilson's intervals and axes from 0 to 1 are of verdicts, which are 0 or 1, alone. A sum of
rewards is a mean reward: it may be of any size, and has an interval for means.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from ogrpo.system.files import Record

PASS_AT_1, MEAN_REWARD = "pass@1", "heldout/reward"
"""Prefixes of what is recorded sampled and greedy, each with its interval."""


class Score(NamedTuple):
    """A figure of held-out problems."""

    key: str
    label: str
    is_share: bool
    """Whether it is a share of verdicts, from 0 to 1."""


def is_evaluated(record: Record) -> bool:
    """Whether a record has an evaluation; older ones have no mean reward beside Pass@1."""
    return any(record.get(f"{prefix}/sampled") is not None for prefix in (MEAN_REWARD, PASS_AT_1))


def evaluations(records: Sequence[Record]) -> list[Record]:
    """The records of steps that were evaluated."""
    return [record for record in records if is_evaluated(record)]


def sampled(record: Record) -> str:
    """Returns how an evaluation's samples were drawn, in words."""
    temperature = record.get("heldout/temperature", record.get("pass@1/temperature"))
    return "sampled" if temperature is None else f"sampled at T = {temperature:g}"


def scores(evaluated: Sequence[Record]) -> list[Score]:
    """Returns the figures that all of these evaluations have, the headline first.

    The mean reward is left out where it is Pass@1 again: where one reward is all there is.
    """
    known = [{key for key, value in record.items() if value is not None} for record in evaluated]
    shared = set.intersection(*known) if known else set()
    drawn = sampled(evaluated[0]) if evaluated else ""
    matches = (re.fullmatch(r"pass@(\d+)/sampled", key) for key in shared)
    several = {int(match[1]) for match in matches if match} - {1}
    figures = [
        Score(f"{PASS_AT_1}/sampled", f"Pass@1, {drawn}", True),
        Score(f"{PASS_AT_1}/greedy", "Pass@1, greedy", True),
        *(Score(f"pass@{k}/sampled", f"Pass@{k}, {drawn}", True) for k in sorted(several)),
        Score(f"{MEAN_REWARD}/sampled", f"mean reward, {drawn}", False),
        Score(f"{MEAN_REWARD}/greedy", "mean reward, greedy", False),
    ]
    figures = [score for score in figures if score.key in shared]
    decided = any(score.is_share for score in figures)
    alone = len(reward_names(evaluated)) < 2
    return [score for score in figures if score.is_share or not (decided and alone)]


def reward_names(evaluated: Sequence[Record]) -> list[str]:
    """Returns the rewards that have figures of their own."""
    pattern = re.compile(rf"{MEAN_REWARD}/([^/]+)/sampled")
    matches = (pattern.fullmatch(key) for record in evaluated for key in record)
    return [*dict.fromkeys(match[1] for match in matches if match)]


def interval(record: Record, key: str) -> str:
    """Returns a score with its 95 % interval, where that is known."""
    if record.get(key) is None:
        return "none"
    low, high = record.get(f"{key}/low"), record.get(f"{key}/high")
    bounds = "" if low is None or high is None else f"  [{low:.3f}, {high:.3f}]"
    return f"{record[key]:.3f}{bounds}"


def reward_rows(evaluated: Sequence[Record]) -> list[tuple[str, str, str, str]]:
    """Returns each reward's mean, sampled before and after, greedy after; [] of one reward."""
    names = reward_names(evaluated)
    if len(names) < 2:
        return []
    first, last = evaluated[0], evaluated[-1]
    prefixes = {name: f"{MEAN_REWARD}/{name}" for name in names}
    return [
        (
            name,
            interval(first, f"{key}/sampled"),
            interval(last, f"{key}/sampled"),
            interval(last, f"{key}/greedy"),
        )
        for name, key in prefixes.items()
    ]
