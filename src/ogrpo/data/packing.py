"""Batches without their padding: the place of each token in a row, in few shapes.

A batch's tokens are laid in a row, part by part (microbatches), and a row's length is one of a
few bucket sizes, so that few programs serve all batches. The row of a part is

    [tokens with a successor in their completion | ends of completions, then prompts | padding]

each of the two sections padded to a bucket of its own: only the first needs next-token
probabilities (`ogrpo.policy.packing` says what becomes of all this).
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch, Packing, take
from ogrpo.protocol import BoolArray, IntArray

# Buckets between a size and its double. The first section is most of a batch: 8 keep its padding at
# 4 % on average. The others are a small share of the tokens, and each bucket is one shape more.
BUCKETS, OTHER_BUCKETS = 8, 2
BLOCKS = 8
"""Blocks that the queries of a completion of the full length are cut into, at most."""
LEAST_BLOCK, MOST_BLOCK = 16, 128


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
        """The sizes that its cost is counted from, fields of `ogrpo.policy.flops.Workload`."""
        queries = self.blocks * self.block
        return {
            "tokens": self.row,
            "pairs": self.groups * self.prompt**2 + queries * (self.prompt + self.completion),
            "groups": self.groups,
            "members": self.members,
            "rest": self.predictors,
            "parts": self.parts,
        }


def bucket(size: int, per_octave: int, full: int) -> int:
    """Returns the least bucket that is at least `size`, `full` being the last.

    Buckets are k 2^j for k in [r, 2r), r per octave; below a quarter of `full` they come no closer
    than just above it, so that there are 4 r of them at most.

    >>> [bucket(size, 2, 100) for size in (1, 7, 13, 33, 40, 97)]
    [8, 8, 16, 48, 48, 100]
    """
    octave = max(size, full // 4, 1)
    step = max(1, (1 << (octave.bit_length() - 1)) // per_octave)
    return min(-(-size // step) * step, full)


def halved(size: int, full: int) -> int:
    """Returns `full`, halved (rounded up) as often as it stays at least `size`.

    >>> [halved(size, 200) for size in (200, 101, 100, 13)]
    [200, 200, 100, 13]
    """
    while full > 1 and -(-full // 2) >= size:
        full = -(-full // 2)
    return full


def arrange(
    batch: Batch[np.ndarray], included: BoolArray, *, microbatches: int, together: int = 1
) -> tuple[IntArray, Shape]:
    """Cuts a batch into parts of equally many groups and about equally many tokens.

    A part computes no more tokens, its padding included, than a microbatch of the padded batch (but
    for batches of a few tokens); the batch is cut into as few parts as that allows.

    Args:
      batch: groups, padded.
      included: bool `[N]`, False where a group is to be left out of the rows.
      microbatches: parts of the padded batch; it divides `N`.
      together: parts that are computed at a time, one for each device that a batch is cut over;
        the number of parts is a multiple of it, and it divides `microbatches`.

    Returns:
      The group in each place, `[N]`, parts being equal stretches of it; and the shape in which
      all parts fit: the buckets that the largest needs, none above the padded batch's own sizes.

    Raises:
      ValueError: a prompt without a token, microbatches that do not divide the groups, or parts
        computed together that do not divide the microbatches.
    """
    prompts, completions = token_counts(batch, included)
    (n, members, length), prompt = batch.completion_mask.shape, batch.prompt_mask.shape[1]
    if n % microbatches:
        raise ValueError(f"{n} groups cannot be cut into {microbatches} equal microbatches")
    if microbatches % together:
        raise ValueError(
            f"{microbatches} microbatches cannot be computed {together} at a time: give a multiple"
        )
    tokens = prompts + completions.sum(axis=1)
    predictors = np.maximum(completions - 1, 0).sum(axis=1)
    others = prompts + (completions > 0).sum(axis=1)

    def fitting(parts: int) -> tuple[IntArray, Shape]:
        order, size = balanced(tokens, parts), n // parts

        def fit(places: npt.NDArray[Any], per_octave: int, full: int) -> int:
            needed = places[order].reshape(parts, -1).sum(axis=1).max()
            return bucket(max(1, int(needed)), per_octave, max(1, full))

        return order, Shape(
            parts=parts,
            predictors=fit(predictors, BUCKETS, size * members * (length - 1)),
            others=fit(others, OTHER_BUCKETS, size * (prompt + members)),
            groups=fit(included, OTHER_BUCKETS, size),
            members=members,
            prompt=prompt,
            completion=halved(max(1, int(completions.max())), length),
        )

    capacity = batch.prompt_mask.size + batch.completion_mask.size
    for parts in (parts for parts in range(together, microbatches, together) if n % parts == 0):
        order, shape = fitting(parts)
        if shape.row * microbatches <= capacity:
            return order, shape
    return fitting(microbatches)


def balanced(tokens: npt.NDArray[np.int64], parts: int) -> IntArray:
    """Returns an order of the groups whose `parts` equal stretches hold about equally many tokens.

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


def real_tokens(batch: Batch[np.ndarray], included: BoolArray) -> int:
    """Counts the tokens of prompts and completions that are no padding, in the included groups."""
    prompts, completions = token_counts(batch, included)
    return int(prompts.sum() + completions.sum())


