"""Batches without their padding: which token stands where in a row, and in how many shapes.

A batch's tokens are laid in a row, part by part (microbatches), and a row's length is one of a
ladder, so that few programs serve all batches. The row of a part is

    [tokens with a successor in their completion | ends of completions, then prompts | padding]

each of the two sections padded to a rung of its own: only the first needs next-token
probabilities (`ogrpo.policy.packing` says what becomes of all this).
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch, Packing, take
from ogrpo.protocol import BoolArray, IntArray

# Rungs between a size and its double. The first section is most of a batch: 8 keep its padding at
# 4 % on average. The others are a small share of the tokens, and each rung is one shape more.
TOKEN_RUNGS, OTHER_RUNGS = 8, 2
BLOCKS = 8
"""Blocks that the queries of a completion of the full length are cut into, at most."""
LEAST_BLOCK, MOST_BLOCK = 16, 128
OF_CUTS = ("groups", "here")
"""Fields that only batches cut by tokens have (`ogrpo.data.cutting`)."""


class Shape(NamedTuple):
    """The sizes of a packed batch: one program each."""

    parts: int  # K
    predictors: int  # R
    others: int  # M - R
    groups: int  # A, in a part
    members: int  # G
    prompt: int  # P
    completion: int  # T

    @property
    def row(self) -> int:
        """M, tokens computed in each part."""
        return self.predictors + self.others

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return self.parts * self.row

    @property
    def block(self) -> int:
        """b, queries in a block."""
        return min(self.completion, MOST_BLOCK, max(LEAST_BLOCK, -(-self.completion // BLOCKS)))

    @property
    def blocks(self) -> int:
        """B, which no part can exceed: a completion of t tokens has 1 + (t - 1) // b of them."""
        return self.predictors // self.block + self.groups * self.members

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes that its cost is counted from, fields of `ogrpo.policy.flops.Layout`."""
        queries = self.blocks * self.block
        return {
            "tokens": self.row,
            "pairs": self.groups * self.prompt**2 + queries * (self.prompt + self.completion),
            "groups": self.groups,
            "members": self.members,
            "rest": self.predictors,
            "parts": self.parts,
        }


class Arranged(NamedTuple):
    """A batch in the order of its parts, and the shape it fits in."""

    order: IntArray  # [N], the group in each place
    shape: Shape


def rung(size: int, per_octave: int, full: int) -> int:
    """The least rung that is at least `size`, `full` being the last.

    Rungs are k 2^j for k in [r, 2r), r per octave; below a quarter of `full` they come no closer
    than just above it, so that there are 4 r of them at most.

    >>> [rung(size, 2, 100) for size in (1, 7, 13, 33, 40, 97)]
    [8, 8, 16, 48, 48, 100]
    """
    octave = max(size, full // 4, 1)
    step = max(1, (1 << (octave.bit_length() - 1)) // per_octave)
    return min(-(-size // step) * step, full)


def halved(size: int, full: int) -> int:
    """`full`, halved (rounded up) as often as it stays at least `size`.

    >>> [halved(size, 200) for size in (200, 101, 100, 13)]
    [200, 200, 100, 13]
    """
    while full > 1 and -(-full // 2) >= size:
        full = -(-full // 2)
    return full


def arrange(
    batch: Batch[np.ndarray], wanted: BoolArray, *, microbatches: int, together: int = 1
) -> Arranged:
    """Parts of equally many groups and about equally many tokens, and the shape for them.

    A part computes no more tokens, its padding included, than a microbatch of the padded batch (but
    for batches of a few tokens); the batch is cut into as few parts as that allows.

    Args:
        batch: groups, padded.
        wanted: bool `[N]`, False where a group is to be left out of the rows.
        microbatches: parts of the padded batch; it divides `N`.
        together: parts that are computed at a time, one for each device that a batch is cut over;
            the number of parts is a multiple of it, and it divides `microbatches`.

    Raises:
        ValueError: a prompt without a token, microbatches that do not divide the groups, or parts
            computed together that do not divide the microbatches.
    """
    prompts, completions = token_counts(batch, wanted)
    tokens, n = prompts + completions.sum(axis=1), len(prompts)
    if n % microbatches:
        raise ValueError(f"{n} groups cannot be cut into {microbatches} equal microbatches")
    if microbatches % together:
        raise ValueError(
            f"{microbatches} microbatches cannot be computed {together} at a time: give a multiple"
        )
    capacity = batch.prompt_mask.size + batch.completion_mask.size
    for parts in (parts for parts in range(together, microbatches, together) if n % parts == 0):
        found = _cut(batch, wanted, tokens, parts)
        if found.shape.row * microbatches <= capacity:
            return found
    return _cut(batch, wanted, tokens, microbatches)


def _cut(
    batch: Batch[np.ndarray], wanted: BoolArray, tokens: npt.NDArray[np.int64], parts: int
) -> Arranged:
    order = balanced(tokens, parts)
    return Arranged(order, _fitting(batch, wanted, order, parts))


def balanced(tokens: npt.NDArray[np.int64], parts: int) -> IntArray:
    """An order of the groups whose `parts` equal stretches hold about equally many tokens.

    The longest first, each to the part with the fewest tokens that has room (Graham 1969).
    """
    members: list[list[int]] = [[] for _ in range(parts)]
    loads = np.zeros(parts, np.int64)
    room = len(tokens) // parts
    for group in np.argsort(-tokens, kind="stable").tolist():
        part = min((p for p in range(parts) if len(members[p]) < room), key=lambda p: loads[p])
        members[part].append(group)
        loads[part] += tokens[group]
    return np.array([group for part in members for group in sorted(part)], np.int32)


def pack(batch: Batch[np.ndarray], wanted: BoolArray, shape: Shape) -> Packing[np.ndarray]:
    """Lay a batch, in the order of its parts, in rows of the given shape.

    Args:
        batch: groups in order, stretches of `N / shape.parts` of them being a part each.
        wanted: bool `[N]`, in the same order.
        shape: from `arrange`.

    Raises:
        ValueError: a part that does not fit in the shape.
    """
    size = len(wanted) // shape.parts
    stretches = [slice(start, start + size) for start in range(0, len(wanted), size)]
    parts = [_pack_part(take(batch, part), wanted[part], shape) for part in stretches]
    made = [part._asdict() for part in parts]
    stacked = {name: np.stack([p[name] for p in made]) for name in made[0] if name not in OF_CUTS}
    return Packing(**stacked)


def real_tokens(batch: Batch[np.ndarray], wanted: BoolArray) -> int:
    """Tokens of prompts and completions that are no padding, in the groups that are wanted."""
    prompts, completions = token_counts(batch, wanted)
    return int(prompts.sum() + completions.sum())


def token_counts(
    batch: Batch[np.ndarray], wanted: BoolArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Tokens of each prompt `[N]` and completion `[N, G]`; 0 where a group is left out."""
    prompts = batch.prompt_mask.sum(axis=1)
    if not prompts.all():
        raise ValueError(
            f"the prompt of group {int(np.argmin(prompts))} has no token: give each at least one"
        )
    return prompts * wanted, batch.completion_mask.sum(axis=2) * wanted[:, None]


