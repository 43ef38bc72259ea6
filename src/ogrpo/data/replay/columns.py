"""Judged groups as columns: flat token arrays and one row per group, no object per completion.

`Columns` is what the buffer takes in, hands out and writes to disk; `Experience` is the same thing
as objects, one group at a time. Ragged arrays are flat, in the order group, completion, token. A
loss mask is kept as the stretches of tokens that it leaves out: what a tool returned is one, and so
is a completion that carries no loss at all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.data.batching import fill, length_mask
from ogrpo.protocol import BoolArray, FinishReason, FloatArray, Group, IntArray

ANOTHER = -1
"""The version of a completion that no policy of this run drew: older than all that it publishes."""
FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
Int64Array = npt.NDArray[np.int64]
PER_GROUP = (
    *("prompt_lengths", "lengths", "policy_versions", "temperatures", "finish_reasons"),
    *("rewards", "problems"),
)
"""The columns with one row for each group."""
RARE = {"spans": 5, "without_loss": 4}
"""The columns that few groups have rows in, whose rows begin with the group's; and their widths."""
TOPS = ("top_ids", "top_log_probs")
"""The columns of what the sampler recorded of the likeliest tokens at each place, if anything."""


@dataclass(frozen=True, eq=False)
class Experience:
    """One judged whole group.

    Attributes:
      group: the prompt and its `G` completions.
      rewards: float32 `[G]`, NaN where a completion was not judged.
      problem: index of the prompt in its data set.
    """

    group: Group
    rewards: FloatArray
    problem: int

    def __post_init__(self) -> None:
        size = len(self.group.completions)
        if self.rewards.shape != (size,) or self.rewards.dtype != np.float32:
            raise ValueError(
                f"rewards are {self.rewards.dtype} {self.rewards.shape}; "
                f"give float32 [{size}], one for each completion."
            )


@dataclass(frozen=True)
class Layout:
    """The sizes and types that every group of a buffer shares.

    Attributes:
      group_size: completions of each group, `G`.
      vocab_size: token ids are below it; they are kept in the narrowest unsigned integer for it.
      top: tokens recorded at each place, `K`; 0 where none are.
      top_log_probs: whether their log-probs are recorded too.
    """

    group_size: int
    vocab_size: int
    top: int = 0
    top_log_probs: bool = False

    def __post_init__(self) -> None:
        for name in ("group_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")

    def no_tops(self, tokens: int) -> dict[str, npt.NDArray[Any]]:
        """Returns the columns of what is recorded at so many places, with nothing in them."""
        ids = np.zeros((tokens, self.top), np.min_scalar_type(self.vocab_size))
        width = self.top if self.top_log_probs else 0
        return {"top_ids": ids, "top_log_probs": np.full((tokens, width), -np.inf, np.float32)}


class Columns(NamedTuple):
    """`N` groups of `G` completions; sums run over prompts (P) and completions (T)."""

    prompt_ids: npt.NDArray[Any]
    """Narrow unsigned integers [sum P]."""
    prompt_lengths: IntArray
    """int32 [N]."""
    token_ids: npt.NDArray[Any]
    """Narrow unsigned integers [sum T]."""
    log_probs: npt.NDArray[Any]
    """float32 [sum T]."""
    lengths: IntArray
    """int32 [N, G]."""
    policy_versions: IntArray
    """int32 [N, G]."""
    temperatures: npt.NDArray[np.float64]
    """float64 [N, G]."""
    finish_reasons: npt.NDArray[np.uint8]
    """uint8 [N, G], index into FINISH_REASONS."""
    rewards: FloatArray
    """float32 [N, G]."""
    problems: Int64Array
    """int64 [N]."""
    spans: IntArray
    """int32 [M, 5]: group's row, completion, version, start, end."""
    without_loss: IntArray
    """int32 [S, 4]: group's row, completion, start, end of each stretch of tokens that the loss
    mask leaves out; none where all tokens carry loss."""
    top_ids: npt.NDArray[Any]
    """Narrow unsigned integers [sum T, K], one more than the id of each token that the sampler most
    likely drew, 0 for none; K is 0 where none were recorded."""
    top_log_probs: FloatArray
    """float32 [sum T, K], their log-probs, -inf for none; or K is 0."""

    @property
    def totals(self) -> Int64Array:
        """Completion tokens of each group, int64 `[N]`."""
        return self.lengths.sum(axis=1, dtype=np.int64)


