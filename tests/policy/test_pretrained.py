import json
import os
import shutil
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ogrpo.policy import load_config, load_pretrained, pretrained, save_pretrained
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.log_probs import flat_logits
from tests.data.replay.test_disk import files_of_at_most
from tests.policy.tiny import FAMILIES, make_config, make_params

GOLDEN = Path(__file__).parent / "golden"
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
logits = jax.jit(flat_logits, static_argnums=1)


@pytest.fixture
def folder(tmp_path):
    """A copy of the golden Qwen2 model, to be broken by the test."""
    return Path(shutil.copytree(GOLDEN / "qwen2", tmp_path / "qwen2"))


@pytest.fixture
def sharded(tmp_path):
    return Path(shutil.copytree(GOLDEN / "qwen3-untied", tmp_path / "qwen3"))


def edit_config(folder, **changes):
    fields = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(fields))


def edit_tensors(folder, change, file=MODEL):
    tensors = load_file(folder / file)
    change(tensors)
    save_file(tensors, folder / file, metadata={"format": "pt"})


def check_refused(folder, message, dtype=jnp.float32):
    with pytest.raises(ValueError, match=message):
        load_pretrained(folder, dtype)


@pytest.mark.parametrize("name", ["qwen2", "qwen3-untied", "llama3-scaled"])
def test_logits_are_those_of_transformers(name):
    config, params = load_pretrained(GOLDEN / name, jnp.float32)
    golden = load_file(GOLDEN / name / "expected.safetensors")
    mask = golden["mask"]
    ours = logits(params, config, jnp.asarray(golden["token_ids"]), jnp.asarray(mask))
    np.testing.assert_allclose(np.asarray(ours)[mask], golden["logits"][mask], rtol=0, atol=1e-4)
    assert np.std(golden["logits"][mask]) > 0.1


@pytest.mark.parametrize("name", ["qwen2", "llama3-scaled"])
def test_writes_the_bytes_that_transformers_wrote(name, tmp_path):
    config, params = load_pretrained(GOLDEN / name, jnp.float32)
    save_pretrained(tmp_path, config, params)
    assert (tmp_path / MODEL).read_bytes() == (GOLDEN / name / MODEL).read_bytes()
    assert load_config(tmp_path) == config
    assert sorted(f.name for f in tmp_path.iterdir()) == ["config.json", MODEL]


