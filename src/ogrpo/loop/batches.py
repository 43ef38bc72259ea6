"""From stored groups to what an update takes: arrays, padded or packed."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch, take
from ogrpo.core.advantages import zero_variance_mask
from ogrpo.data.cutting import cut_by_tokens, pack_cut
from ogrpo.data.packing import Shape, arrange, pack, real_tokens


class Packer(NamedTuple):
    """How batches are packed."""

    microbatches: int
    """Parts of the padded batch, whose places bound the tokens of a packed part."""
    skip_zero_variance: bool
    """Whether updates leave groups of equal rewards out."""
    together: int = 1
    """Packed parts that are computed at a time, one on each device that a batch is cut over."""
    tokens: int | None = None
    """Tokens of a part, at most: groups are cut by them, and not in parts of equally many."""


class Made(NamedTuple):
    """A batch in the order that its parts have, on the host, with its packing if there is one."""

    batch: Batch[np.ndarray]
    shape: Shape | None
    """None where it is padded."""
    padding: float
    """Share of the tokens computed that are padding, or a prompt computed again."""


def make_batch(batch: Batch[np.ndarray], packer: Packer | None, *, for_update: bool) -> Made:
    """The batch as the policy takes it; packed groups come in the order of their parts.

    Args:
        batch: padded groups.
        packer: None leaves the batch padded.
        for_update: whether groups that carry no loss may be left out.
    """
    everything = np.ones(len(batch.rewards), bool)
    if packer is None:
        places = batch.prompt_mask.size + batch.completion_mask.size
        return Made(batch=batch, shape=None, padding=1 - real_tokens(batch, everything) / places)
    leaves_out = for_update and packer.skip_zero_variance
    wanted = _carrying(batch) if leaves_out else everything
    together = packer.together
    if packer.tokens is not None:
        cut = cut_by_tokens(batch, wanted, most=packer.tokens, together=together)
        return _made(batch._replace(packing=pack_cut(batch, cut)), wanted, cut.shape)
    bound = packer.microbatches * together  # a device's share of a padded microbatch
    order, shape = arrange(batch, wanted, microbatches=bound, together=together)
    batch, wanted = take(batch, order), wanted[order]
    return _made(batch._replace(packing=pack(batch, wanted, shape)), wanted, shape)


def _made(batch: Batch[np.ndarray], wanted: np.ndarray, shape: Shape) -> Made:
    return Made(batch, shape, padding=1 - real_tokens(batch, wanted) / shape.tokens)


def _carrying(batch: Batch[np.ndarray]) -> np.ndarray:
    """Groups whose rewards differ and that have a token with loss, bool [N]."""
    silent = np.asarray(zero_variance_mask(jnp.asarray(batch.rewards)))
    return ~silent & batch.active_mask.any(axis=(1, 2))


def to_device(batch: Batch[np.ndarray]) -> Batch[jax.Array]:
    """The same batch as jax.Arrays."""
    return jax.tree.map(jnp.asarray, batch)
