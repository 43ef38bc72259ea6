"""Samplers of groups: in order, by weight, or spread over prompts.

A sampler is a function of what the buffer holds and of a generator, and keeps nothing itself:

    ReplayBuffer(..., sampler=fifo)
    ReplayBuffer(..., sampler=partial(weighted, weight=positives))

The groups of one draw are distinct. Two draws are independent given what the buffer holds and how
often each group was used. A draw takes O(n) for n groups held.

A group's weight changes which prompts and policies the average over a draw stands for: with equal
weights it estimates the mean over the groups held, otherwise their weighted mean, and no correction
is applied here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ogrpo.data.replay.columns import ANOTHER, Int64Array
from ogrpo.data.replay.table import Features, Table

Sampler = Callable[[Table, int, np.random.Generator], Int64Array]
"""`(table, count, rng) -> ids` of `count` live groups, distinct, or `TooFewGroups`."""
Weights = npt.NDArray[np.floating[Any]]
Weight = Callable[[Features], Weights]


class TooFewGroups(ValueError):
    """A draw of more groups than can be served."""


def _check_enough(count: int, available: int) -> None:
    if count > available:
        raise TooFewGroups(
            f"{count} groups asked for, {available} can be drawn (groups of weight 0 cannot): "
            "insert more first, or ask for fewer."
        )


def fifo(table: Table, count: int, rng: np.random.Generator) -> Int64Array:  # noqa: ARG001
    """Draws in the order of insertion, from after the group drawn last, round and round.

    A buffer limited to one batch that is drawn once per insertion serves each batch once, in order.
    """
    ids = table.ids
    _check_enough(count, len(ids))
    return np.roll(ids, -np.searchsorted(ids, table.cursor))[:count]


def weighted(table: Table, count: int, rng: np.random.Generator, *, weight: Weight) -> Int64Array:
    """Draws groups by their weight.

    They come one after another, each in proportion to its weight among those not drawn yet
    (successive sampling). Groups of weight 0 are never drawn.

    Raises:
      TooFewGroups: fewer have a weight above 0.
      ValueError: a weight is negative, not finite, or there is not one for each group.
    """
    ids = table.ids
    ids = ids[np.argsort(ids % table.capacity)]
    weights = np.array(weight(table.features(ids)), np.float64)
    if weights.shape != ids.shape or not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError(
            f"the weight gave {weights.shape} values from {weights.min(initial=0)} to "
            f"{weights.max(initial=0)} for {len(ids)} groups; give one finite value >= 0 "
            "for each."
        )
    # Independent draws with repeats struck out are successive draws; what was drawn loses its
    # weight between rounds so that they end.
    drawn = np.zeros(0, np.int64)
    while len(drawn) < count and weights.any():
        ends = np.cumsum(weights)
        picks = np.searchsorted(ends, rng.random(count - len(drawn)) * ends[-1], side="right")
        fresh = picks[np.sort(np.unique(picks, return_index=True)[1])]
        drawn = np.concatenate([drawn, fresh])
        weights[fresh] = 0
    _check_enough(count, len(drawn))
    return ids[drawn]


def stratified(table: Table, count: int, rng: np.random.Generator) -> Int64Array:
    """Draws in rounds in which each prompt gives one group, in random order.

    The last round takes as many prompts as are still needed, at random. The group a prompt gives is
    uniform among those it has not given in this draw; prompts that have given all theirs sit out.
    """
    ids = rng.permutation(table.ids)
    _check_enough(count, len(ids))
    problems = table.features(ids).problem
    by_problem = np.argsort(problems, kind="stable")
    firsts = np.searchsorted(problems[by_problem], problems[by_problem])
    turns = np.empty_like(ids)
    turns[by_problem] = np.arange(len(ids)) - firsts
    return ids[np.lexsort((rng.random(len(ids)), turns))[:count]]


def mixed(table: Table, count: int, rng: np.random.Generator, *, share: float) -> Int64Array:
    """Draws a fixed share of each draw from the groups of a log, the rest from the run's own.

    Each side uniformly, in random order: round(share * count) groups were drawn by another policy
    than the run's (version -1). Either side may have too few.
    """
    ids, logged = table.ids, round(share * count)
    of_log = table.version - table.features(ids).staleness == ANOTHER
    parts = []
    for side, part in ((ids[of_log], logged), (ids[~of_log], count - logged)):
        _check_enough(part, len(side))
        parts.append(rng.choice(side, part, replace=False))
    return rng.permutation(np.concatenate(parts))


def equal(groups: Features) -> Weights:
    """1 for every group: uniform sampling."""
    return np.ones(len(groups.uses))


def recency(groups: Features, *, half_life: float) -> Weights:
    """2^(-staleness / half_life): a group `half_life` policy versions old counts half."""
    return np.exp2(-groups.staleness / half_life)


def novelty(groups: Features, *, exponent: float) -> Weights:
    """(1 + uses)^-exponent: a group drawn before counts less."""
    return (1.0 + groups.uses) ** -exponent


def advantage(groups: Features, *, exponent: float, floor: float) -> Weights:
    """(floor + mean |r - mean r|)^exponent: groups whose rewards differ.

    With rewards 0 and 1 and a share p of ones the mean is 2 p (1 - p). The sum of the positive
    advantages of a group equals that of the negative ones, so weighing by `max(r - mean, 0)` summed
    over the group is this, halved. `floor = 0` never draws a group whose rewards are all equal.
    """
    return (floor + groups.spread) ** exponent


def positives(groups: Features) -> Weights:
    """max(r) - mean r: how far a group's best completion stands above the group.

    With rewards 0 and 1 it is 1 - p where one completion is right and 0 where none is: rare
    successes first, and groups without a positive advantage never.
    """
    return groups.max_advantage


uniform = partial(weighted, weight=equal)
"""Draws every group with the same probability."""
