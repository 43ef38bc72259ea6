"""From groups to right-padded arrays, and the order in which prompts are visited."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.protocol import BoolArray, Completion, FloatArray, Group, IntArray


def fits(prompt: Sequence[int] | IntArray, prompt_length: int) -> bool:
    """Tell whether a prompt of token ids fits: filter (and count) with this before generating."""
    return len(prompt) <= prompt_length


def pad_groups(
    groups: Sequence[Group],
    prompt_length: int,
    completion_length: int,
    *,
    rewards: FloatArray,
    pad_id: int = 0,
) -> Batch[np.ndarray]:
    """Pad groups to `P = prompt_length` and `T = completion_length`; nothing is cut.

    Args:
        groups: `N` of them, of `G` completions each.
        prompt_length: `P`.
        completion_length: `T`.
        rewards: float32 `[N, G]`.
        pad_id: fills the ids of padded places; every consumer goes by the masks.

    Raises:
        ValueError: no groups, groups of different sizes, a sequence longer than its axis, or
            rewards of another shape.
    """
    size = _common_group_size(groups)
    completions = [completion for group in groups for completion in group.completions]
    prompt_ids, prompt_mask = _pad("prompt", [g.prompt_ids for g in groups], prompt_length, pad_id)
    ids, mask = _pad("completion", [c.token_ids for c in completions], completion_length, pad_id)
    shape = (len(groups), size, completion_length)
    if rewards.shape != shape[:2]:
        raise ValueError(
            f"rewards are {rewards.shape}; give {shape[:2]}, one for each completion of each group."
        )
    return Batch(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        completion_ids=ids.reshape(shape),
        completion_mask=mask.reshape(shape),
        loss_mask=_scatter([c.carries_loss for c in completions], mask, np.bool_).reshape(shape),
        behavior_log_probs=_scatter([c.log_probs for c in completions], mask, np.float32).reshape(
            shape
        ),
        rewards=rewards,
        policy_versions=_versions(completions).reshape(shape[:2]),
    )


def _common_group_size(groups: Sequence[Group]) -> int:
    sizes = sorted({len(group.completions) for group in groups})
    if len(sizes) != 1:
        raise ValueError(
            f"group sizes are {sizes}; a batch needs at least one group and one size for all."
        )
    return sizes[0]


def _pad(
    name: str, rows: Sequence[IntArray], length: int, pad_id: int
) -> tuple[IntArray, BoolArray]:
    sizes = np.array([len(row) for row in rows])
    if sizes.max() > length:
        raise ValueError(
            f"a {name} of {sizes.max()} tokens does not fit in {name}_length {length}; "
            f"raise {name}_length, or leave it out beforehand."
        )
    mask = np.arange(length) < sizes[:, None]
    ids = np.full(mask.shape, pad_id, np.int32)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def _scatter(
    rows: Sequence[npt.NDArray[Any]], mask: BoolArray, dtype: type[np.generic]
) -> npt.NDArray[Any]:
    values = np.zeros(mask.shape, dtype)
    values[mask] = np.concatenate(rows)
    return values


def _versions(completions: Sequence[Completion]) -> IntArray:
    return np.array([completion.policy_version for completion in completions], np.int32)


@dataclass(frozen=True)
class PromptStream:
    """Endless epochs over `n_problems`, each a fresh seeded permutation, addressed by step.

    Step `s` visits places `s * batch_size` to `(s + 1) * batch_size` of the endless sequence, so
    resuming needs the step number and nothing else. A batch may straddle two epochs; then a problem
    can stand in it twice.
    """

    n_problems: int
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        for name in ("n_problems", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")

    def indices(self, step: int) -> npt.NDArray[np.int64]:
        """Return the `batch_size` problem indices of a step, int64."""
        if step < 0:
            raise ValueError(f"step is {step}; steps count from 0.")
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(places, self.n_problems)
        order = {epoch: self._epoch(epoch) for epoch in np.unique(epochs).tolist()}
        return np.array(
            [order[epoch][offset] for epoch, offset in zip(epochs, offsets, strict=True)]
        )

    def _epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_problems)
