"""Weights that are NaN or infinite are refused when they are read and when they are written."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ogrpo.policy.pretrained import load_pretrained, save_pretrained
from tests.policy.tiny import make_config, make_params

NAME = "model.layers.1.mlp.up_proj.weight"


def broken_folder(folder, value, *, sharded):
    """A model's folder of which one weight has this value, in the second shard where there are."""
    config = make_config()
    save_pretrained(folder, config, make_params(config))
    tensors = load_file(folder / "model.safetensors")
    tensors[NAME] = tensors[NAME].copy()
    tensors[NAME].flat[3] = value
    if not sharded:
        save_file(tensors, folder / "model.safetensors")
        return folder / "model.safetensors"
    (folder / "model.safetensors").unlink()
    shards = {name: "b.safetensors" if name == NAME else "a.safetensors" for name in tensors}
    for shard in ("a.safetensors", "b.safetensors"):
        save_file({n: tensors[n] for n in tensors if shards[n] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder / "b.safetensors"


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_model_is_refused_by_file_and_tensor(tmp_path, value, sharded):
    file = broken_folder(tmp_path, value, sharded=sharded)
    with pytest.raises(ValueError, match=f"^{file}: {NAME} has 1 of .* NaN or infinite"):
        load_pretrained(tmp_path, jnp.float32)


def test_a_weight_that_overflows_in_the_wanted_dtype_is_refused(tmp_path):
    broken_folder(tmp_path, np.float32(3.4e38), sharded=False)
    load_pretrained(tmp_path, jnp.float32)
    with pytest.raises(ValueError, match="infinite as bfloat16"):
        load_pretrained(tmp_path, jnp.bfloat16)


def test_a_sound_model_is_read_as_before(tmp_path):
    config = make_config()
    params = make_params(config)
    save_pretrained(tmp_path, config, params)
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(tmp_path, jnp.float32)[1], params)
