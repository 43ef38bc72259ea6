"""Attention over a mesh: each device walks the blocks of its own rows and heads."""

from collections.abc import Sequence

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.attention.blocked import blocked_attention
from ogrpo.policy.attention import AttentionFn, KeySegment


def attention_over_mesh(
    mesh: Mesh,
    *,
    rows: tuple[str, ...],
    heads: str,
    attention_fn: AttentionFn = blocked_attention,
) -> AttentionFn:
    """An attention whose loops stay on one device: XLA would gather what they take slices of.

    Args:
      mesh: of the arguments.
      rows: axes that N, and the rows of keys with it, are cut over; their product divides both.
      heads: axis that the heads of keys are cut over where it divides them, and else not.
      attention_fn: what each device computes with; it sees only rows and heads of its own.
    """

    def attention(queries: jax.Array, segments: Sequence[KeySegment]) -> jax.Array:
        divides = segments[0].keys.shape[-2] % mesh.shape[heads] == 0
        by_head = heads if divides else None

        def specs(segment: KeySegment) -> KeySegment:
            keys = P(rows, *[None] * (segment.keys.ndim - 3), by_head, None)
            seen = P(rows) if segment.seen.shape[0] > 1 else P()
            return KeySegment(keys, keys, seen, None if segment.rows is None else P(rows))  # type: ignore[arg-type]

        spread = jax.shard_map(
            lambda q, parts: attention_fn(q, [_local(part, rows) for part in parts]),
            mesh=mesh,
            in_specs=(P(rows, None, None, by_head, None), [specs(segment) for segment in segments]),
            out_specs=P(rows, None, None, by_head, None),
            axis_names={*rows, *([heads] if divides else [])},
        )
        return spread(queries, list(segments))

    return attention


def _local(segment: KeySegment, axes: tuple[str, ...]) -> KeySegment:
    """Rows of keys counted from the device's first."""
    if segment.rows is None:
        return segment
    first = lax.axis_index(axes) * segment.keys.shape[0]
    return segment._replace(rows=segment.rows - first.astype(segment.rows.dtype))
