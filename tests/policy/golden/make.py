"""Makes the golden files: tiny models and their logits, computed by transformers.

They let the decoder and the loader be tested where torch is not installed. Run from the repository
root, with the parity extra: `python -m tests.policy.golden.make`.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.parity.families import make_model, torch_logits

HERE = Path(__file__).parent
# Between them: tied and untied heads, biases, qk-norm, scaled rotation, one file and shards.
SHARD_SIZES = {"qwen2": "1GB", "qwen3-untied": "8KB", "llama3-scaled": "1GB"}


def make(name: str, shard_size: str) -> None:
    model = make_model(name)
    model.save_pretrained(HERE / name, max_shard_size=shard_size)
    (HERE / name / "generation_config.json").unlink()
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, model.config.vocab_size, (3, 10)).astype(np.int32)
    mask = np.arange(10) < np.array([[10], [6], [1]])
    logits = np.where(mask[..., None], torch_logits(model, token_ids, mask).numpy(), 0)
    expected = {"token_ids": token_ids, "mask": mask, "logits": logits.astype(np.float32)}
    save_file(expected, HERE / name / "expected.safetensors")


if __name__ == "__main__":
    for name, shard_size in SHARD_SIZES.items():
        make(name, shard_size)
    print(json.dumps(sorted(str(f.relative_to(HERE)) for f in HERE.rglob("*.*")), indent=1))
