"""A value head: V of each state, linear in the decoder's last hidden state."""

from typing import Any

import jax
import jax.numpy as jnp

from ogrpo.batch import VALUE_HEAD

Params = dict[str, Any]


def with_value_head(params: Params) -> Params:
    """The parameters with a value head beside them, which begins at V = 0."""
    width = params["norm"]["weight"].shape[-1]
    head = {"weight": jnp.zeros(width), "bias": jnp.zeros(())}
    return {**params, VALUE_HEAD: head}


def apart(params: Params) -> tuple[Params, Params | None]:
    """A decoder's parameters, and its value head if it has one."""
    if VALUE_HEAD not in params:
        return params, None
    return {name: part for name, part in params.items() if name != VALUE_HEAD}, params[VALUE_HEAD]


def values_of(head: Params, prompts: jax.Array, within: jax.Array) -> jax.Array:
    """V before each completion token, in float32.

    Args:
      head: from `with_value_head`.
      prompts: [N, d], the hidden state of each prompt's last token.
      within: [N, G, T - 1, d], those of all completion tokens but the last.

    Returns:
      [N, G, T].
    """
    first = jnp.broadcast_to(prompts[:, None, None], (*within.shape[:2], 1, prompts.shape[-1]))
    states = jnp.concatenate([first, within], axis=2).astype(jnp.float32)
    weight, bias = (head[name].astype(jnp.float32) for name in ("weight", "bias"))
    return jnp.einsum("ngtd,d->ngt", states, weight) + bias
