"""Log-probs with the vocabulary cut over a mesh axis."""

from functools import partial

import jax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.log_probs.chunked import KEPT_BYTES, WIDTH, chunked_log_probs
from ogrpo.policy.head import HeadFn


def log_probs_over_mesh(
    mesh: Mesh,
    *,
    vocabulary: str,
    rows: str | tuple[str, ...] = (),
    width: int = WIDTH,
    kept_bytes: int = KEPT_BYTES,
    block: int | None = None,
) -> HeadFn:
    """`chunked_log_probs`, each device with its slice of the embedding and its share of the rows.

    No device holds more of the embedding, or of its gradient, than its slice. Left to itself, XLA
    would gather the embedding, since a sweep takes slices of it at traced places.

    Args:
      mesh: of the arguments.
      vocabulary: axis that V is cut over, which must divide it.
      rows: axes that M is cut over, whose product must divide it; none by default.
      width: tokens of a device's share of the vocabulary at a time.
      kept_bytes: for logits on each device, as `chunked_log_probs` has it.
      block: of a device's rows at a time, as there.
    """
    by_row = P(rows or None)
    return jax.shard_map(
        partial(
            chunked_log_probs,
            width=width,
            kept_bytes=kept_bytes,
            block=block,
            axis_name=vocabulary,
        ),
        mesh=mesh,
        in_specs=(by_row, P(vocabulary), by_row, P()),
        out_specs=by_row,
    )
