"""Batches cut by tokens: which completions are computed together, none of the parts being too long.

A part's row has the two sections of `ogrpo.data.packing`. Groups are dealt out whole, those with
the longest completion first, each to the part with the most room in its fuller section; a group
that fits nowhere whole is split between its completions, and each part that has some repeats its
prompt.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch, Packing, take, tokens_only
from ogrpo.data.packing import OTHER_RUNGS, TOKEN_RUNGS, Shape, halved, pack, rung, token_counts
from ogrpo.protocol import BoolArray, IntArray

PART_RUNGS = SECOND_RUNGS = 4
"""Rungs of the number of parts, and of the second section, between a size and its double."""
ROOMS = (1.0, 1.06, 1.13, 1.25, 1.5)
"""How much longer than its mean over the parts a section is tried."""
PROMPTS = (0, 1, 2)
"""For how many prompts more the second section has room, so that groups can be split."""

Counts = npt.NDArray[np.int64]


class Cut(NamedTuple):
    """Which completions each part computes, and the shape that all parts fit in."""

    shape: Shape
    groups: IntArray
    """[K, A], the group at each place; N for none."""
    here: BoolArray
    """[K, A, G], the completions of it that this part computes."""


class _Size(NamedTuple):
    """Parts and their sections; the fewest tokens come first."""

    tokens: int
    parts: int
    first: int
    second: int


class _Need(NamedTuple):
    """Places that a batch takes in the two sections of rows, completion by completion."""

    prompts: Counts  # [N], tokens of the prompt, in the second section
    lengths: Counts  # [N, G], of which all but the last are in the first section

    @property
    def first(self) -> Counts:
        """Of each completion."""
        return np.maximum(self.lengths - 1, 0)

    @property
    def second(self) -> Counts:
        """Of each completion, without its prompt."""
        return (self.lengths > 0).astype(np.int64)

    @property
    def others(self) -> int:
        """Of the second section, in all, each prompt counting once."""
        return int(self.prompts.sum() + self.second.sum())


def cut_by_tokens(
    batch: Batch[np.ndarray], wanted: BoolArray, *, most: int, together: int = 1
) -> Cut:
    """Parts with rows of at most `most` tokens, padding included; as few tokens as are found.

    Args:
        batch: groups, padded.
        wanted: bool `[N]`, False where a group is to be left out of the rows.
        most: tokens of a part's row, at most.
        together: parts that are computed at a time; the number of parts is a multiple of it.

    Raises:
        ValueError: a prompt without a token, or a completion that with its prompt is longer than
            `most`; the longest prompt counts.
    """
    need = _Need(*token_counts(batch, wanted))
    _check_length(need, most)
    for size in sorted(_sizes(batch, need, most, together)):
        dealt = _dealt(need, size)
        if dealt is not None:
            return _laid_out(batch, need, dealt, size)
    raise AssertionError("every completion fits in a part of its own")


def pack_cut(batch: Batch[np.ndarray], cut: Cut) -> Packing[np.ndarray]:
    """The rows of a batch that was cut by tokens; the batch itself stays in its order."""
    there = cut.groups.ravel() < len(batch.prompt_ids)
    rows = np.where(there, cut.groups.ravel(), 0)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    pieces = take(tokens_only(**{name: getattr(batch, name) for name in names}), rows)
    here = cut.here.reshape(len(rows), -1, 1)
    pieces = pieces._replace(completion_mask=pieces.completion_mask & here)
    packing = pack(pieces, there, cut.shape)
    return packing._replace(groups=cut.groups, here=cut.here)


def _check_length(need: _Need, most: int) -> None:
    prompt, longest = int(need.prompts.max(initial=0)), int(need.lengths.max(initial=0))
    if prompt + longest > most:
        group, member = divmod(int(need.lengths.argmax()), need.lengths.shape[1])
        raise ValueError(
            f"completion {member} of group {group} has {longest} tokens, and the longest prompt"
            f" {prompt}: they do not fit in microbatches of {most} tokens, and no completion is"
            f" split; allow at least {prompt + longest}, or shorten what is drawn"
        )


def _numbers(least: int, most: int) -> Iterator[int]:
    """Numbers of parts to try: all up to 8, then some; the last is enough for anything."""
    parts, most = max(1, least), max(1, most)
    while parts < most:
        parts = min(most, rung(parts, PART_RUNGS, 4 * parts))
        yield parts
        parts += 1
    yield parts


def _sizes(batch: Batch[np.ndarray], need: _Need, most: int, together: int) -> Iterator[_Size]:
    """What may be tried: few parts with long sections, or more with shorter ones."""
    full = batch.completion_mask.size, batch.prompt_mask.size + need.lengths.size
    prompt, sums = int(need.prompts.max(initial=0)), (int(need.first.sum()), need.others)
    least, own = -(-(sums[0] + sums[1]) // (most * together)), int((need.lengths > 0).sum())
    for turns in _numbers(least, own):
        parts = turns * together
        means = [-(-total // parts) for total in sums]
        for room, more in product(ROOMS, PROMPTS):
            first = max(1, int(need.first.max(initial=0)), int(means[0] * room))
            second = max(prompt + 1, means[1] + prompt * more)
            if first + second > most:
                continue
            long = (
                rung(first, TOKEN_RUNGS, min(most, max(first, full[0]))),
                rung(second, SECOND_RUNGS, min(most, max(second, full[1]))),
            )
            if sum(long) > most:  # the limit itself is the last rung
                short = min(long[1], most - first)
                long = most - short, short
            yield _Size(parts * sum(long), parts, *long)


class _Part:
    """What a part holds while groups are dealt out."""

    def __init__(self) -> None:
        """Nothing."""
        self.first = self.second = 0
        self.held: dict[int, list[int]] = {}


def _dealt(need: _Need, size: _Size) -> list[dict[int, list[int]]] | None:
    """Of each part the completions by group; None where they do not fit."""
    made = [_Part() for _ in range(size.parts)]
    own, ends = need.first, need.second
    totals = need.prompts + need.lengths.sum(axis=1)

    def fits(part: _Part, group: int, more: int, others: int) -> bool:
        repeated = 0 if group in part.held else int(need.prompts[group])
        return part.first + more <= size.first and part.second + others + repeated <= size.second

    def put(part: _Part, group: int, members: list[int]) -> None:
        part.second += 0 if group in part.held else int(need.prompts[group])
        part.first += int(own[group, members].sum())
        part.second += int(ends[group, members].sum())
        part.held.setdefault(group, []).extend(members)

    def fullness(part: _Part) -> float:
        return max(part.first / size.first, part.second / size.second)

    for group in np.lexsort((-totals, -need.lengths.max(axis=1))).tolist():
        longest_first = np.argsort(-need.lengths[group], kind="stable").tolist()
        members = [member for member in longest_first if need.lengths[group, member]]
        if not members:
            continue
        least = min(made, key=fullness)
        if fits(least, group, int(own[group].sum()), int(ends[group].sum())):
            put(least, group, members)
            continue
        for member in members:
            more = int(own[group, member])
            with_prompt = (p for p in made if group in p.held and fits(p, group, more, 1))
            part = next(with_prompt, None) or min(made, key=fullness)
            if not fits(part, group, more, 1):
                return None
            put(part, group, [member])
    return [part.held for part in made]


def _laid_out(
    batch: Batch[np.ndarray],
    need: _Need,
    dealt: list[dict[int, list[int]]],
    size: _Size,
) -> Cut:
    (n, members, length), prompt = batch.completion_mask.shape, batch.prompt_mask.shape[1]
    places = rung(max(1, *(len(held) for held in dealt)), OTHER_RUNGS, n)
    groups = np.full((len(dealt), places), n, np.int32)
    here = np.zeros((*groups.shape, members), bool)
    for part, held in enumerate(dealt):
        for place, group in enumerate(sorted(held)):
            groups[part, place] = group
            here[part, place, held[group]] = True
    shape = Shape(
        parts=len(dealt),
        predictors=size.first,
        others=size.second,
        groups=places,
        members=members,
        prompt=prompt,
        completion=halved(max(1, int(need.lengths.max(initial=1))), length),
    )
    return Cut(shape, groups, here)
