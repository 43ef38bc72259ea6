"""Loss masks as the stretches of tokens that they leave out: nothing where all tokens carry loss.

What a tool returned is a stretch, and so is a completion that carries no loss at all; a mask of any
other form is kept just as exactly.
"""

from itertools import groupby

import numpy as np

from ogrpo.protocol import BoolArray, IntArray


def no_stretches() -> IntArray:
    """The table of completions that carry loss throughout, int32 `[0, 4]`."""
    return np.zeros((0, 4), np.int32)


def to_stretches(masks: BoolArray, lengths: IntArray) -> IntArray:
    """Return where masks are False.

    Args:
        masks: bool `[sum T]`, the completions' masks one after another.
        lengths: int32 `[N, G]`, tokens of each completion.

    Returns:
        int32 `[S, 4]`: group's row, completion, start and end, in the order of the tokens.
    """
    if masks.all():
        return no_stretches()
    flat = lengths.ravel()
    owner = np.repeat(np.arange(flat.size), flat)
    offset = np.arange(masks.size) - np.repeat(np.cumsum(flat) - flat, flat)
    out, first, last = ~masks, offset == 0, offset == flat[owner] - 1
    begins = np.flatnonzero(out & (first | ~np.roll(out, 1)))
    ends = np.flatnonzero(out & (last | ~np.roll(out, -1)))
    size = lengths.shape[1]
    columns = (owner[begins] // size, owner[begins] % size, offset[begins], offset[ends] + 1)
    return np.stack(columns, axis=1).astype(np.int32)


def to_mask(tokens: BoolArray, stretches: IntArray) -> BoolArray:
    """Return the loss mask of padded completions, bool `[N, G, T]`, False on padding.

    Args:
        tokens: bool `[N, G, T]`, True on tokens.
        stretches: as from `to_stretches`.
    """
    mask = tokens.copy()
    for row, completion, start, end in stretches.tolist():
        mask[row, completion, start:end] = False
    return mask


def stretches_by_completion(stretches: IntArray) -> dict[tuple[int, int], IntArray]:
    """Return `(row, completion) -> int32 [s, 2]`, start and end, of the completions with any."""
    rows = groupby(stretches.tolist(), key=lambda row: (row[0], row[1]))
    return {place: np.array([row[2:] for row in found], np.int32) for place, found in rows}