@pytest.mark.parametrize(
    ("stored", "dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_saved_loads_the_same_rounded_to_the_dtype(family, stored, dtype, tmp_path):
    config = make_config(family)
    params = make_params(config, dtype=stored)
    save_pretrained(tmp_path / "new" / "folder", config, params)
    again = load_pretrained(tmp_path / "new" / "folder", dtype)
    assert again[0] == config
    assert jax.tree.leaves(again[1])[0].dtype == dtype
    expected = jax.tree.map(lambda leaf: np.asarray(leaf).astype(np.dtype(dtype)), params)
    jax.tree.map(np.testing.assert_array_equal, again[1], expected)


def test_saving_again_replaces_the_model_and_leaves_other_files(tmp_path):
    config = make_config()
    (tmp_path / "tokenizer.json").write_text("{}")
    for seed in (0, 1):
        params, fields = make_params(config, seed), {"eos_token_id": 3}
        save_pretrained(tmp_path, config, params, extra_fields=fields)
    _, params = load_pretrained(tmp_path, jnp.float32)
    jax.tree.map(np.testing.assert_array_equal, params, make_params(config, 1))
    assert json.loads((tmp_path / "config.json").read_text())["eos_token_id"] == 3
    names = sorted(f.name for f in tmp_path.iterdir())
    assert names == ["config.json", MODEL, "tokenizer.json"]


def test_a_saved_model_is_not_hidden_by_the_shards_it_replaces(sharded):
    config, old = load_pretrained(sharded, jnp.float32)
    with pytest.raises(ValueError, match=r"holds shards .*index\.json.*another folder"):
        save_pretrained(sharded, config, jax.tree.map(jnp.zeros_like, old))
    jax.tree.map(np.testing.assert_array_equal, load_pretrained(sharded, jnp.float32)[1], old)


def test_a_tied_checkpoint_may_repeat_its_embedding_as_head(folder):
    def add_head(tensors, noise=0.0):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + np.float32(noise)

    edit_tensors(folder, add_head)
    config, params = load_pretrained(folder, jnp.float32)
    assert config.tie_embeddings
    assert "lm_head" not in params
    edit_tensors(folder, lambda tensors: add_head(tensors, 0.1))
    check_refused(folder, r"lm_head.weight differs from model.embed_tokens.weight")


UP, KEYS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.k_proj.weight"
BIAS, NORM = "model.layers.0.self_attn.o_proj.bias", "model.norm.weight"


def with_tensor(name, value):
    return lambda folder: edit_tensors(folder, lambda tensors: tensors.update({name: value}))


def with_config(**changes):
    return lambda folder: edit_config(folder, **changes)


BROKEN = [
    (lambda folder: edit_tensors(folder, lambda tensors: tensors.pop(UP)), rf"lacks {UP}, which"),
    (with_config(tie_word_embeddings=False), r"lacks lm_head\.weight"),
    (with_tensor(BIAS, np.zeros(16, np.float32)), rf"has {BIAS}, unknown"),
    (
        with_config(num_hidden_layers=1, layer_types=["full_attention"]),
        r"has model\.layers\.1\..* and 9 more tensors, unknown",
    ),
    (
        with_tensor(KEYS, np.zeros((8, 17), np.float32)),
        rf"{KEYS} has shape \[8, 17\] in the checkpoint; config.json makes it \[8, 16\]",
    ),
    (with_tensor(NORM, np.ones(16, np.int8)), rf"{NORM} is stored as I8; supported: F32"),
    (
        lambda folder: (folder / MODEL).rename(folder / "pytorch_model.bin"),
        r"neither model\.safetensors nor .* must be saved as",
    ),
    (
        lambda folder: os.truncate(folder / MODEL, 1000),
        r"model\.safetensors is not a readable safetensors file",
    ),
    (lambda folder: (folder / "config.json").unlink(), r"config\.json is missing; a Hugging Face"),
    (lambda folder: (folder / "config.json").write_text("{"), r"config\.json .*not JSON"),
]


@pytest.mark.parametrize(("harm", "message"), BROKEN)
def test_a_broken_folder_is_refused_by_name(folder, harm, message):
    harm(folder)
    check_refused(folder, message)


def test_a_config_that_promises_more_than_the_files_hold_costs_no_memory(folder, tmp_path):
    wide = shutil.copytree(folder, tmp_path / "wide")
    edit_config(folder, num_hidden_layers=10**6, layer_types=None)
    edit_config(wide, vocab_size=2**31 - 1)
    layers = f"^{folder}: the checkpoint lacks layers: config.json has num_hidden_layers 1000000"
    tracemalloc.start()
    check_refused(folder, layers)
    check_refused(wide, rf"^{wide}: .*config.json makes it \[2147483647, 16\]")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**29  # it was 3.9 GiB; to read a JSON file reserves half of this


def test_weights_larger_than_the_free_memory_are_refused_by_both_sizes(folder, monkeypatch):
    config = load_config(folder)
    need = sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config))) * 4
    monkeypatch.setattr(pretrained, "free_bytes", lambda: need)
    load_pretrained(folder, jnp.float32)
    monkeypatch.setattr(pretrained, "free_bytes", lambda: need - 1)
    check_refused(folder, rf"{folder.name}: the weights .* in float32, .* give bfloat16 \(--model")
    load_pretrained(folder, jnp.bfloat16)
    monkeypatch.setattr(pretrained, "free_bytes", lambda: need // 2 - 1)
    for dtype in (jnp.float32, jnp.bfloat16):  # which would not fit either
        check_refused(folder, "are free here: give a smaller model or more memory", dtype)


def test_the_free_memory_is_that_of_the_machine_or_of_its_container(tmp_path, monkeypatch):
    assert 2**20 < pretrained.free_bytes() < 2**50
    for name, text in {
        "memory.max": "1000000\n",
        "memory.current": "900000\n",
        "memory.stat": "anon 1\ninactive_file 40000\nactive_file 2000\n",
    }.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(pretrained, "CGROUP", tmp_path)
    assert pretrained.free_bytes() == 142_000
    (tmp_path / "memory.max").write_text("max\n")
    assert pretrained.free_bytes() > 142_000


def edit_index(folder, **places):
    file = folder / INDEX
    index = json.loads(file.read_text())
    index["weight_map"] |= places
    file.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "{}/outside.safetensors", "..", "x/../y.safetensors", "", 7, None],
)
def test_an_index_names_files_of_its_own_folder_alone(sharded, name):
    outside = sharded.parent / "outside.safetensors"
    save_file({"model.norm.weight": np.zeros(16, np.float32)}, outside)
    name = name.format(sharded.parent) if isinstance(name, str) else name
    edit_index(sharded, **{"model.norm.weight": name})
    check_refused(sharded, r"index\.json: 'weight_map' puts 'model\.norm\.weight'")