def pack(experiences: Sequence[Experience], layout: Layout) -> Columns:
    """Turns groups into columns.

    Raises:
      ValueError: a group of another size, an id outside the vocabulary, a value that is not
        finite, a version below -1, a negative problem.
    """
    for n, one in enumerate(experiences):
        if (size := len(one.group.completions)) != layout.group_size:
            raise ValueError(
                f"group {n} (problem {one.problem}) has {size} completions, the buffer's "
                f"groups have {layout.group_size}: give whole groups of one size."
            )
        for completion in one.group.completions if layout.top else ():
            ids = completion.top_ids
            if ids is None or ids.shape != (len(completion.token_ids), layout.top):
                raise ValueError(
                    f"group {n} (problem {one.problem}) has a completion with"
                    f" {'no tokens' if ids is None else list(ids.shape)} recorded at its places,"
                    f" and the buffer takes {layout.top} at each: have the engine record as many."
                )

    def flat(arrays: Iterable[npt.NDArray[Any]], dtype: type[np.generic]) -> npt.NDArray[Any]:
        return np.concatenate([np.zeros(0, dtype), *arrays])

    groups = [one.group for one in experiences]
    done = [completion for group in groups for completion in group.completions]
    shape = (len(groups), layout.group_size)
    lengths = np.array([len(c.token_ids) for c in done], np.int32).reshape(shape)
    spans = [
        (n, g, span.version, span.start, span.end)
        for n, group in enumerate(groups)
        for g, completion in enumerate(group.completions)
        for span in completion.version_spans
    ]
    reasons = [FINISH_REASONS.index(completion.finish_reason) for completion in done]
    tops = layout.no_tops(int(lengths.sum()))
    for name, column in tops.items():
        if column.shape[1]:
            rows = [getattr(completion, name) for completion in done]
            tops[name] = np.concatenate([column[:0], *rows]) + int(name == "top_ids")
    columns = Columns(
        prompt_ids=flat((g.prompt_ids for g in groups), np.int32),
        prompt_lengths=np.array([len(g.prompt_ids) for g in groups], np.int32),
        token_ids=flat((c.token_ids for c in done), np.int32),
        log_probs=flat((c.log_probs for c in done), np.float32),
        lengths=lengths,
        policy_versions=np.array([c.policy_version for c in done], np.int32).reshape(shape),
        temperatures=np.array([c.temperature for c in done], np.float64).reshape(shape),
        finish_reasons=np.array(reasons, np.uint8).reshape(shape),
        rewards=flat((one.rewards for one in experiences), np.float32).reshape(shape),
        problems=np.array([one.problem for one in experiences], np.int64),
        spans=np.array(spans, np.int32).reshape(-1, 5),
        without_loss=np.zeros((0, 4), np.int32)
        if all(c.loss_mask is None for c in done)
        else to_stretches(flat((c.carries_loss for c in done), np.bool_), lengths),
        **tops,
    )
    return narrow(columns, layout)


def narrow(columns: Columns, layout: Layout) -> Columns:
    """Checks columns and casts ids to the layout's type.

    Raises:
      ValueError: an id outside the vocabulary, a log-prob that is not finite, an infinite reward,
        a version below -1, a negative problem.
    """
    for name, beyond in (("prompt_ids", 0), ("token_ids", 0), ("top_ids", 1)):  # the last from 1
        ids = getattr(columns, name)
        least, most = ids.min(initial=0), ids.max(initial=0)
        if least < 0 or most >= layout.vocab_size + beyond:
            raise ValueError(
                f"{name} go from {least - beyond} to {most - beyond}; the layout has vocab_size"
                f" {layout.vocab_size}: give ids from 0 to {layout.vocab_size - 1}, or the model's"
                " padded vocabulary size."
            )
    for name, lowest in (("policy_versions", ANOTHER), ("problems", 0)):
        if (least := getattr(columns, name).min(initial=0)) < lowest:
            raise ValueError(f"{name} go down to {least}; they count from {lowest}.")
    log_probs = columns.log_probs.astype(np.float32)
    judged = columns.rewards[~np.isnan(columns.rewards)]
    for name, values in (("log_probs", log_probs), ("rewards", judged)):
        if not np.isfinite(values).all():
            wrong = values[~np.isfinite(values)][0]
            raise ValueError(f"{name} hold {wrong} as {values.dtype}; give finite values.")
    narrowest = np.min_scalar_type(layout.vocab_size - 1)  # uint16 up to 65,536 tokens
    return columns._replace(
        prompt_ids=columns.prompt_ids.astype(narrowest),
        token_ids=columns.token_ids.astype(narrowest),
        log_probs=log_probs,
        rewards=columns.rewards.astype(np.float32),
        top_ids=columns.top_ids.astype(np.min_scalar_type(layout.vocab_size)),
    )


