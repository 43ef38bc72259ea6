"""Samplers of groups: in order, by weight, or spread over prompts.

A sampler is made for one buffer, from that buffer's table, and is told of every change:

    ReplayBuffer(..., sampler=Fifo)
    ReplayBuffer(..., sampler=partial(Prioritised, weight=positives))

A new one is any callable `Table -> Sampler`. The groups of one draw are distinct. Two draws are
independent given what the buffer holds and how often each group was used.

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

from ogrpo.data.replay.columns import ANOTHER, Int64Array
from ogrpo.data.replay.table import Features, Table

FloatArray = npt.NDArray[np.float64]
Weights = npt.NDArray[np.floating[Any]]
Weight = Callable[[Features], Weights]


class TooFewGroups(ValueError):
    """A draw of more groups than can be served."""


class Sampler(Protocol):
    """Draws groups by id."""

    def update(self, ids: Int64Array) -> None:
        """Takes note that these groups, distinct, were inserted, used or removed."""
        ...

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Returns `count` distinct ids of live groups.

        Raises:
            TooFewGroups: there are not that many to draw from.
        """
        ...


def _check_enough(count: int, available: int) -> None:
    if count > available:
        raise TooFewGroups(
            f"{count} groups asked for, {available} can be drawn (groups of weight 0 cannot): "
            "insert more first, or ask for fewer."
        )


class Fifo:
    """Draws in the order of insertion, from after the group drawn last, round and round.

    A buffer limited to one batch that is drawn once per insertion serves each batch once, in order.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def update(self, ids: Int64Array) -> None:
        """Does nothing: the table has the order."""

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:  # noqa: ARG002
        """Returns the next `count` live ids; `rng` is not used."""
        table = self._table
        _check_enough(count, table.live)
        ahead = table.first(max(table.cursor, table.head), table.next_id, count)
        if len(ahead) == count:
            return ahead
        return np.concatenate([ahead, table.first(table.head, table.next_id, count - len(ahead))])


class SumTree:
    """Non-negative float64 weights at places `0 .. size - 1`, drawn from in O(log n).

    A binary tree: node 1 is the root, node `k` has the children `2k` and `2k + 1`, place `p` is
    node `size + p`; `size` is a power of two. Each inner node is the rounded sum of its children
    and nothing else, so that the tree is a function of its weights, whatever the order in which
    they were set.
    """

    def __init__(self, size: int) -> None:
        if size < 1 or size & (size - 1):
            raise ValueError(f"size is {size}; give a power of two.")
        self.size = size
        self._nodes = np.zeros(2 * size, np.float64)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def weights(self, places: Int64Array) -> FloatArray:
        """Returns the weights at `places`."""
        return self._nodes[self.size + places]

    def set(self, places: Int64Array, weights: FloatArray) -> None:
        """Sets the weights at distinct `places`: O(k log n) for few of them, O(n) for many."""
        nodes, width = self.size + places, self.size
        self._nodes[nodes] = weights
        many = len(places) * self.size.bit_length() > self.size
        while width > 1:
            width //= 2
            if many:
                level = self._nodes[2 * width : 4 * width]
                self._nodes[width : 2 * width] = level[::2] + level[1::2]
            else:
                nodes = nodes >> 1
                self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, targets: FloatArray) -> Int64Array:
        """Returns the places at which the running sum first exceeds each target in [0, total).

        A place of weight 0 is never returned, whatever the rounding.
        """
        nodes, targets = np.ones(len(targets), np.int64), targets.copy()
        for _ in range(self.size.bit_length() - 1):
            left = self._nodes[2 * nodes]
            right = (targets >= left) & (self._nodes[2 * nodes + 1] > 0)
            targets -= np.where(right, left, 0)
            nodes = 2 * nodes + right
        return nodes - self.size


class Prioritised:
    """Draws groups by their weight, in O(log n) each.

    The groups of a draw come one after another, each in proportion to its weight among those not
    drawn yet (successive sampling). Groups of weight 0 are never drawn.

    Weights are computed anew for groups that change, and for all groups when the policy version
    moves, because staleness does.
    """

    def __init__(self, table: Table, *, weight: Weight) -> None:
        self._table, self._weight = table, weight
        self._tree = SumTree(table.capacity)
        self._version = table.version

    def update(self, ids: Int64Array) -> None:
        """Weighs these groups again."""
        if not self._renew() and len(ids):
            self._weigh(self._table.places(ids))

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Returns `count` ids drawn by weight."""
        self._renew()
        # Independent draws with repeats struck out are successive draws; what was drawn loses its
        # weight between rounds so that they end.
        drawn, weights = np.zeros(0, np.int64), np.zeros(0)
        while len(drawn) < count and self._tree.total > 0:
            places = self._tree.find(rng.random(count - len(drawn)) * self._tree.total)
            fresh = places[np.sort(np.unique(places, return_index=True)[1])]
            weights = np.concatenate([weights, self._tree.weights(fresh)])
            drawn = np.concatenate([drawn, fresh])
            self._tree.set(fresh, np.zeros(len(fresh)))
        self._tree.set(drawn, weights)
        _check_enough(count, len(drawn))
        return self._table.ids(drawn)

    def _renew(self) -> bool:
        """Weighs all groups where the version or the ring's size changed; returns whether so."""
        table = self._table
        if table.version == self._version and table.capacity == self._tree.size:
            return False
        self._version, self._tree = table.version, SumTree(table.capacity)
        self._weigh(table.places(table.all_live()))
        return True

    def _weigh(self, places: Int64Array) -> None:
        weights = np.asarray(self._weight(self._table.features(places)), np.float64)
        if weights.shape != places.shape or not (np.isfinite(weights) & (weights >= 0)).all():
            raise ValueError(
                f"the weight gave {weights.shape} values from {weights.min(initial=0)} to "
                f"{weights.max(initial=0)} for {len(places)} groups; give one finite value >= 0 "
                "for each."
            )
        self._tree.set(places, np.where(self._table.rows.alive[places], weights, 0.0))