def _fitting(batch: Batch[np.ndarray], wanted: BoolArray, order: IntArray, parts: int) -> Shape:
    """The rungs that the largest part needs; none needs more than the batch without packing."""
    (n, members, length), prompt = batch.completion_mask.shape, batch.prompt_mask.shape[1]
    prompts, completions = token_counts(take(batch, order), wanted[order])
    predictors = np.maximum(completions - 1, 0).sum(axis=1).reshape(parts, -1).sum(axis=1)
    others = (prompts + (completions > 0).sum(axis=1)).reshape(parts, -1).sum(axis=1)
    groups = wanted[order].reshape(parts, -1).sum(axis=1)
    size = n // parts

    def fit(needed: npt.NDArray[np.int64], per_octave: int, full: int) -> int:
        return rung(max(1, int(needed.max())), per_octave, max(1, full))

    return Shape(
        parts=parts,
        predictors=fit(predictors, TOKEN_RUNGS, size * members * (length - 1)),
        others=fit(others, OTHER_RUNGS, size * (prompt + members)),
        groups=fit(groups, OTHER_RUNGS, size),
        members=members,
        prompt=prompt,
        completion=halved(max(1, int(completions.max())), length),
    )


def _pack_part(batch: Batch[np.ndarray], wanted: BoolArray, shape: Shape) -> Packing[np.ndarray]:
    chosen = take(batch, np.flatnonzero(wanted))
    followed = np.zeros_like(chosen.completion_mask)
    followed[..., :-1] = chosen.completion_mask[..., 1:]
    _check_room(chosen, followed, shape)
    prompts, completions = _places(chosen, followed, shape)
    token_ids, positions = _contents(chosen, prompts, completions, shape)
    prompt_slots = _filled(prompts, (shape.groups, shape.prompt), shape.row)
    rows = completions[..., : shape.completion].reshape(-1, shape.completion)
    slots = _filled(rows, (shape.groups * shape.members, shape.completion), shape.row)
    block_slots, owners, starts = _blocks(slots, shape)
    return Packing(
        token_ids=token_ids,
        positions=positions,
        targets=_targets(chosen, followed, shape),
        last=_filled(_last(prompts, shape.row), (shape.groups,), 0),
        firsts=_filled(chosen.completion_ids[..., 0], (shape.groups, shape.members), 0),
        prompt_slots=prompt_slots,
        completion_slots=slots,
        block_slots=block_slots,
        block_owners=owners,
        block_starts=starts,
        key_slots=_inverse(shape.row, prompt_slots, slots),
        query_slots=_inverse(shape.row, prompt_slots, block_slots),
        answers=_answers(batch, wanted, completions, shape),
    )


