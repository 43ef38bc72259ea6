"""Attention without scores in plain XLA: tiles of queries walk blocks of keys (Dao et al. 2022).

    forward   tile of queries -> its blocks of keys, one after the other -> merged sums -> output
    backward  the same walk; each block's weights are computed again from the row's log-sum

with, over the blocks that a tile walks, running m = max s, l = sum e^(s - m), a = sum e^(s - m) v
for scores s = q . k / sqrt(D), so that the output is a / l and lse = m + log l (arXiv:2205.14135,
algorithm 1). For a cotangent g of the output o, with p = e^(s - lse) and delta = g . o:

    dv += p g        dp = g . v        ds = p (dp - delta) / sqrt(D)        dq += ds k    dk += ds q

Which keys a query sees is a number (`KeySegment.seen`), so the blocks that a tile walks end at the
largest number among its queries: what causality or padding hides costs nothing, and a tile of
padding walks none. A tile reads keys where they lie, a shared prompt's once for all completions.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from ogrpo.kernels.varying import vary_alike
from ogrpo.policy.attention import KEPT, AttentionFn, KeySegment
from ogrpo.policy.flops import Tile, equal_parts

Tree = TypeVar("Tree")
_LOW = -1e30  # below every score; unlike -inf, its difference with itself is a number

CPU_TILE = Tile(64, 128)
"""Queries, of every head that shares a key, and keys at a time: what fits in the second-level cache
of a core, measured (`ogrpo.kernels.benchmark`)."""
DEVICE_TILE = Tile(512, 1024)
"""Of other devices, to which each step of a loop is a few kernels: unmeasured."""


def tile_for(platform: str) -> Tile:
    """Returns the sizes of a step there."""
    return CPU_TILE if platform == "cpu" else DEVICE_TILE


class _Keys(NamedTuple):
    """One segment, laid out."""

    keys: jax.Array
    """Shape [U, K, S', D], S' being a multiple of a block."""
    values: jax.Array
    """As the keys."""


AttentionGrads = tuple[jax.Array, tuple[_Keys, ...]]
"""Of the queries, and of each segment's keys and values."""


class _Sight(NamedTuple):
    """The keys of one segment that each row sees."""

    rows: jax.Array
    """Int [B]: the row of keys."""
    seen: jax.Array
    """Int [B, T']."""


class _TileSums(NamedTuple):
    """Sums of a tile over the blocks walked so far; float32."""

    peak: jax.Array
    """Shape [K, M]: m."""
    mass: jax.Array
    """Shape [K, M]: l."""
    mixed: jax.Array
    """Shape [K, M, D]: a."""


def blocked_attention(
    queries: jax.Array, segments: Sequence[KeySegment], *, tile: Tile | None = None
) -> jax.Array:
    """`attend` without its scores: the memory needed is linear in queries and in keys.

    Differentiable once, in reverse, with respect to queries, keys and values. Sums are float32 (in
    float64 for float64 inputs); with bfloat16 inputs weights and their gradients are rounded to
    bfloat16 before their products, as in `attend`. The output carries the name `attention.KEPT`,
    by which `jax.checkpoint` may keep it.

    Largest errors against float64, over the largest entry, for standard normal inputs, 1,024 keys
    and D = 64: below 1e-6 in float32 and 5e-3 in bfloat16, output and gradients, as those of
    `attend` (a test holds them).

    Args:
      queries: [N, G, T, H, D].
      segments: as `attend` has them.
      tile: sizes of a step; by default those for the backend.

    Returns:
      [N, G, T, H, D]; zeros, without a gradient, for a query that sees no key.
    """
    n, g, t, h, d = queries.shape
    kv_heads = segments[0].keys.shape[-2]
    tile = tile_for(jax.default_backend()) if tile is None else tile
    size, count = equal_parts(t, tile.queries)
    length = size * count
    grouped = queries.reshape(n * g, t, kv_heads, h // kv_heads, d).transpose(0, 2, 3, 1, 4)
    laid = [_laid_out(segment, (n, g, t), length, tile.keys) for segment in segments]
    flat = [x for keys, _ in laid for x in (keys.keys, keys.values)]
    q, *parts = vary_alike(_padded(grouped, 3, length), *flat)
    keys = tuple(_Keys(*parts[i : i + 2]) for i in range(0, len(parts), 2))
    out: Any = _attend(Tile(size, tile.keys), q, keys, tuple(sight for _, sight in laid))
    return out[:, :, :, :t].transpose(0, 3, 1, 2, 4).reshape(queries.shape)


def attention_over_mesh(
    mesh: Mesh, *, rows: tuple[str, ...], heads: str, attention_fn: AttentionFn = blocked_attention
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

        def local(queries: jax.Array, segments: list[KeySegment]) -> jax.Array:
            parts = []
            for part in segments:
                if part.rows is not None:  # counted from the device's first
                    first = lax.axis_index(rows) * part.keys.shape[0]
                    part = part._replace(rows=part.rows - first.astype(part.rows.dtype))
                parts.append(part)
            return attention_fn(queries, parts)

        spread = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(rows, None, None, by_head, None), [specs(segment) for segment in segments]),
            out_specs=P(rows, None, None, by_head, None),
            axis_names={*rows, *([heads] if divides else [])},
        )
        return spread(queries, list(segments))

    return attention


def _padded(x: jax.Array, axis: int, length: int) -> jax.Array:
    width = [(0, length - size if i == axis else 0) for i, size in enumerate(x.shape)]
    return x if x.shape[axis] == length else jnp.pad(x, width)


def _laid_out(
    segment: KeySegment, shape: tuple[int, int, int], length: int, block: int
) -> tuple[_Keys, _Sight]:
    n, g, t = shape
    size = segment.keys.shape[-3]
    by_completion = segment.keys.ndim == 5
    first = jnp.arange(n, dtype=jnp.int32) if segment.rows is None else segment.rows
    member = jnp.arange(g, dtype=jnp.int32)[None]
    shared = jnp.broadcast_to(first[:, None], (n, g))
    rows = first[:, None] * g + member if by_completion else shared

    def lay(x: jax.Array) -> jax.Array:
        flat = x.reshape(-1, *x.shape[-3:]).transpose(0, 2, 1, 3)
        return _padded(flat, 2, math.prod(equal_parts(size, block)))

    seen = jnp.minimum(jnp.broadcast_to(segment.seen, (n, g, t)), size).astype(jnp.int32)
    sight = _Sight(rows.reshape(-1), _padded(seen.reshape(-1, t), 1, length))
    return _Keys(lay(segment.keys), lay(segment.values)), sight


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(
    tile: Tile, q: jax.Array, keys: tuple[_Keys, ...], sights: tuple[_Sight, ...]
) -> jax.Array:
    """Outputs [B, K, R, T', D] of queries [B, K, R, T', D]."""
    return _forward(tile, q, keys, sights)[0]


def _forward(
    tile: Tile, q: jax.Array, keys: tuple[_Keys, ...], sights: tuple[_Sight, ...]
) -> tuple[jax.Array, tuple[Any, ...]]:
    wide = _wide(q)
    out, lse = jnp.zeros_like(q), jnp.zeros_like(q[..., 0], wide)

    def one(i: jax.Array, outs: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        at = _Place(q, tile, i)
        here = at.read(q)
        row = jnp.zeros_like(here[..., 0], wide)
        sums = _TileSums(row + _LOW, row, jnp.zeros_like(here, wide))
        for part, sight in zip(keys, sights, strict=True):
            walk = _Walk(at, part, sight, tile.keys)
            sums = walk.over(lambda block, sums: _merged(sums, here, block), sums)
        there = sums.mass > 0
        mass = jnp.where(there, sums.mass, 1)
        mixed = (sums.mixed / mass[..., None]).astype(q.dtype)
        log_sum = jnp.where(there, sums.peak + jnp.log(mass), 0)
        return at.write(outs[0], mixed), at.write(outs[1], log_sum)

    out, lse = lax.fori_loop(0, _tiles(q, tile), one, (out, lse))
    out, lse = checkpoint_name(out, KEPT), checkpoint_name(lse, KEPT)
    return out, (q, keys, sights, out, lse)


def _backward(
    tile: Tile, saved: tuple[Any, ...], cotangent: jax.Array
) -> tuple[jax.Array, tuple[_Keys, ...], None]:
    q, keys, sights, out, lse = saved
    wide = _wide(q)
    delta = jnp.sum(cotangent.astype(wide) * out.astype(wide), axis=-1)
    d_keys = jax.tree.map(lambda x: jnp.zeros_like(x, wide), keys)

    def one(i: jax.Array, grads: AttentionGrads) -> AttentionGrads:
        at = _Place(q, tile, i)
        known = _TileQueries(at.read(q), at.read(cotangent), at.read(lse), at.read(delta))
        d_here, done = jnp.zeros_like(known.q, wide), []
        for part, sight, so_far in zip(keys, sights, grads[1], strict=True):
            walk = _Walk(at, part, sight, tile.keys)
            step = partial(_pulled_back, known, walk)
            d_here, so_far = walk.over(step, (d_here, so_far))
            done.append(so_far)
        return at.write(grads[0], d_here.astype(q.dtype)), tuple(done)

    d_q, d_keys = lax.fori_loop(0, _tiles(q, tile), one, (jnp.zeros_like(q), d_keys))
    return d_q, jax.tree.map(lambda grad, x: grad.astype(x.dtype), d_keys, keys), None


_attend.defvjp(_forward, _backward)


class _TileQueries(NamedTuple):
    """A tile's queries as the backward pass needs them."""

    q: jax.Array
    """Shape [K, M, D]."""
    cotangent: jax.Array
    """Shape [K, M, D]: g."""
    lse: jax.Array
    """Shape [K, M]."""
    delta: jax.Array
    """Shape [K, M]."""


class _Block(NamedTuple):
    """A block of keys, and who sees which."""

    start: jax.Array
    keys: jax.Array
    """Shape [K, C, D]."""
    values: jax.Array
    """Shape [K, C, D]."""
    visible: jax.Array
    """Bool [1, M, C]."""


class _Place:
    """The place of tile `i` among queries [B, K, R, T', ...]; read as an array [K, M, ...]."""

    def __init__(self, q: jax.Array, tile: Tile, i: jax.Array) -> None:
        """The tiles of a row follow each other."""
        per_row = q.shape[3] // tile.queries
        self.heads, self.size = q.shape[1:3], tile.queries
        self.row, self.start = i // per_row, (i % per_row) * tile.queries

    def read(self, x: jax.Array) -> jax.Array:
        shape = (1, *self.heads, self.size, *x.shape[4:])
        part = lax.dynamic_slice(x, self._corner(x), shape)
        return part.reshape(self.heads[0], -1, *x.shape[4:])

    def write(self, x: jax.Array, part: jax.Array) -> jax.Array:
        shape = (1, *self.heads, self.size, *x.shape[4:])
        return lax.dynamic_update_slice(x, part.reshape(shape), self._corner(x))

    def _corner(self, x: jax.Array) -> tuple[jax.Array, ...]:
        zero = jnp.zeros_like(self.row)
        return (self.row, zero, zero, self.start, *(zero for _ in x.shape[4:]))


class _Walk:
    """The blocks of one segment that a tile's queries see."""

    def __init__(self, at: _Place, part: _Keys, sight: _Sight, most: int) -> None:
        """Blocks end at the last key that any of the queries sees."""
        self.part, self.row = part, sight.rows[at.row]
        self.size, _ = equal_parts(part.keys.shape[2], most)
        seen = lax.dynamic_slice(sight.seen, (at.row, at.start), (1, at.size))[0]
        self.seen = jnp.tile(seen, at.heads[1])  # the heads that share a key
        self.steps = -(-jnp.max(seen) // self.size)

    def over(self, step: Callable[[_Block, Tree], Tree], carry: Tree) -> Tree:
        def turn(c: jax.Array, carry: Tree) -> Tree:
            start = c * self.size
            place = start + jnp.arange(self.size, dtype=jnp.int32)
            visible = place[None, None, :] < self.seen[None, :, None]
            keys, values = (self.read(x, start) for x in self.part)
            return step(_Block(start, keys, values, visible), carry)

        return lax.fori_loop(0, self.steps, turn, carry)

    def read(self, x: jax.Array, start: jax.Array) -> jax.Array:
        shape = (1, x.shape[1], self.size, x.shape[3])
        return lax.dynamic_slice(x, self._corner(start), shape)[0]

    def add(self, x: jax.Array, start: jax.Array, more: jax.Array) -> jax.Array:
        there = (self.read(x, start) + more)[None]
        return lax.dynamic_update_slice(x, there, self._corner(start))

    def _corner(self, start: jax.Array) -> tuple[jax.Array, ...]:
        zero = jnp.zeros_like(start)
        return self.row, zero, start, zero


def _merged(sums: _TileSums, q: jax.Array, block: _Block) -> _TileSums:
    scores = jnp.where(block.visible, _scores(q, block.keys), _LOW)
    peak = jnp.maximum(sums.peak, jnp.max(scores, axis=-1))
    weights = jnp.where(block.visible, jnp.exp(scores - peak[..., None]), 0)
    scale = jnp.exp(sums.peak - peak)
    more = _product("kms,ksd->kmd", weights.astype(q.dtype), block.values)
    mass = sums.mass * scale + jnp.sum(weights, axis=-1)
    return _TileSums(peak, mass, sums.mixed * scale[..., None] + more)


def _pulled_back(
    known: _TileQueries, walk: _Walk, block: _Block, grads: tuple[jax.Array, _Keys]
) -> tuple[jax.Array, _Keys]:
    q, g, dtype = known.q, known.cotangent, known.q.dtype
    scores = _scores(q, block.keys)
    weights = jnp.where(block.visible, jnp.exp(scores - known.lse[..., None]), 0)
    d_weights = _product("kmd,ksd->kms", g, block.values)
    scale = q.shape[-1] ** -0.5
    d_scores = (weights * (d_weights - known.delta[..., None]) * scale).astype(dtype)
    d_q = grads[0] + _product("kms,ksd->kmd", d_scores, block.keys)
    d_keys = _product("kms,kmd->ksd", d_scores, q)
    d_values = _product("kms,kmd->ksd", weights.astype(dtype), g)
    so_far, start = grads[1], block.start
    return d_q, _Keys(
        walk.add(so_far.keys, start, d_keys), walk.add(so_far.values, start, d_values)
    )


def _scores(q: jax.Array, keys: jax.Array) -> jax.Array:
    """Shape [K, M, C]."""
    return _product("kmd,ksd->kms", q, keys) * q.shape[-1] ** -0.5


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.einsum(equation, a, b, preferred_element_type=_wide(a))


def _wide(x: jax.Array) -> jax.typing.DTypeLike:
    return jnp.float64 if x.dtype == jnp.float64 else jnp.float32


def _tiles(q: jax.Array, tile: Tile) -> jax.Array:
    return jnp.int32(q.shape[0] * (q.shape[3] // tile.queries))
