"""Low-rank adapters (Hu et al. 2021, arXiv:2106.09685): trained directions beside frozen matrices.

    y = W x + scale * B (A x)        A [r, in], B [out, r], scale = alpha / r

Only A and B are trained. They are float32 whatever the matrices are, so that small steps are kept.
B starts at 0, which makes the adapted policy the frozen one, to rounding.

    trained, frozen = split(params, key, rank=8, alpha=16, targets=TARGETS["all"])

Joined (`ogrpo.learner.state.join`), the two trees are parameters for every function of this package
that computes log-probs or samples; `merge` gives those of a plain decoder, for servers and files.
Files of adapters alone are PEFT's: `adapter_config.json` and `adapter_model.safetensors`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy.config import ATTENTION, MLP
from ogrpo.policy.decoder import Params
from ogrpo.policy.params import Axes, Axis
from ogrpo.policy.pretrained import write_tensors
from ogrpo.system.files import write_json

TARGETS: Mapping[str, tuple[str, ...]] = {
    "all": (*ATTENTION, *MLP),
    "attention": ATTENTION,
    "mlp": MLP,
}
"""Projections by the name of a choice."""

_PREFIX = "base_model.model.model.layers"


class SplitParams(NamedTuple):
    """A decoder's parameters with adapters, in two trees to be joined."""

    trained: Params
    """A and B of each target, and nothing else."""
    frozen: Params
    """All other leaves; each target has its `scale`."""


def split(
    params: Params, key: jax.Array, *, rank: int, alpha: float, targets: Collection[str]
) -> SplitParams:
    """Returns fresh adapters beside `targets`: A ~ U(-1/sqrt(in), 1/sqrt(in)), B = 0.

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

    def beside(name: str, projection: Params) -> tuple[Params, Params]:
        layers, outputs, inputs = projection["weight"].shape
        a = jax.random.uniform(keys[name], (layers, rank, inputs), minval=-1.0, maxval=1.0)
        b = jnp.zeros((layers, outputs, rank))
        scale = jnp.full(layers, alpha / rank, jnp.float32)
        return {"a": a / inputs**0.5, "b": b}, {"scale": scale}

    return _split(params, targets, beside)


def split_axes(axes: Params, targets: Collection[str]) -> SplitParams:
    """Returns the axes of `split`'s trees, from those of `param_axes`; a rank is never cut."""
    rank = Axis("rank", 1)

    def beside(_: str, projection: Params) -> tuple[Params, Params]:
        layers, outputs, inputs = projection["weight"].axes
        a, b = Axes((layers, rank, inputs)), Axes((layers, outputs, rank))
        return {"a": a, "b": b}, {"scale": Axes((layers,))}

    return _split(axes, targets, beside)


def _split(
    params: Params, targets: Collection[str], beside: Callable[[str, Params], tuple[Params, Params]]
) -> SplitParams:
    """Adds to each target the trees of trained and of frozen leaves that `beside` returns."""
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
    """Puts W + scale B A in place of each adapted W, in its dtype; other parameters are shared.

    The sum is taken in float32 and rounded once. In bfloat16 the merged policy differs from the
    adapted one by that rounding.

    Args:
      params: stacked, or from `unstack`.
      keep_fn: maps each merged matrix before the next is made, such as `np.asarray`.
    """

    def merged(layer: Params) -> Params:
        changed = {part: dict(layer[part]) for part in ("self_attn", "mlp")}
        for projections in changed.values():
            for name, projection in projections.items():
                if "lora" in projection:
                    weight = keep_fn(_merged(projection["weight"], projection["lora"]))
                    plain = {key: leaf for key, leaf in projection.items() if key != "lora"}
                    projections[name] = {**plain, "weight": weight}
        return {**layer, **changed}

    layers = params["layers"]
    if isinstance(layers, list):
        return {**params, "layers": [merged(layer) for layer in layers]}
    return {**params, "layers": merged(layers)}


@jax.jit
def _merged(weight: jax.Array, lora: dict[str, Any]) -> jax.Array:
    change = jnp.einsum("...or,...ri->...oi", lora["b"], lora["a"], precision="highest")
    scale = lora["scale"][..., None, None]
    return (weight.astype(jnp.float32) + scale * change).astype(weight.dtype)


def save_adapter(
    folder: str | os.PathLike[str], trained: Params, *, alpha: float, base: str | os.PathLike[str]
) -> None:
    """Writes adapters alone, for PEFT, or for servers that add them to the model themselves.

    Args:
      folder: created if it does not exist.
      trained: as from `lora.split`.
      alpha: as there.
      base: the model that they stand beside, where a reader will look for it.
    """
    folder = Path(folder)
    tensors, targets, rank = {}, [], 0
    for part, projections in trained["layers"].items():
        for name, projection in projections.items():
            targets.append(name)
            rank = projection["lora"]["a"].shape[1]
            for ours, theirs in (("a", "lora_A"), ("b", "lora_B")):
                for layer, matrix in enumerate(np.asarray(projection["lora"][ours])):
                    place = f"{_PREFIX}.{layer}.{part}.{name}.{theirs}.weight"
                    tensors[place] = np.ascontiguousarray(matrix)
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted(targets),
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "adapter_model.safetensors", tensors)
    write_json(folder / "adapter_config.json", dict(sorted(fields.items())))
