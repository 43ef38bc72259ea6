"""Adapters as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ogrpo.files import write_json
from ogrpo.policy.decoder import Params
from ogrpo.policy.pretrained import write_tensors

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


def _tensors(params: Params) -> Iterator[tuple[str, np.ndarray]]:
    for part in ("self_attn", "mlp"):
        for name, own in params["layers"].get(part, {}).items():
            for ours, theirs in (("a", "lora_A"), ("b", "lora_B")) if "lora" in own else ():
                for layer, matrix in enumerate(np.asarray(own["lora"][ours])):
                    place = f"base_model.model.model.layers.{layer}.{part}.{name}"
                    yield f"{place}.{theirs}.weight", np.ascontiguousarray(matrix)