def pad(columns: Columns, prompt_length: int, completion_length: int) -> Batch[np.ndarray]:
    """Pads to `P = prompt_length` and `T = completion_length` as `pad_groups` does; cuts nothing.

    Raises:
      ValueError: a sequence is longer than its axis.
    """
    prompt_mask = length_mask("prompt", columns.prompt_lengths, prompt_length)
    mask = length_mask("completion", columns.lengths, completion_length)
    tops = {}
    for name, none in (("top_ids", 0), ("top_log_probs", -np.inf)):
        column = getattr(columns, name)
        if column.shape[1]:
            kind = np.int32 if none == 0 else np.float32
            tops[name] = np.full((*mask.shape, column.shape[1]), none, kind)
            tops[name][mask] = column
    if "top_ids" in tops:
        tops["top_ids"] -= 1
    return Batch(
        prompt_ids=fill(prompt_mask, columns.prompt_ids),
        prompt_mask=prompt_mask,
        completion_ids=fill(mask, columns.token_ids),
        completion_mask=mask,
        loss_mask=to_mask(mask, columns.without_loss),
        behavior_log_probs=fill(mask, columns.log_probs, np.float32),
        rewards=columns.rewards,
        policy_versions=columns.policy_versions,
        **tops,
    )


def keep(columns: Columns, groups: BoolArray) -> Columns:
    """Returns the groups whose entry in `groups`, bool `[N]`, is True."""
    if groups.all():
        return columns
    tokens = np.repeat(groups, columns.totals)
    kept = {name: getattr(columns, name)[groups] for name in PER_GROUP}
    for name in RARE:
        table = getattr(columns, name)
        rows = table[groups[table[:, 0]]].copy()
        rows[:, 0] = (np.cumsum(groups) - 1)[rows[:, 0]]
        kept[name] = rows
    return Columns(
        **kept,
        prompt_ids=columns.prompt_ids[np.repeat(groups, columns.prompt_lengths)],
        token_ids=columns.token_ids[tokens],
        log_probs=columns.log_probs[tokens],
        **{name: getattr(columns, name)[tokens] for name in TOPS},
    )


def join(parts: Sequence[Columns]) -> Columns:
    """Returns the groups of several columns, one after another."""
    before = np.cumsum([0, *(len(part.problems) for part in parts)])
    joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in Columns._fields}
    for name in RARE:
        joined[name][:, 0] += np.repeat(before[:-1], [len(getattr(p, name)) for p in parts])
    return Columns(**joined)


def split(columns: Columns) -> list[Columns]:
    """Inverts `join`: returns copies of the groups, each by itself."""
    count = len(columns.problems)
    tokens = np.cumsum(columns.totals)[:-1]
    ends = {"prompt_ids": np.cumsum(columns.prompt_lengths)[:-1], "token_ids": tokens}
    ends |= {"log_probs": tokens, **dict.fromkeys(TOPS, tokens)}
    ends |= {name: np.searchsorted(getattr(columns, name)[:, 0], range(1, count)) for name in RARE}
    pieces = (
        np.split(values, ends.get(name, range(1, count)))
        for name, values in columns._asdict().items()
    )
    groups = [Columns(*(array.copy() for array in parts)) for parts in zip(*pieces, strict=True)]
    for group in groups:
        for name in RARE:
            getattr(group, name)[:, 0] = 0
    return groups


def to_stretches(masks: BoolArray, lengths: IntArray) -> IntArray:
    """Returns the stretches of tokens on which loss masks are False, as `Columns.without_loss`.

    Args:
      masks: bool `[sum T]`, the completions' masks one after another.
      lengths: int32 `[N, G]`, tokens of each completion.
    """
    if masks.all():
        return np.zeros((0, 4), np.int32)
    flat, size = lengths.ravel(), lengths.shape[1]
    owner = np.repeat(np.arange(flat.size), flat)
    offset = np.arange(masks.size) - np.repeat(np.cumsum(flat) - flat, flat)
    out, first, last = ~masks, offset == 0, offset == flat[owner] - 1
    begins = np.flatnonzero(out & (first | ~np.roll(out, 1)))
    ends = np.flatnonzero(out & (last | ~np.roll(out, -1)))
    columns = (owner[begins] // size, owner[begins] % size, offset[begins], offset[ends] + 1)
    return np.stack(columns, axis=1).astype(np.int32)


def to_mask(tokens: BoolArray, stretches: IntArray) -> BoolArray:
    """Returns the loss mask of padded completions, bool `[N, G, T]`, False on padding.

    Args:
      tokens: bool `[N, G, T]`, True on tokens.
      stretches: as from `to_stretches`.
    """
    mask = tokens.copy()
    for row, completion, start, end in stretches.tolist():
        mask[row, completion, start:end] = False
    return mask
