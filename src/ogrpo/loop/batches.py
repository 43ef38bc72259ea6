"""Batches as an update takes them: arrays, padded or packed."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch, take
from ogrpo.core.advantages import zero_variance_mask
from ogrpo.data.cutting import cut_by_tokens, pack_cut
from ogrpo.data.packing import Shape, arrange, pack, real_tokens


class Packer(NamedTuple):
    """The layout of packed batches."""

    microbatches: int
    """Parts of the padded batch; a packed part has no more tokens, padding included, than one."""
    skip_zero_variance: bool
    """Whether updates leave groups of equal rewards out."""
    together: int = 1
    """Packed parts that are computed at a time, one on each device that a batch is cut over."""
    tokens: int | None = None
    """Tokens of a part, at most; None cuts into parts of equally many groups instead."""


class HostBatch(NamedTuple):
    """A batch in the order that its parts have, on the host, with its packing if there is one."""

    batch: Batch[np.ndarray]
    shape: Shape | None
    """None where it is padded."""
    padding: float
    """Share of the tokens computed that are padding, or a prompt computed again."""


def make_batch(batch: Batch[np.ndarray], packer: Packer | None, *, for_update: bool) -> HostBatch:
    """Packs a batch; packed groups come in the order of their parts.

    Args:
      packer: None leaves the batch padded.
      for_update: whether groups that carry no loss may be left out.
    """
    keep = np.ones(len(batch.rewards), bool)
    if packer is None:
        places = batch.prompt_mask.size + batch.completion_mask.size
        return HostBatch(batch=batch, shape=None, padding=1 - real_tokens(batch, keep) / places)
    if for_update and packer.skip_zero_variance:
        equal = np.asarray(zero_variance_mask(jnp.asarray(batch.rewards)))
        keep = ~equal & batch.active_mask.any(axis=(1, 2))
    if packer.tokens is not None:
        cut = cut_by_tokens(batch, keep, most=packer.tokens, together=packer.together)
        shape, packing = cut.shape, pack_cut(batch, cut)
    else:
        # A device's share of a padded microbatch; a certificate's batches may have other sizes.
        most = math.gcd(packer.microbatches * packer.together, len(keep))
        order, shape = arrange(batch, keep, microbatches=most, together=packer.together)
        batch, keep = take(batch, order), keep[order]
        packing = pack(batch, keep, shape)
    padding = 1 - real_tokens(batch, keep) / shape.tokens
    return HostBatch(batch._replace(packing=packing), shape, padding)


def to_device(batch: Batch[np.ndarray]) -> Batch[jax.Array]:
    """Returns the same batch as jax.Arrays."""
    return jax.tree.map(jnp.asarray, batch)