def token_counts(
    batch: Batch[np.ndarray], included: BoolArray
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the tokens of each prompt `[N]` and completion `[N, G]`; 0 in a group left out.

    Raises:
      ValueError: a prompt has no token.
    """
    prompts = batch.prompt_mask.sum(axis=1)
    if not prompts.all():
        raise ValueError(
            f"the prompt of group {int(np.argmin(prompts))} has no token: give each at least one"
        )
    return prompts * included, batch.completion_mask.sum(axis=2) * included[:, None]


def pack(batch: Batch[np.ndarray], included: BoolArray, shape: Shape) -> Packing[np.ndarray]:
    """Lays a batch, in the order of its parts, in rows of one shape.

    Args:
      batch: groups in order, stretches of `N / shape.parts` of them being a part each.
      included: bool `[N]`, in the same order.
      shape: from `arrange`.

    Raises:
      ValueError: a part that does not fit in the shape.
    """
    size = len(included) // shape.parts
    stretches = [slice(start, start + size) for start in range(0, len(included), size)]
    parts = [_pack_part(take(batch, part), included[part], shape) for part in stretches]
    return Packing(**{name: np.stack([part[name] for part in parts]) for name in parts[0]})


def _pack_part(
    batch: Batch[np.ndarray], included: BoolArray, shape: Shape
) -> dict[str, npt.NDArray[Any]]:
    """Returns a part's fields of `Packing`, without their first axis."""
    padded, batch = batch, take(batch, np.flatnonzero(included))
    mask, prompt_mask, nowhere = batch.completion_mask, batch.prompt_mask, shape.row
    followed = np.zeros_like(mask)
    followed[..., :-1] = mask[..., 1:]
    ends = mask & ~followed
    predictors, others = int(followed.sum()), int(ends.sum() + prompt_mask.sum())
    needed = {
        "groups": (len(mask), shape.groups),
        "predictors": (predictors, shape.predictors),
        "others": (others, shape.others),
        "completion": (int(mask.sum(axis=-1).max(initial=0)), shape.completion),
    }
    if over := [f"{name} {n} of {room}" for name, (n, room) in needed.items() if n > room]:
        raise ValueError(
            f"a packed part is over-full ({', '.join(over)}): take its shape from arrange"
        )
    # The place in the row of each completion and prompt token; M on padding.
    completions = np.full(mask.shape, nowhere, np.int32)
    completions[followed] = np.arange(predictors)
    completions[ends] = shape.predictors + np.arange(ends.sum())
    prompts = np.full(prompt_mask.shape, nowhere, np.int32)
    prompts[prompt_mask] = shape.predictors + int(ends.sum()) + np.arange(prompt_mask.sum())
    token_ids, positions = np.zeros((2, shape.row), np.int32)
    begins = prompt_mask.sum(axis=1, dtype=np.int32)[:, None, None]
    for places, there, tokens, first in (
        (prompts, prompt_mask, batch.prompt_ids, 0),
        (completions, mask, batch.completion_ids, begins),
    ):
        along = first + np.arange(tokens.shape[-1], dtype=np.int32)
        token_ids[places[there]] = tokens[there]
        positions[places[there]] = np.broadcast_to(along, there.shape)[there]
    prompt_slots = _filled(prompts, (shape.groups, shape.prompt), nowhere)
    rows = completions[..., : shape.completion].reshape(-1, shape.completion)
    slots = _filled(rows, (shape.groups * shape.members, shape.completion), nowhere)
    # Completions [A G, T] cut into blocks of queries [B, b], with their owners and starts.
    width = -shape.completion % shape.block
    blocks = np.pad(slots, ((0, 0), (0, width)), constant_values=nowhere)
    blocks = blocks.reshape(len(slots), -1, shape.block)
    owners, index = np.nonzero(blocks[..., 0] < nowhere)
    block_slots = _filled(blocks[owners, index], (shape.blocks, shape.block), nowhere)
    # Each completion token's log-prob is in (firsts, targets); behind both where there is none.
    firsts = shape.groups * shape.members
    answers = np.full(padded.completion_mask.shape, firsts + shape.predictors, np.int32)
    first = np.arange(len(mask) * shape.members).reshape(-1, shape.members, 1)
    later = np.concatenate([first, firsts + completions[..., :-1]], axis=-1)
    answers[included] = np.where(mask, later, answers[included])
    last = np.where(prompts < nowhere, prompts, -1).max(axis=1, initial=-1)
    return {
        "token_ids": token_ids,
        "positions": positions,
        "targets": _filled(batch.completion_ids[..., 1:][followed[..., :-1]], (shape.predictors,)),
        "last": _filled(last, (shape.groups,)),
        "firsts": _filled(batch.completion_ids[..., 0], (shape.groups, shape.members)),
        "prompt_slots": prompt_slots,
        "completion_slots": slots,
        "block_slots": block_slots,
        "block_owners": _filled(owners, (shape.blocks,)),
        "block_starts": _filled(index * shape.block, (shape.blocks,)),
        "key_slots": _inverse(shape.row, prompt_slots, slots),
        "query_slots": _inverse(shape.row, prompt_slots, block_slots),
        "answers": answers,
    }


def _inverse(row: int, *slots: IntArray) -> IntArray:
    """Returns each place's index in the slots laid end to end; their size where it has none."""
    flat = np.concatenate([part.ravel() for part in slots])
    back = np.full(row, flat.size, np.int32)
    real = np.flatnonzero(flat < row)
    back[flat[real]] = real
    return back


def _filled(values: npt.NDArray[np.integer], shape: tuple[int, ...], fill: int = 0) -> IntArray:
    """Returns an array of this shape with the values in its first corner."""
    filled = np.full(shape, fill, np.int32)
    filled[: len(values)] = values
    return filled
