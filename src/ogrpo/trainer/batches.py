"""From stored groups to what an update takes: arrays, padded or packed."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.core.advantages import zero_variance_mask
from ogrpo.data.batching import GroupBatch
from ogrpo.data.packing import Shape, arrange, pack, real_tokens, take
from ogrpo.learner.update import Batch
from ogrpo.policy.packing import Packing


class Packer(NamedTuple):
    """How batches are packed."""

    microbatches: int
    """Parts of the padded batch, whose places bound the tokens of a packed part."""
    skip_zero_variance: bool
    """Whether updates leave groups of equal rewards out."""


class Made(NamedTuple):
    """A batch, with what it was made from in the same order."""

    batch: Batch
    groups: GroupBatch
    shape: Shape | None
    """None where it is padded."""
    padding: float
    """Share of the tokens computed that are padding."""


def make_batch(
    groups: GroupBatch, rewards: NDArray[np.float32], packer: Packer | None, *, for_update: bool
) -> Made:
    """Arrays for the policy, nothing scored yet; packed groups come in the order of their parts.

    Args:
      groups: padded groups.
      rewards: float32 [N, G].
      packer: None leaves the batch padded.
      for_update: whether groups that carry no loss may be left out.
    """
    everything = np.ones(len(rewards), bool)
    if packer is None:
        places = groups.prompt_mask.size + groups.completion_mask.size
        share = 1 - real_tokens(groups, everything) / places
        return Made(to_batch(groups, rewards), groups, None, share)
    silent = np.asarray(zero_variance_mask(jnp.asarray(rewards)))
    wanted = ~silent if for_update and packer.skip_zero_variance else everything
    order, shape = arrange(groups, wanted, microbatches=packer.microbatches)
    groups, rewards, wanted = take(groups, order), rewards[order], wanted[order]
    packing = Packing(*(jnp.asarray(array) for array in pack(groups, wanted, shape)))
    batch = to_batch(groups, rewards)._replace(packing=packing)
    return Made(batch, groups, shape, 1 - real_tokens(groups, wanted) / shape.tokens)


def to_batch(groups: GroupBatch, rewards: NDArray[np.float32]) -> Batch:
    """Arrays for the update, nothing scored yet."""
    return Batch(
        prompt_ids=jnp.asarray(groups.prompt_ids),
        prompt_mask=jnp.asarray(groups.prompt_mask),
        completion_ids=jnp.asarray(groups.completion_ids),
        completion_mask=jnp.asarray(groups.completion_mask),
        behavior_log_probs=jnp.asarray(groups.behavior_log_probs),
        rewards=jnp.asarray(rewards),
    )
