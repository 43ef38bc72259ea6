"""Which groups to draw: in order, by weight, or spread over prompts.

A sampler is made for one buffer, from that buffer's table, and hears of every change:

    ReplayBuffer(..., sampler=Fifo)
    ReplayBuffer(..., sampler=partial(Prioritised, weight=positives, replace=False))

A new one is any callable `Table -> Sampler`. With `replace=False` the groups of one draw are
distinct; with `replace=True` each is drawn from all of them. Two draws are independent given what
the buffer holds and how often each group was used.

A group's weight changes which prompts and policies the average over a draw stands for: with equal
weights it estimates the mean over the groups held, otherwise their weighted mean, and no correction
is applied here.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ogrpo.data.replay.columns import Int64Array
from ogrpo.data.replay.sumtree import SumTree
from ogrpo.data.replay.table import Features, Table

Weights = npt.NDArray[np.floating[Any]]
Weight = Callable[[Features], Weights]


class TooFewGroups(ValueError):
    """A draw asks for more groups than can be served."""


class Sampler(Protocol):
    """Chooses groups by id."""

    @property
    def replace(self) -> bool:
        """Whether a group can stand in one draw more than once."""
        ...

    def update(self, ids: Int64Array) -> None:
        """Hear that these groups, distinct, were inserted, used or removed."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Return `count` ids of live groups.

        Raises:
            TooFewGroups: there are not that many to choose from.
        """
        ...


class Fifo:
    """In the order of insertion, from after the group drawn last, round and round.

    A buffer limited to one batch that is drawn once per insertion serves each batch once, in order.
    """

    replace = False

    def __init__(self, table: Table) -> None:
        self._table = table

    def update(self, ids: Int64Array) -> None:
        """Nothing to keep: the table knows the order."""

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:  # noqa: ARG002
        """Return the next `count` live ids; `rng` is not used."""
        table = self._table
        _check_enough(count, table.live)
        ahead = table.first(max(table.cursor, table.head), table.next_id, count)
        if len(ahead) == count:
            return ahead
        return np.concatenate([ahead, table.first(table.head, table.next_id, count - len(ahead))])


class Prioritised:
    """Each group with probability proportional to its weight, in O(log n).

    Without replacement, the groups of a draw come one after another, each in proportion to its
    weight among those not drawn yet (successive sampling). Groups of weight 0 are never drawn.

    Weights are computed anew for groups that change, and for all groups when the policy version
    moves, because staleness does.
    """

    def __init__(self, table: Table, *, weight: Weight, replace: bool) -> None:
        self._table, self._weight, self.replace = table, weight, replace
        self._tree = SumTree(table.capacity)
        self._version = table.version

    def update(self, ids: Int64Array) -> None:
        """Weigh these groups again."""
        if not self._renew() and len(ids):
            places = self._table.places(ids)
            self._tree.set(places, self._weigh(places))

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Return `count` ids drawn by weight."""
        self._renew()
        draw = self._independent if self.replace else self._distinct
        return self._table.ids(draw(count, rng))

    def _independent(self, count: int, rng: np.random.Generator) -> Int64Array:
        total = self._tree.total
        _check_enough(count, count if total > 0 else 0)
        return self._tree.find(rng.random(count) * total)

    def _distinct(self, count: int, rng: np.random.Generator) -> Int64Array:
        # Independent draws with repeats struck out are successive draws; what was drawn loses its
        # weight between rounds so that they end.
        chosen, before = np.zeros(0, np.int64), np.zeros(0)
        while len(chosen) < count and self._tree.total > 0:
            found = self._independent(count - len(chosen), rng)
            fresh = found[np.sort(np.unique(found, return_index=True)[1])]
            before = np.concatenate([before, self._tree.weights(fresh)])
            chosen = np.concatenate([chosen, fresh])
            self._tree.set(fresh, np.zeros(len(fresh)))
        self._tree.set(chosen, before)
        _check_enough(count, len(chosen))
        return chosen

    def _renew(self) -> bool:
        table = self._table
        if table.version == self._version and table.capacity == self._tree.size:
            return False
        self._version, self._tree = table.version, SumTree(table.capacity)
        places = table.places(table.all_live())
        self._tree.set(places, self._weigh(places))
        return True

    def _weigh(self, places: Int64Array) -> npt.NDArray[np.float64]:
        weights = np.asarray(self._weight(self._table.features(places)), np.float64)
        if weights.shape != places.shape or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(
                f"the weight gave {weights.shape} values from {weights.min(initial=0)} to "
                f"{weights.max(initial=0)} for {len(places)} groups; give one finite value >= 0 "
                "for each."
            )
        return np.where(self._table.rows.alive[places], weights, 0.0)


class Stratified:
    """Spread over prompts: rounds in which each prompt gives one group, in random order.

    The last round takes as many prompts as are still needed, at random. The group a prompt gives is
    uniform among its groups; without replacement, among those it has not given in this draw, and
    prompts that have given all of theirs sit out.
    """

    def __init__(self, table: Table, *, replace: bool) -> None:
        self._table, self.replace = table, replace
        self._groups: dict[int, list[int]] = {}  # ids of each prompt, ascending
        self._problems: list[int] = []  # ascending

    def update(self, ids: Int64Array) -> None:
        """Enter or strike out these groups."""
        places = self._table.places(ids)
        alive, problems = self._table.rows.alive[places], self._table.rows.problem[places]
        for id_, lives, problem in zip(
            ids.tolist(), alive.tolist(), problems.tolist(), strict=True
        ):
            (self._enter if lives else self._strike)(id_, problem)

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Return `count` ids, of as many prompts as can be, as evenly as can be."""
        if not self.replace or self._table.live == 0:
            _check_enough(count, self._table.live)
        picks = self._rounds(count, rng)
        given = {
            problem: iter(rng.choice(self._groups[problem], times, replace=self.replace).tolist())
            for problem, times in Counter(picks).items()
        }
        return np.array([next(given[problem]) for problem in picks], np.int64)

    def _rounds(self, count: int, rng: np.random.Generator) -> list[int]:
        picks: list[int] = []
        able, rounds = self._problems, 0
        while len(picks) < count:
            chosen = rng.choice(len(able), min(len(able), count - len(picks)), replace=False)
            picks += [able[n] for n in chosen.tolist()]
            rounds += 1
            if not self.replace and len(picks) < count:
                able = [problem for problem in able if len(self._groups[problem]) > rounds]
        return picks

    def _enter(self, id_: int, problem: int) -> None:
        if problem not in self._groups:
            insort(self._problems, problem)
        ids = self._groups.setdefault(problem, [])
        place = bisect_left(ids, id_)
        if place == len(ids) or ids[place] != id_:
            ids.insert(place, id_)

    def _strike(self, id_: int, problem: int) -> None:
        ids = self._groups[problem]
        del ids[bisect_left(ids, id_)]
        if not ids:
            del self._groups[problem]
            del self._problems[bisect_left(self._problems, problem)]


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
    return groups.lift


def product(*weights: Weight) -> Weight:
    """The product of several weights."""

    def weight(groups: Features) -> Weights:
        return np.prod([each(groups) for each in weights], axis=0)

    return weight


def uniform(table: Table, *, replace: bool) -> Prioritised:
    """Every group with the same probability."""
    return Prioritised(table, weight=equal, replace=replace)


def _check_enough(count: int, available: int) -> None:
    if count > available:
        raise TooFewGroups(
            f"{count} groups asked for, {available} can be drawn (groups of weight 0 cannot): "
            "insert more first, ask for fewer, or use a sampler that draws with replacement."
        )