def test_shards_hold_what_the_index_says_and_nothing_else(sharded):
    shards = sorted(each.name for each in sharded.glob("model-*.safetensors"))
    holder = json.loads((sharded / INDEX).read_text())["weight_map"]["model.norm.weight"]
    other = next(shard for shard in shards if shard != holder)
    edit_index(sharded, **{"model.norm.weight": other})
    check_refused(sharded, rf"{other} lacks model\.norm\.weight, which model")
    edit_index(sharded, **{"model.norm.weight": holder})
    edit_tensors(sharded, lambda tensors: tensors.update({"model.extra": np.zeros(1)}), other)
    check_refused(sharded, rf"{other} has model\.extra, which model")
    (sharded / other).unlink()
    check_refused(sharded, rf"{other} does not exist")
    (sharded / INDEX).write_text("{}")
    check_refused(sharded, r"index\.json has no 'weight_map'")


def test_a_folder_of_links_as_in_the_hubs_cache_loads(sharded):
    snapshot = sharded.parent / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(sharded.iterdir())):
        blob = sharded.parent / "blobs" / str(number)
        blob.parent.mkdir(exist_ok=True)
        file.rename(blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    load_pretrained(snapshot, jnp.float32)


@pytest.mark.parametrize("room", [0, 4096])
def test_a_disk_that_is_full_is_told_by_the_files_name_and_keeps_the_old_model(tmp_path, room):
    config = make_config()
    old, new = (jax.tree.map(np.asarray, make_params(config, seed)) for seed in (0, 1))
    save_pretrained(tmp_path, config, old)
    with pytest.raises(OSError, match=f"{tmp_path / MODEL}"), files_of_at_most(room):
        save_pretrained(tmp_path, config, new)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["config.json", MODEL]
    _, params = load_pretrained(tmp_path, jnp.float32)
    jax.tree.map(np.testing.assert_array_equal, params, old)


def test_parameters_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    config, folder = make_config(), tmp_path / "x"
    params = make_params(config)
    with pytest.raises(ValueError, match="LlamaForCausalLM has the parameters"):
        save_pretrained(folder, make_config("Llama"), params)
    with pytest.raises(ValueError, match=r"extra_fields \['vocab_size'\]"):
        save_pretrained(folder, config, params, extra_fields={"vocab_size": 12})
    params["norm"]["weight"] = jnp.ones(17)
    with pytest.raises(ValueError, match=r"model\.norm\.weight has shape \(17,\), not \(16,\)"):
        save_pretrained(folder, config, params)
    assert not folder.exists()


def with_one(value):
    """A change of one weight."""

    def change(tensors):
        tensors[UP] = tensors[UP].copy()
        tensors[UP].flat[3] = value

    return change


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("model", ["folder", "sharded"])
def test_a_weight_that_is_not_finite_is_refused_by_file_and_tensor(model, value, request):
    path = request.getfixturevalue(model)
    index = path / INDEX
    name = json.loads(index.read_text())["weight_map"][UP] if index.exists() else MODEL
    edit_tensors(path, with_one(value), name)
    check_refused(path, f"^{path / name}: {UP} has 1 of .* NaN or infinite")


def test_a_weight_that_overflows_in_the_wanted_dtype_is_refused(folder):
    edit_tensors(folder, with_one(np.float32(3.4e38)))
    load_pretrained(folder, jnp.float32)
    check_refused(folder, "infinite as bfloat16", jnp.bfloat16)
