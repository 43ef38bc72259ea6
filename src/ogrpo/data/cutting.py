"""Batches cut by tokens: each part's row has at most so many, and few of them are padding.

A part's row has the two sections of `ogrpo.data.packing`. Groups are dealt out whole, those with
the longest completion first, each to the part with the most room in its fuller section; a group
that fits nowhere whole is split between its completions, and each part that has some repeats its
prompt.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch, Packing, take, tokens_only
from ogrpo.data.packing import BUCKETS, OTHER_BUCKETS, Shape, bucket, halved, pack, token_counts
from ogrpo.protocol import BoolArray, IntArray

PART_BUCKETS = SECOND_BUCKETS = 4
"""Buckets of the number of parts, and of the second section, between a size and its double."""
ROOMS = (1.0, 1.06, 1.13, 1.25, 1.5)
"""Lengths at which a section is tried, in its mean over the parts."""
PROMPTS = (0, 1, 2)
"""Prompts for which the second section is tried with room besides, so that groups can be split."""


class Cut(NamedTuple):
    """The completions that each part computes, and the shape that all parts fit in."""

    shape: Shape
    groups: IntArray
    """[K, A], the group at each place; N for none."""
    here: BoolArray
    """[K, A, G], the completions of it that this part computes."""


class _Size(NamedTuple):
    """Number of parts and lengths of their sections; the fewest tokens come first."""

    tokens: int
    parts: int
    first: int
    second: int


@dataclass
class _Part:
    """Places taken in the sections of a part, and its completions by group."""

    first: int = 0
    second: int = 0
    members: dict[int, list[int]] = field(default_factory=dict)


def cut_by_tokens(
    batch: Batch[np.ndarray], included: BoolArray, *, most: int, together: int = 1
) -> Cut:
    """Cuts a batch into rows of at most `most` tokens, padding included, with as few as are found.

    Args:
      batch: groups, padded.
      included: bool `[N]`, False where a group is to be left out of the rows.
      most: tokens of a part's row, at most.
      together: parts that are computed at a time; the number of parts is a multiple of it.

    Raises:
      ValueError: a prompt without a token, or a completion that with its prompt is longer than
        `most`; the longest prompt counts.
    """
    prompts, lengths = token_counts(batch, included)
    prompts = prompts * lengths.any(axis=1)  # a group without completions is in no part
    (n, members, length), prompt = batch.completion_mask.shape, batch.prompt_mask.shape[1]
    longest_prompt, longest = int(prompts.max(initial=0)), int(lengths.max(initial=0))
    needed = longest_prompt + max(longest, 2)  # a row has one place at least before an end
    if needed > most:
        group, member = divmod(int(lengths.argmax()), members)
        raise ValueError(
            f"completion {member} of group {group} has {longest} tokens, and the longest prompt"
            f" {longest_prompt}: they do not fit in microbatches of {most} tokens, and no"
            f" completion is split; allow at least {needed}, or shorten what is drawn"
        )
    for size in sorted(_sizes(batch, prompts, lengths, most, together)):
        if (parts := _deal(prompts, lengths, size)) is not None:
            break
    else:
        raise AssertionError("every completion fits in a part of its own")
    places = bucket(max(1, *(len(part) for part in parts)), OTHER_BUCKETS, n)
    groups = np.full((len(parts), places), n, np.int32)
    here = np.zeros((*groups.shape, members), bool)
    for k, part in enumerate(parts):
        for place, group in enumerate(sorted(part)):
            groups[k, place] = group
            here[k, place, part[group]] = True
    shape = Shape(
        parts=len(parts),
        predictors=size.first,
        others=size.second,
        groups=places,
        members=members,
        prompt=prompt,
        completion=halved(max(1, longest), length),
    )
    return Cut(shape, groups, here)


def pack_cut(batch: Batch[np.ndarray], cut: Cut) -> Packing[np.ndarray]:
    """Returns the rows of a batch that was cut by tokens; the batch itself stays in its order."""
    there = cut.groups.ravel() < len(batch.prompt_ids)
    rows = np.where(there, cut.groups.ravel(), 0)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    pieces = take(tokens_only(**{name: getattr(batch, name) for name in names}), rows)
    here = cut.here.reshape(len(rows), -1, 1)
    pieces = pieces._replace(completion_mask=pieces.completion_mask & here)
    return pack(pieces, there, cut.shape)._replace(groups=cut.groups, here=cut.here)


def _sizes(
    batch: Batch[np.ndarray],
    prompts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    most: int,
    together: int,
) -> Iterator[_Size]:
    """Yields the sizes to try: few parts with long sections, or more with shorter ones."""
    full = batch.completion_mask.size, batch.prompt_mask.size + lengths.size
    prompt, followed = int(prompts.max(initial=0)), np.maximum(lengths - 1, 0)
    sums = int(followed.sum()), int(prompts.sum()) + int((lengths > 0).sum())
    turns, last = max(1, -(-sum(sums) // (most * together))), max(1, int((lengths > 0).sum()))
    numbers = []  # of parts: all up to 8, then some; the last is enough for anything
    while turns < last:
        turns = min(last, bucket(turns, PART_BUCKETS, 4 * turns))
        numbers.append(turns)
        turns += 1
    for parts in (number * together for number in (*numbers, turns)):
        means = [-(-total // parts) for total in sums]
        for room, more in product(ROOMS, PROMPTS):
            first = max(1, int(followed.max(initial=0)), int(means[0] * room))
            second = max(prompt + 1, means[1] + prompt * more)
            if first + second > most:
                continue
            long = (
                bucket(first, BUCKETS, min(most, max(first, full[0]))),
                bucket(second, SECOND_BUCKETS, min(most, max(second, full[1]))),
            )
            if sum(long) > most:  # the limit itself is the last bucket
                short = min(long[1], most - first)
                long = most - short, short
            yield _Size(parts * sum(long), parts, *long)


def _deal(
    prompts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], size: _Size
) -> list[dict[int, list[int]]] | None:
    """Returns the completions of each part by group; None where they do not fit."""
    parts = [_Part() for _ in range(size.parts)]
    followed, ends = np.maximum(lengths - 1, 0), lengths > 0

    def fits(part: _Part, group: int, first: int, second: int) -> bool:
        repeated = 0 if group in part.members else int(prompts[group])
        return part.first + first <= size.first and part.second + second + repeated <= size.second

    def put(part: _Part, group: int, members: list[int]) -> None:
        part.second += 0 if group in part.members else int(prompts[group])
        part.first += int(followed[group, members].sum())
        part.second += int(ends[group, members].sum())
        part.members.setdefault(group, []).extend(members)

    def fullness(part: _Part) -> float:
        return max(part.first / size.first, part.second / size.second)

    totals = prompts + lengths.sum(axis=1)
    for group in np.lexsort((-totals, -lengths.max(axis=1))).tolist():
        longest_first = np.argsort(-lengths[group], kind="stable").tolist()
        members = [member for member in longest_first if lengths[group, member]]
        if not members:
            continue
        emptiest = min(parts, key=fullness)
        if fits(emptiest, group, int(followed[group].sum()), int(ends[group].sum())):
            put(emptiest, group, members)
            continue
        for member in members:
            first = int(followed[group, member])
            with_prompt = (p for p in parts if group in p.members and fits(p, group, first, 1))
            part = next(with_prompt, None) or min(parts, key=fullness)
            if not fits(part, group, first, 1):
                return None
            put(part, group, [member])
    return [part.members for part in parts]
