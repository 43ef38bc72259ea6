"""Adapters as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from ogrpo.policy.decoder import Params
from ogrpo.policy.pretrained import write_tensors
from ogrpo.system.files import write_json

_PREFIX = "base_model.model.model.layers"
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"


def save_adapter(
    folder: str | os.PathLike[str],
    trained: Params,
    *,
    alpha: float,
    base: str | os.PathLike[str],
) -> None:
    """Write adapters alone, for PEFT, or for servers that add them to the model themselves.

    Args:
      folder: created if it does not exist.
      trained: as from `lora.split`.
      alpha: as it was given there.
      base: the model that they stand beside, where a reader will look for it.
    """
    folder = Path(folder)
    tensors = adapter_tensors(trained)
    targets = sorted(name for part in trained["layers"].values() for name in part)
    rank = next(leaf.shape[0] for name, leaf in tensors.items() if name.endswith("lora_A.weight"))
    fields = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / _TENSORS, tensors)
    write_json(folder / _CONFIG, dict(sorted(fields.items())))


def adapter_tensors(params: Params) -> dict[str, np.ndarray]:
    """A and B by PEFT's names, from `lora.split`'s trained tree or from the two trees joined."""
    return dict(_tensors(params))


def join_adapters(params: Params, tensors: Mapping[str, np.ndarray], scale: float) -> Params:
    """Parameters with the adapters of `adapter_tensors` beside their matrices."""
    layers = dict(params["layers"])
    for part in ("self_attn", "mlp"):
        layers[part] = dict(layers[part])
        for name, own in layers[part].items():
            count = len(own["weight"])
            places = [f"{_PREFIX}.{layer}.{part}.{name}" for layer in range(count)]
            if f"{places[0]}.lora_A.weight" not in tensors:
                continue
            a, b = (
                jnp.stack([jnp.asarray(tensors[f"{place}.{half}.weight"]) for place in places])
                for half in ("lora_A", "lora_B")
            )
            lora = {"a": a, "b": b, "scale": jnp.full(count, scale, jnp.float32)}
            layers[part][name] = {**own, "lora": lora}
    return {**params, "layers": layers}


def _tensors(params: Params) -> Iterator[tuple[str, np.ndarray]]:
    for part in ("self_attn", "mlp"):
        for name, own in params["layers"].get(part, {}).items():
            for ours, theirs in (("a", "lora_A"), ("b", "lora_B")) if "lora" in own else ():
                for layer, matrix in enumerate(np.asarray(own["lora"][ours])):
                    place = f"{_PREFIX}.{layer}.{part}.{name}"
                    yield f"{place}.{theirs}.weight", np.ascontiguousarray(matrix)
