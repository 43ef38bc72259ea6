"""Functions of the parameter tree: the axes of each array, a value head, weights of 8 bits.

An axis has a name and the number of equal blocks that it may be cut into: the output of `q_proj` is
`num_heads` blocks of `head_dim` rows, and a cut inside a head would move data in every layer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.batch import VALUE_HEAD
from ogrpo.policy.config import ATTENTION, MLP, DecoderConfig
from ogrpo.policy.decoder import Params, param_shapes

LEVELS = 127
MATRICES = frozenset((*ATTENTION, *MLP, "embed_tokens", "lm_head"))
"""The modules whose weights `int8_weights` rounds; norms, biases and adapters stay."""


class Axis(NamedTuple):
    """One axis of a parameter."""

    name: str
    blocks: int


@dataclass(frozen=True)
class Axes:
    """All axes of a parameter, in order; a leaf of the tree that `param_axes` returns."""

    axes: tuple[Axis, ...]


def param_axes(config: DecoderConfig) -> Params:
    """Returns the parameters' tree with an `Axes` for each array.

    Names: `layers` (the stack), `vocab`, `embed` (the hidden size), `heads`, `kv_heads`, `mlp` (the
    intermediate size), and `small` for norms, which are not worth cutting.
    """
    vocab, embed = Axis("vocab", config.vocab_size), Axis("embed", config.hidden_size)
    heads, kv_heads = Axis("heads", config.num_heads), Axis("kv_heads", config.num_kv_heads)
    mlp = Axis("mlp", config.intermediate_size)
    by_module = {
        "embed_tokens": (vocab, embed),
        "lm_head": (vocab, embed),
        "q_proj": (heads, embed),
        "k_proj": (kv_heads, embed),
        "v_proj": (kv_heads, embed),
        "o_proj": (embed, heads),
        "gate_proj": (mlp, embed),
        "up_proj": (mlp, embed),
        "down_proj": (embed, mlp),
    }

    def axes(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Axes:
        *_, module, kind = [key.key for key in path]
        within = by_module.get(module, (Axis("small", 1),))
        within = within[:1] if kind == "bias" else within
        stack = (Axis("layers", config.num_layers),) * (len(leaf.shape) - len(within))
        return Axes(stack + within)

    return jax.tree_util.tree_map_with_path(axes, param_shapes(config))


def with_value_head(params: Params) -> Params:
    """Returns the parameters with a value head beside them, linear, which begins at V = 0."""
    width = params["norm"]["weight"].shape[-1]
    head = {"weight": jnp.zeros(width), "bias": jnp.zeros(())}
    return {**params, VALUE_HEAD: head}


def split_value_head(params: Params) -> tuple[Params, Params | None]:
    """Returns a decoder's parameters without the value head, and that head if there is one."""
    if VALUE_HEAD not in params:
        return params, None
    return {name: part for name, part in params.items() if name != VALUE_HEAD}, params[VALUE_HEAD]


def values_of(head: Params, prompts: jax.Array, within: jax.Array) -> jax.Array:
    """Returns V before each completion token, in float32.

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


def round_to_int8(weight: jax.Array) -> jax.Array:
    """Rounds W [..., out, in] to s * k with whole k in [-127, 127] and s = max |W| / 127 of a row.

    A row is an output channel; for an embedding, a token. The error of a weight is s / 2 at most.

    >>> round_to_int8(jnp.array([[1.27, 0.004, -0.5], [0.0, 0.0, 0.0]])).round(3).tolist()[1]
    [0.0, 0.0, 0.0]
    """
    wide = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1, keepdims=True) / LEVELS
    levels = jnp.round(wide / jnp.where(scale > 0, scale, 1.0))
    return (levels * scale).astype(weight.dtype)


def int8_weights(params: Params) -> Params:
    """Returns the decoder with every matrix rounded, in the dtype that it has.

    The numbers are those of an int8 server with float activations; memory and speed are not.
    """

    def rounded(path: tuple, leaf: jax.Array) -> jax.Array:
        *_, module, name = (getattr(key, "key", None) for key in path)
        return round_to_int8(leaf) if name == "weight" and module in MATRICES else leaf

    return jax.tree_util.tree_map_with_path(rounded, params)
