"""Attention over a mesh: each device walks the blocks of its own rows and heads."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.attention.blocked import blocked_attention
from ogrpo.policy.attention import AttentionFn, KeySegment


class _Cut(NamedTuple):
    """The mesh axes of rows N, and those of heads."""

    rows: tuple[str, ...]
    heads: str | None

    def along(self, heads: int, ndim: int) -> P:
        """Of an array with rows first and heads at the place given, counted from the end."""
        spec: list[tuple[str, ...] | str | None] = [None] * ndim
        spec[0], spec[ndim - heads] = self.rows, self.heads
        return P(*spec)


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
        cut = _Cut(rows, heads if divides else None)
        spread = jax.shard_map(
            lambda q, parts: attention_fn(q, [_local(part, rows) for part in parts]),
            mesh=mesh,
            in_specs=(cut.along(2, 5), [_specs(segment, cut) for segment in segments]),
            out_specs=cut.along(2, 5),
            axis_names={*rows, *([heads] if divides else [])},
        )
        return spread(queries, list(segments))

    return attention


def _specs(segment: KeySegment, cut: _Cut) -> KeySegment:
    keys = cut.along(2, segment.keys.ndim)
    seen = P(cut.rows) if segment.seen.shape[0] > 1 else P()
    return KeySegment(keys, keys, seen, None if segment.rows is None else P(cut.rows))  # type: ignore[arg-type]


def _local(segment: KeySegment, axes: tuple[str, ...]) -> KeySegment:
    """Rows of keys counted from the device's first."""
    if segment.rows is None:
        return segment
    first = lax.axis_index(axes) * segment.keys.shape[0]
    return segment._replace(rows=segment.rows - first.astype(segment.rows.dtype))