class Stratified:
    """Draws in rounds in which each prompt gives one group, in random order.

    The last round takes as many prompts as are still needed, at random. The group a prompt gives is
    uniform among those it has not given in this draw; prompts that have given all theirs sit out.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._groups: dict[int, list[int]] = {}  # ids of each prompt, ascending
        self._problems: list[int] = []  # ascending

    def update(self, ids: Int64Array) -> None:
        """Enters or strikes out these groups."""
        rows, places = self._table.rows, self._table.places(ids)
        alive, problems = rows.alive[places].tolist(), rows.problems[places].tolist()
        for id_, lives, problem in zip(ids.tolist(), alive, problems, strict=True):
            if problem not in self._groups:
                insort(self._problems, problem)
            held = self._groups.setdefault(problem, [])
            place = bisect_left(held, id_)
            if not lives:
                del held[place]
            elif place == len(held) or held[place] != id_:
                held.insert(place, id_)
            if not held:
                del self._groups[problem], self._problems[bisect_left(self._problems, problem)]

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Returns `count` ids, of as many prompts as can be, as evenly as can be."""
        _check_enough(count, self._table.live)
        picks: list[int] = []
        able, rounds = self._problems, 0
        while len(picks) < count:
            indices = rng.choice(len(able), min(len(able), count - len(picks)), replace=False)
            picks += [able[n] for n in indices.tolist()]
            rounds += 1
            if len(picks) < count:
                able = [problem for problem in able if len(self._groups[problem]) > rounds]
        drawn = {
            problem: iter(rng.choice(self._groups[problem], times, replace=False).tolist())
            for problem, times in Counter(picks).items()
        }
        return np.array([next(drawn[problem]) for problem in picks], np.int64)


class Mixed:
    """Draws a fixed share of each draw from the groups of a log, the rest from the run's own.

    Each side uniformly: round(share * count) groups were drawn by another policy than the run's
    (version -1). In O(n) for n groups held.
    """

    def __init__(self, table: Table, *, share: float) -> None:
        self._table, self._share = table, share

    def update(self, ids: Int64Array) -> None:
        """Does nothing: the table has the versions."""

    def draw(self, count: int, rng: np.random.Generator) -> Int64Array:
        """Returns `count` ids in random order; either side may have too few."""
        live, logged = self._table.all_live(), round(self._share * count)
        of_log = self._table.rows.oldest[self._table.places(live)] == ANOTHER
        parts = []
        for side, part in ((live[of_log], logged), (live[~of_log], count - logged)):
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
    return groups.lift


def product(*weights: Weight) -> Weight:
    """The product of several weights."""
    return lambda groups: np.prod([weight(groups) for weight in weights], axis=0)


def uniform(table: Table) -> Prioritised:
    """Draws every group with the same probability."""
    return Prioritised(table, weight=equal)
