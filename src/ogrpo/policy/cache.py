"""Keys and values of what a sampler has read and written, laid out as a step of decoding reads them.

    keys [..., K, D, S]    values [..., K, S, D]      S slots, of a prompt's tokens or a completion's

so that the products of one query with many keys find both as they need them: XLA's CPU backend
would turn the whole cache around at every step otherwise.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.policy.attention import AttentionFn, KeySegment
from ogrpo.policy.decoder import MixFn


class Slots(NamedTuple):
    """Keys and values of S tokens."""

    keys: jax.Array
    """Shape [..., K, D, S]."""
    values: jax.Array
    """Shape [..., K, S, D]."""


Cache = Any
"""`Slots` whose first axis is that of the layers, or a list of one for each (`unstack`)."""
Pairs = Any
"""Keys and values as `run_layers` returns them: a pair [L, ..., K, D], or a list of L pairs."""


def laid_out(pairs: Pairs) -> Cache:
    """The keys and values [..., S, K, D] of a prompt as a cache."""

    def one(pair: tuple[jax.Array, jax.Array]) -> Slots:
        return Slots(jnp.moveaxis(pair[0], -3, -1), jnp.swapaxes(pair[1], -3, -2))

    return [one(pair) for pair in pairs] if isinstance(pairs, list) else one(pairs)


def empty(prompt_cache: Cache, group_size: int, length: int) -> Cache:
    """A cache [L, N, G, ...] of so many slots beside that of prompts [L, N, ...]."""

    def one(prompt: Slots) -> Slots:
        *lead, heads, size, _ = prompt.keys.shape
        shape = (*lead, group_size, heads)
        zeros = partial(jnp.zeros, dtype=prompt.keys.dtype)
        return Slots(zeros((*shape, size, length)), zeros((*shape, length, size)))

    return _each(one, prompt_cache)


def nothing_new(prompt_cache: Cache, group_size: int) -> Pairs:
    """Zeros in the place of a newest token's keys and values."""

    def one(prompt: Slots) -> tuple[jax.Array, jax.Array]:
        *lead, heads, size, _ = prompt.keys.shape
        zeros = jnp.zeros((*lead, group_size, heads, size), prompt.keys.dtype)
        return zeros, zeros

    return _each(one, prompt_cache)


def append(cache: Cache, fresh: Pairs, slot: jax.Array) -> Cache:
    """Write the keys and values [..., N, G, K, D] of one token to a slot."""
    keys_at = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=-1)
    values_at = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=-2)

    def one(slots: Slots, new: tuple[jax.Array, jax.Array]) -> Slots:
        return Slots(keys_at(slots.keys, new[0]), values_at(slots.values, new[1]))

    return _each(one, cache, fresh)


def by_layer(prompt_cache: Cache, cache: Cache) -> Any:
    """What `run_layers` takes as contexts."""
    if isinstance(cache, list):
        return list(zip(prompt_cache, cache, strict=True))
    return prompt_cache, cache


def decode_mix(
    prompt_mask: jax.Array, past: jax.Array, lengths: tuple[int, ...], attention_fn: AttentionFn
) -> MixFn:
    """Attention of one token per completion: to the prompt, to `past` cached tokens, to itself.

    Of the cache, the first `lengths[i]` slots are read, the least that hold what is written.
    """
    prompt_seen = jnp.sum(prompt_mask, axis=1, dtype=jnp.int32)[:, None, None]
    seen, itself = past[None, None, None], jnp.ones((1, 1, 1), jnp.int32)

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, context: Any) -> jax.Array:
        prompt, own = context

        def over(length: int) -> jax.Array:
            written = Slots(own.keys[..., :length], own.values[..., :length, :])
            segments = [
                KeySegment(*_as_tokens(prompt), prompt_seen),
                KeySegment(*_as_tokens(written), seen),
                KeySegment(keys[:, :, None], values[:, :, None], itself),
            ]
            return attention_fn(queries[:, :, None], segments)[:, :, 0]

        longer = sum((past > length).astype(jnp.int32) for length in lengths[:-1])
        return jax.lax.switch(longer, [partial(over, length) for length in lengths])

    return mix


def doubling(least: int | None, length: int) -> tuple[int, ...]:
    """Numbers of slots to read: from `least`, each twice the one before, to all of `length`."""
    found = []
    while least is not None and least < length:
        found.append(least)
        least *= 2
    return (*found, length)


def _as_tokens(slots: Slots) -> tuple[jax.Array, jax.Array]:
    """Keys and values [..., S, K, D]."""
    return jnp.moveaxis(slots.keys, -1, -3), jnp.swapaxes(slots.values, -3, -2)


def _each(function: Callable[..., Any], *caches: Cache) -> Any:
    if isinstance(caches[0], list):
        return [function(*layer) for layer in zip(*caches, strict=True)]
    return function(*caches)
