"""What each axis of each parameter is, so that a mesh of devices can be laid over it.

An axis has a name and the number of equal blocks that it may be cut into: the output of `q_proj` is
`num_heads` blocks of `head_dim` rows, and a cut inside a head would move data in every layer.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from ogrpo.policy.config import DecoderConfig
from ogrpo.policy.decoder import Params, param_shapes


class Axis(NamedTuple):
    """One axis of a parameter."""

    name: str
    blocks: int


@dataclass(frozen=True)
class Axes:
    """All axes of a parameter, in order; a leaf of the tree that `param_axes` returns."""

    axes: tuple[Axis, ...]


def param_axes(config: DecoderConfig) -> Params:
    """The parameters' tree with an `Axes` for each array.

    Names: `layers` (the stack), `vocab`, `embed` (the hidden size), `heads`, `kv_heads`, `mlp` (the
    intermediate size), and `small` for norms, which are not worth cutting.
    """
    kinds = _kinds(config)

    def axes(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Axes:
        *_, module, kind = [key.key for key in path]
        own = kinds.get(module, (Axis("small", 1),))
        own = own[:1] if kind == "bias" else own
        stack = (Axis("layers", config.num_layers),) * (len(leaf.shape) - len(own))
        return Axes(stack + own)

    return jax.tree_util.tree_map_with_path(axes, param_shapes(config))


def _kinds(config: DecoderConfig) -> dict[str, tuple[Axis, Axis]]:
    vocab, embed = Axis("vocab", config.vocab_size), Axis("embed", config.hidden_size)
    heads, kv_heads = Axis("heads", config.num_heads), Axis("kv_heads", config.num_kv_heads)
    mlp = Axis("mlp", config.intermediate_size)
    return {
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