def _check_room(batch: Batch[np.ndarray], followed: BoolArray, shape: Shape) -> None:
    """Raise ValueError where a part needs more than its shape has."""
    mask, predictors = batch.completion_mask, int(followed.sum())
    needed = {
        "groups": (len(mask), shape.groups),
        "predictors": (predictors, shape.predictors),
        "others": (int(mask.sum() + batch.prompt_mask.sum()) - predictors, shape.others),
        "completion": (int(mask.sum(axis=-1).max(initial=0)), shape.completion),
    }
    over = {name: pair for name, pair in needed.items() if pair[0] > pair[1]}
    if over:
        shown = ", ".join(f"{name} {need} of {room}" for name, (need, room) in over.items())
        raise ValueError(f"a packed part is over-full ({shown}): take its shape from arrange")


def _places(
    batch: Batch[np.ndarray], followed: BoolArray, shape: Shape
) -> tuple[IntArray, IntArray]:
    """The place in the row of each prompt and completion token; M on padding."""
    ends = batch.completion_mask & ~followed
    completions = np.full(followed.shape, shape.row, np.int32)
    completions[followed] = np.arange(followed.sum())
    completions[ends] = shape.predictors + np.arange(ends.sum())
    prompts = np.full(batch.prompt_mask.shape, shape.row, np.int32)
    begin = shape.predictors + int(ends.sum())
    prompts[batch.prompt_mask] = begin + np.arange(batch.prompt_mask.sum())
    return prompts, completions


def _contents(
    batch: Batch[np.ndarray], prompts: IntArray, completions: IntArray, shape: Shape
) -> tuple[IntArray, IntArray]:
    """Token ids and positions `[M]` of the row; 0 on padding."""
    ids, positions = np.zeros((2, shape.row), np.int32)
    lengths = batch.prompt_mask.sum(axis=1, dtype=np.int32)[:, None, None]
    along = np.arange(prompts.shape[1], dtype=np.int32), np.arange(completions.shape[2])
    for places, mask, tokens, at in (
        (prompts, batch.prompt_mask, batch.prompt_ids, along[0]),
        (completions, batch.completion_mask, batch.completion_ids, lengths + along[1]),
    ):
        ids[places[mask]] = tokens[mask]
        positions[places[mask]] = np.broadcast_to(at, mask.shape)[mask]
    return ids, positions


def _targets(batch: Batch[np.ndarray], followed: BoolArray, shape: Shape) -> IntArray:
    """The tokens after those that are followed, `[R]`."""
    after = batch.completion_ids[..., 1:][followed[..., :-1]]
    return _filled(after, (shape.predictors,), 0)


def _last(prompts: IntArray, nowhere: int) -> IntArray:
    """The place of each prompt's last token: places grow along a prompt."""
    return np.where(prompts < nowhere, prompts, -1).max(axis=1, initial=-1)


def _blocks(slots: IntArray, shape: Shape) -> tuple[IntArray, IntArray, IntArray]:
    """Completions `[A G, T]` cut into blocks of queries `[B, b]`, with their owners and starts."""
    width = -shape.completion % shape.block
    cut = np.pad(slots, ((0, 0), (0, width)), constant_values=shape.row)
    cut = cut.reshape(len(slots), -1, shape.block)
    owners, index = np.nonzero(cut[..., 0] < shape.row)
    return (
        _filled(cut[owners, index], (shape.blocks, shape.block), shape.row),
        _filled(owners, (shape.blocks,), 0),
        _filled(index * shape.block, (shape.blocks,), 0),
    )


def _answers(
    batch: Batch[np.ndarray], wanted: BoolArray, completions: IntArray, shape: Shape
) -> IntArray:
    """Where each completion token's log-prob is found, `[N/K, G, T]`: firsts, then targets."""
    firsts = shape.groups * shape.members
    answers = np.full(batch.completion_mask.shape, firsts + shape.predictors, np.int32)
    first = np.arange(wanted.sum() * shape.members).reshape(-1, shape.members)
    later = firsts + completions[..., :-1]
    found = np.concatenate([first[..., None], later], axis=-1)
    answers[wanted] = np.where(batch.completion_mask[wanted], found, answers[wanted])
    return answers


def _inverse(row: int, *slots: IntArray) -> IntArray:
    """For each place of the row its index in the slots laid end to end; their size for none."""
    flat = np.concatenate([part.ravel() for part in slots])
    back = np.full(row, flat.size, np.int32)
    real = np.flatnonzero(flat < row)
    back[flat[real]] = real
    return back


def _filled(values: npt.NDArray[np.integer], shape: tuple[int, ...], fill: int) -> IntArray:
    """The values in the first corner of an array of this shape."""
    filled = np.full(shape, fill, np.int32)
    filled[: len(values)] = values
    return filled
