"""Keys and values of what a sampler has read and written, laid out as a decoding step reads them.

They are [..., K, D, S], for S slots of a prompt's tokens or a completion's: a query's products with
many keys find them as they need them, where XLA's CPU backend would otherwise turn the whole cache
around at every step.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from ogrpo.policy.attention import AttentionFn, KeySegment
from ogrpo.policy.decoder import MixFn

Cache = Any
"""Keys and values [L, ..., K, D, S], or a list of L such pairs without the first axis."""
Pairs = Any
"""Keys and values [L, ..., K, D] of one token a row, or a list of L pairs, as of `run_layers`."""


def laid_out(prompts: Any) -> Cache:
    """The keys and values [..., S, K, D] of prompts as a cache."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, -3, -1), prompts)


def empty(prompt_cache: Cache, group_size: int, length: int) -> Cache:
    """A cache [L, N, G, K, D, length] beside that of prompts [L, N, K, D, P]."""

    def one(prompt: jax.Array) -> jax.Array:
        shape = (*prompt.shape[:-3], group_size, *prompt.shape[-3:-1], length)
        return jnp.zeros(shape, prompt.dtype)

    return jax.tree.map(one, prompt_cache)


def append(cache: Cache, fresh: Pairs, slot: jax.Array) -> Cache:
    """Write the keys and values of one token a row to a slot."""
    write = partial(jax.lax.dynamic_update_index_in_dim, index=slot, axis=-1)
    return jax.tree.map(write, cache, fresh)


def by_layer(prompt_cache: Cache, cache: Cache) -> Any:
    """What `run_layers` takes as contexts."""
    if isinstance(cache, list):
        return list(zip(prompt_cache, cache, strict=True))
    return prompt_cache, cache


def decode_mix(
    prompt_mask: jax.Array, past: jax.Array, lengths: tuple[int, ...], attention_fn: AttentionFn
) -> MixFn:
    """Attention of one token per completion: to the prompt, to `past` cached tokens, to itself.

    Of the cache so many slots are read: the least of `lengths` that hold what is written.
    """
    prompt_seen = jnp.sum(prompt_mask, axis=1, dtype=jnp.int32)[:, None, None]
    seen, itself = past[None, None, None], jnp.ones((1, 1, 1), jnp.int32)
    which = sum((past > length).astype(jnp.int32) for length in lengths[:-1])

    def mix(queries: jax.Array, keys: jax.Array, values: jax.Array, context: Any) -> jax.Array:
        prompt, own = context
        prompt_keys, prompt_values = map(_by_token, prompt)

        def over(length: int) -> jax.Array:
            own_keys, own_values = (_by_token(x[..., :length]) for x in own)
            segments = [
                KeySegment(prompt_keys, prompt_values, prompt_seen),
                KeySegment(own_keys, own_values, seen),
                KeySegment(keys[:, :, None], values[:, :, None], itself),
            ]
            return attention_fn(queries[:, :, None], segments)[:, :, 0]

        return jax.lax.switch(which, [partial(over, length) for length in lengths])

    return mix


def _by_token(slots: jax.Array) -> jax.Array:
    """Shape [..., S, K, D]."""
    return jnp.moveaxis(slots, -1, -3)
