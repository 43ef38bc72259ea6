"""Judged groups as columns: flat token arrays and one row per group, no object per completion.

`Columns` is what the buffer takes in, hands out and writes to disk; `Experience` is the same thing
as objects, one group at a time. Ragged arrays are flat, in the order group, completion, token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.data.replay.stretches import no_stretches, stretches_by_completion, to_mask, to_stretches
from ogrpo.protocol import (
    BoolArray,
    Completion,
    FinishReason,
    FloatArray,
    Group,
    IntArray,
    VersionSpan,
)

FINISH_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)
Int64Array = npt.NDArray[np.int64]
BY_ROW = ("spans", "without_loss")
"""The columns whose rows begin with the number of a group's row."""


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
    """What every group of a buffer has in common.

    Attributes:
        group_size: completions of each group, `G`.
        vocab_size: token ids are below it; they are kept in the narrowest unsigned integer for it.
        log_prob_dtype: float32 keeps behaviour log-probs as they came; float16 halves them and
            rounds each by at most 2^-11 of its size.
    """

    group_size: int
    vocab_size: int
    log_prob_dtype: type[np.float16] | type[np.float32] = np.float32

    def __post_init__(self) -> None:
        for name in ("group_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")
        if self.log_prob_dtype not in (np.float16, np.float32):
            raise ValueError(
                f"log_prob_dtype is {self.log_prob_dtype}; give np.float16 or np.float32."
            )

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The narrowest unsigned integer for the vocabulary: uint16 up to 65,536 tokens."""
        return np.min_scalar_type(self.vocab_size - 1)


class Columns(NamedTuple):
    """`N` groups of `G` completions; sums run over prompts (P) and completions (T)."""

    prompt_ids: npt.NDArray[Any]
    """Narrow unsigned integers [sum P]."""
    prompt_lengths: IntArray
    """int32 [N]."""
    token_ids: npt.NDArray[Any]
    """Narrow unsigned integers [sum T]."""
    log_probs: npt.NDArray[Any]
    """float16 or float32 [sum T]."""
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

    @property
    def totals(self) -> Int64Array:
        """Completion tokens of each group, int64 `[N]`."""
        return self.lengths.sum(axis=1, dtype=np.int64)


def pack(experiences: Sequence[Experience], layout: Layout) -> Columns:
    """Turn groups into columns.

    Raises:
        ValueError: a group of another size, an id outside the vocabulary, a value that is not
            finite (or not in float16), a negative version or problem.
    """
    _check_sizes(experiences, layout)
    groups = [experience.group for experience in experiences]
    done = [completion for group in groups for completion in group.completions]
    shape = (len(groups), layout.group_size)
    columns = Columns(
        prompt_ids=_concatenate([g.prompt_ids for g in groups], np.int32),
        prompt_lengths=np.array([len(g.prompt_ids) for g in groups], np.int32),
        token_ids=_concatenate([c.token_ids for c in done], np.int32),
        log_probs=_concatenate([c.log_probs for c in done], np.float32),
        lengths=np.array([len(c.token_ids) for c in done], np.int32).reshape(shape),
        policy_versions=np.array([c.policy_version for c in done], np.int32).reshape(shape),
        temperatures=np.array([c.temperature for c in done], np.float64).reshape(shape),
        finish_reasons=_codes([c.finish_reason for c in done]).reshape(shape),
        rewards=_concatenate([e.rewards for e in experiences], np.float32).reshape(shape),
        problems=np.array([e.problem for e in experiences], np.int64),
        spans=_spans(groups),
        without_loss=_without_loss(done, layout.group_size),
    )
    return narrow(columns, layout)


def pack_batch(
    batch: Batch[np.ndarray],
    layout: Layout,
    *,
    problems: Int64Array,
    temperatures: npt.NDArray[np.float64],
    finish_reasons: npt.NDArray[np.uint8],
) -> Columns:
    """Turn a padded batch into columns without an object per completion; see `Columns` for shapes.

    Raises:
        ValueError: as for `pack`, or an array of another shape.
    """
    shape, mask = batch.policy_versions.shape, batch.completion_mask
    given = {"temperatures": temperatures, "finish_reasons": finish_reasons}
    for name, value in {**given, "rewards": batch.rewards}.items():
        _check_shape(name, value, shape)
    _check_shape("problems", problems, shape[:1])
    _check_shape("policy_versions", batch.policy_versions, (shape[0], layout.group_size))
    columns = Columns(
        prompt_ids=batch.prompt_ids[batch.prompt_mask],
        prompt_lengths=batch.prompt_mask.sum(axis=-1, dtype=np.int32),
        token_ids=batch.completion_ids[mask],
        log_probs=batch.behavior_log_probs[mask],
        lengths=(lengths := mask.sum(axis=-1, dtype=np.int32)),
        policy_versions=batch.policy_versions,
        temperatures=temperatures,
        finish_reasons=finish_reasons,
        rewards=batch.rewards,
        problems=problems,
        spans=np.zeros((0, 5), np.int32),
        without_loss=to_stretches(batch.loss_mask[mask], lengths),
    )
    return narrow(columns, layout)


def unpack(columns: Columns) -> list[Experience]:
    """Turn columns back into groups; ids and log-probs are widened to int32 and float32."""
    spans = _spans_by_completion(columns.spans)
    without_loss = stretches_by_completion(columns.without_loss)
    prompts = np.split(columns.prompt_ids.astype(np.int32), _ends(columns.prompt_lengths))
    tokens = np.split(columns.token_ids.astype(np.int32), _ends(columns.lengths))
    log_probs = np.split(columns.log_probs.astype(np.float32), _ends(columns.lengths))
    size = columns.lengths.shape[1]

    def completion(n: int, g: int) -> Completion:
        return Completion(
            token_ids=tokens[n * size + g],
            log_probs=log_probs[n * size + g],
            policy_version=int(columns.policy_versions[n, g]),
            temperature=float(columns.temperatures[n, g]),
            finish_reason=FINISH_REASONS[columns.finish_reasons[n, g]],
            version_spans=spans.get((n, g), ()),
            loss_mask=_loss_mask(int(columns.lengths[n, g]), without_loss.get((n, g))),
        )

    return [
        Experience(
            group=Group(
                prompt_ids=prompts[n], completions=tuple(completion(n, g) for g in range(size))
            ),
            rewards=columns.rewards[n].copy(),
            problem=int(columns.problems[n]),
        )
        for n in range(len(columns.problems))
    ]


def pad(
    columns: Columns, prompt_length: int, completion_length: int, *, pad_id: int = 0
) -> Batch[np.ndarray]:
    """Pad to `P = prompt_length` and `T = completion_length` as `pad_groups` does; nothing is cut.

    Raises:
        ValueError: a sequence is longer than its axis.
    """
    prompt_mask = _mask("prompt", columns.prompt_lengths, prompt_length)
    mask = _mask("completion", columns.lengths, completion_length)
    return Batch(
        prompt_ids=_fill(prompt_mask, columns.prompt_ids, pad_id, np.int32),
        prompt_mask=prompt_mask,
        completion_ids=_fill(mask, columns.token_ids, pad_id, np.int32),
        completion_mask=mask,
        loss_mask=to_mask(mask, columns.without_loss),
        behavior_log_probs=_fill(mask, columns.log_probs, 0, np.float32),
        rewards=columns.rewards,
        policy_versions=columns.policy_versions,
    )


def keep(columns: Columns, chosen: BoolArray) -> Columns:
    """Return the groups whose entry in `chosen`, bool `[N]`, is True."""
    if chosen.all():
        return columns
    tokens = np.repeat(chosen, columns.totals)
    prompts = np.repeat(chosen, columns.prompt_lengths)
    ragged = {
        "prompt_ids": columns.prompt_ids[prompts],
        "token_ids": columns.token_ids[tokens],
        "log_probs": columns.log_probs[tokens],
        **{name: _kept_rows(getattr(columns, name), chosen) for name in BY_ROW},
    }
    rows = {name: value[chosen] for name, value in _others(columns, ragged)}
    return Columns(**ragged, **rows)


def join(parts: Sequence[Columns]) -> Columns:
    """Put groups one after another."""
    before = np.cumsum([0, *(len(part.problems) for part in parts)])
    joined = {name: np.concatenate([getattr(p, name) for p in parts]) for name in Columns._fields}
    for name in BY_ROW:
        joined[name][:, 0] += np.repeat(before[:-1], [len(getattr(p, name)) for p in parts])
    return Columns(**joined)


def narrow(columns: Columns, layout: Layout) -> Columns:
    """Check what was given and cast ids and log-probs to what the layout keeps.

    Raises:
        ValueError: an id outside the vocabulary, a log-prob that is not finite, an infinite reward,
            a negative version.
    """
    for name in ("prompt_ids", "token_ids"):
        _check_ids(name, getattr(columns, name), layout.vocab_size)
    for name in ("policy_versions", "problems"):
        _check_least(name, getattr(columns, name))
    with np.errstate(over="ignore"):  # what overflows float16 is refused on the next line
        log_probs = columns.log_probs.astype(layout.log_prob_dtype)
    _check_finite("log_probs", log_probs)
    _check_finite("rewards", columns.rewards[~np.isnan(columns.rewards)])  # NaN: not judged
    return columns._replace(
        prompt_ids=columns.prompt_ids.astype(layout.id_dtype),
        token_ids=columns.token_ids.astype(layout.id_dtype),
        log_probs=log_probs,
        rewards=columns.rewards.astype(np.float32),
    )


def _check_sizes(experiences: Sequence[Experience], layout: Layout) -> None:
    for n, experience in enumerate(experiences):
        size = len(experience.group.completions)
        if size != layout.group_size:
            raise ValueError(
                f"group {n} (problem {experience.problem}) has {size} completions, the buffer's "
                f"groups have {layout.group_size}: give whole groups of one size."
            )


def _check_shape(name: str, value: npt.NDArray[Any], shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise ValueError(f"{name} is {value.shape}; give {shape}.")


def _check_ids(name: str, ids: npt.NDArray[Any], vocab_size: int) -> None:
    least, most = ids.min(initial=0), ids.max(initial=0)
    if least < 0 or most >= vocab_size:
        raise ValueError(
            f"{name} go from {least} to {most}; the layout has vocab_size {vocab_size}: "
            f"give ids from 0 to {vocab_size - 1}, or the model's padded vocabulary size."
        )


def _check_least(name: str, values: npt.NDArray[Any]) -> None:
    if len(values) and values.min() < 0:
        raise ValueError(f"{name} go down to {values.min()}; they count from 0.")


def _check_finite(name: str, values: npt.NDArray[Any]) -> None:
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        raise ValueError(f"{name} hold {wrong} as {values.dtype}; give finite values.")


def _concatenate(arrays: Sequence[npt.NDArray[Any]], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if len(arrays) else np.zeros(0, dtype)


def _codes(reasons: Sequence[FinishReason]) -> npt.NDArray[np.uint8]:
    code = {reason: n for n, reason in enumerate(FINISH_REASONS)}
    return np.array([code[reason] for reason in reasons], np.uint8)


def _spans(groups: Sequence[Group]) -> IntArray:
    rows = [
        (n, g, span.version, span.start, span.end)
        for n, group in enumerate(groups)
        for g, completion in enumerate(group.completions)
        for span in completion.version_spans
    ]
    return np.array(rows, np.int32).reshape(-1, 5)


def _spans_by_completion(spans: IntArray) -> dict[tuple[int, int], tuple[VersionSpan, ...]]:
    found: dict[tuple[int, int], tuple[VersionSpan, ...]] = {}
    for n, g, version, start, end in spans.tolist():
        found[n, g] = (*found.get((n, g), ()), VersionSpan(version, start, end))
    return found


def _without_loss(completions: Sequence[Completion], group_size: int) -> IntArray:
    if all(c.loss_mask is None for c in completions):
        return no_stretches()
    lengths = np.array([len(c.token_ids) for c in completions], np.int32)
    masks = np.concatenate([c.carries_loss for c in completions])
    return to_stretches(masks, lengths.reshape(-1, group_size))


def _loss_mask(length: int, without_loss: IntArray | None) -> BoolArray | None:
    """The loss mask of one completion from its stretches `[s, 2]`; None where there are none."""
    if without_loss is None:
        return None
    mask = np.ones(length, np.bool_)
    for start, end in without_loss.tolist():
        mask[start:end] = False
    return mask


def _kept_rows(table: IntArray, chosen: BoolArray) -> IntArray:
    """The rows of the groups that are chosen, whose numbers are those that they will have."""
    kept = table[chosen[table[:, 0]]].copy()
    kept[:, 0] = (np.cumsum(chosen) - 1)[kept[:, 0]]
    return kept


def _ends(lengths: IntArray) -> Int64Array:
    return np.cumsum(lengths, dtype=np.int64)[:-1]


def _mask(name: str, lengths: IntArray, length: int) -> BoolArray:
    if lengths.max() > length:
        raise ValueError(
            f"a {name} of {lengths.max()} tokens does not fit in {name}_length {length}; "
            f"raise {name}_length, or leave it out before inserting."
        )
    return np.arange(length, dtype=np.int32) < lengths[..., None]


def _fill(mask: BoolArray, values: npt.NDArray[Any], padding: int, dtype: type) -> npt.NDArray[Any]:
    padded = np.full(mask.shape, padding, dtype)
    padded[mask] = values
    return padded


def _others(columns: Columns, done: Iterable[str]) -> list[tuple[str, npt.NDArray[Any]]]:
    return [(name, value) for name, value in columns._asdict().items() if name not in done]
