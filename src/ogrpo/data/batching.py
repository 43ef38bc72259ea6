"""Pads groups to arrays, and visits problems in a seeded order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ogrpo.batch import Batch
from ogrpo.protocol import BoolArray, FloatArray, Group


def pad_groups(
    groups: Sequence[Group], prompt_length: int, completion_length: int, *, rewards: FloatArray
) -> Batch[np.ndarray]:
    """Pads groups on the right to `P = prompt_length` and `T = completion_length`; cuts nothing.

    Padded places have the id 0: every consumer goes by the masks.

    Args:
      groups: `N` of them, of `G` completions each.
      rewards: float32 `[N, G]`.

    Raises:
      ValueError: no groups, groups of different sizes, a sequence longer than its axis, or
        rewards of another shape.
    """
    sizes = sorted({len(group.completions) for group in groups})
    if len(sizes) != 1:
        raise ValueError(
            f"group sizes are {sizes}; a batch needs at least one group and one size for all."
        )
    shape = (len(groups), sizes[0])
    if rewards.shape != shape:
        raise ValueError(
            f"rewards are {rewards.shape}; give {shape}, one for each completion of each group."
        )
    done = [completion for group in groups for completion in group.completions]
    prompts = np.array([len(group.prompt_ids) for group in groups])
    prompt_mask = length_mask("prompt", prompts, prompt_length)
    lengths = np.array([len(completion.token_ids) for completion in done]).reshape(shape)
    mask = length_mask("completion", lengths, completion_length)
    return Batch(
        prompt_ids=fill(prompt_mask, np.concatenate([g.prompt_ids for g in groups])),
        prompt_mask=prompt_mask,
        completion_ids=fill(mask, np.concatenate([c.token_ids for c in done])),
        completion_mask=mask,
        loss_mask=fill(mask, np.concatenate([c.carries_loss for c in done]), np.bool_),
        behavior_log_probs=fill(mask, np.concatenate([c.log_probs for c in done]), np.float32),
        rewards=rewards,
        policy_versions=np.array([c.policy_version for c in done], np.int32).reshape(shape),
    )


def length_mask(name: str, lengths: npt.NDArray[np.integer], length: int) -> BoolArray:
    """Returns the mask `[..., length]` of sequences of these `lengths`, True on tokens.

    Raises:
      ValueError: one is longer than `length`; `name` says of what ("prompt", "completion").
    """
    if lengths.max() > length:
        raise ValueError(
            f"a {name} of {lengths.max()} tokens does not fit in {name}_length {length}; "
            f"raise {name}_length, or leave it out beforehand."
        )
    return np.arange(length, dtype=np.int32) < lengths[..., None]


def fill(
    mask: BoolArray, values: npt.NDArray[Any], dtype: type[np.generic] = np.int32
) -> npt.NDArray[Any]:
    """Returns 0, and where the mask is True the `values`, in order."""
    padded = np.zeros(mask.shape, dtype)
    padded[mask] = values
    return padded


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
        """Returns the `batch_size` problem indices of a step, int64."""
        if step < 0:
            raise ValueError(f"step is {step}; steps count from 0.")
        places = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, offsets = np.divmod(places, self.n_problems)
        orders = {
            epoch: np.random.default_rng([self.seed, epoch]).permutation(self.n_problems)
            for epoch in np.unique(epochs).tolist()
        }
        pairs = zip(epochs.tolist(), offsets.tolist(), strict=True)
        return np.array([orders[epoch][offset] for epoch, offset in pairs])
