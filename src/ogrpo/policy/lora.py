"""Low-rank adapters (Hu et al. 2021): a few trained directions beside each frozen matrix.

    y = W x + scale * B (A x)        A [r, in], B [out, r], scale = alpha / r

Only A and B are trained. They are float32 whatever the matrices are, so that small steps are kept.
B starts at 0, which makes the adapted policy the frozen one, to rounding.

    trained, frozen = split(params, key, rank=8, alpha=16, targets=TARGETS["all"])

Joined, the two trees are parameters for every function of this package that computes log-probs or
samples; `merge` gives a decoder's own, for servers and files, and `beneath` the frozen ones alone.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.policy.axes import Axes, Axis
from ogrpo.policy.decoder import Params

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS: Mapping[str, tuple[str, ...]] = {
    "all": (*_ATTENTION, *_MLP),
    "attention": _ATTENTION,
    "mlp": _MLP,
}
"""Projections by the name of a choice."""

_RANK = Axis("rank", 1)


class SplitParams(NamedTuple):
    """A decoder's parameters with adapters, in two trees to be joined."""

    trained: Params
    """A and B of each target, and nothing else."""
    frozen: Params
    """All other leaves; each target has its `scale`."""


def split(
    params: Params, key: jax.Array, *, rank: int, alpha: float, targets: Collection[str]
) -> SplitParams:
    """Fresh adapters beside `targets`: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0.

    Args:
      params: as from `init_params`; not copied.
      key: a `jax.random.key`.
      rank: r, at least 1.
      alpha: scale * r.
      targets: names of projections.

    Raises:
      ValueError: a rank below 1, no target, or one that no layer has.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}: an adapter needs at least 1")
    unknown = sorted(set(targets) - set(TARGETS["all"]))
    if unknown or not targets:
        raise ValueError(f"targets {sorted(targets)}: choose from {', '.join(TARGETS['all'])}")
    keys = dict(zip(TARGETS["all"], jax.random.split(key, len(TARGETS["all"])), strict=True))

    def beside(name: str, own: Params) -> tuple[Params, Params]:
        layers, outputs, inputs = own["weight"].shape
        a = jax.random.uniform(keys[name], (layers, rank, inputs), minval=-1.0, maxval=1.0)
        b = jnp.zeros((layers, outputs, rank))
        scale = jnp.full(layers, alpha / rank, jnp.float32)
        return {"a": a / inputs**0.5, "b": b}, {"scale": scale}

    return _split(params, targets, beside)


def split_axes(axes: Params, targets: Collection[str]) -> SplitParams:
    """The axes of `split`'s trees, from those of `param_axes`; a rank is never cut."""

    def beside(_: str, own: Params) -> tuple[Params, Params]:
        layers, outputs, inputs = own["weight"].axes
        a, b = Axes((layers, _RANK, inputs)), Axes((layers, outputs, _RANK))
        return {"a": a, "b": b}, {"scale": Axes((layers,))}

    return _split(axes, targets, beside)


BesideFn = Callable[[str, Params], tuple[Params, Params]]


def _split(params: Params, targets: Collection[str], beside: BesideFn) -> SplitParams:
    """Each target with the two leaves' trees that `beside` gives for it."""
    trained: Params = {}
    layers = dict(params["layers"])
    for part in ("self_attn", "mlp"):
        layers[part] = dict(layers[part])
        for name in sorted(set(targets) & layers[part].keys()):
            moving, fixed = beside(name, layers[part][name])
            trained.setdefault(part, {})[name] = {"lora": moving}
            layers[part][name] = {**layers[part][name], "lora": fixed}
    return SplitParams({"layers": trained}, {**params, "layers": layers})


def merge(params: Params, *, keep_fn: Callable[[jax.Array], Any] = lambda x: x) -> Params:
    """W + scale B A in place of each adapted W, in its dtype; parameters without adapters as given.

    The sum is taken in float32 and rounded once. In bfloat16 the merged policy differs from the
    adapted one by that rounding.

    Args:
      params: stacked, or from `unstack`.
      keep_fn: what becomes of each merged matrix before the next is made, such as `np.asarray`.
    """
    layers = params["layers"]
    if isinstance(layers, list):
        return {**params, "layers": [_merge_layers(layer, keep_fn) for layer in layers]}
    return {**params, "layers": _merge_layers(layers, keep_fn)}


def beneath(params: Params) -> Params:
    """W in place of each adapted W: the decoder that the adapters stand beside."""
    return {**params, "layers": _each_projection(params["layers"], _plain)}


def _plain(own: Params) -> Params:
    return {name: leaf for name, leaf in own.items() if name != "lora"}


def _merge_layers(layers: Params, keep_fn: Callable[[jax.Array], Any]) -> Params:
    def merged(own: Params) -> Params:
        if "lora" not in own:
            return own
        return {**_plain(own), "weight": keep_fn(_merged(own["weight"], own["lora"]))}

    return _each_projection(layers, merged)


def _each_projection(layers: Params, change_fn: Callable[[Params], Params]) -> Params:
    parts = {name: layers[name] for name in ("self_attn", "mlp")}
    found = {part: {name: change_fn(own) for name, own in of.items()} for part, of in parts.items()}
    return {**layers, **found}


@jax.jit
def _merged(weight: jax.Array, lora: dict[str, Any]) -> jax.Array:
    change = jnp.einsum("...or,...ri->...oi", lora["b"], lora["a"], precision="highest")
    scale = lora["scale"][..., None, None]
    return (weight.astype(jnp.float32) + scale * change).astype(weight.dtype)
