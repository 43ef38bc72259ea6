"""The decoder and its files against transformers, on tiny random models of each family."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ogrpo.batch import tokens_only
from ogrpo.policy import (
    completion_log_probs,
    load_config,
    load_pretrained,
    save_pretrained,
)
from ogrpo.policy.log_probs import flat_logits
from tests.parity.families import CONFIGS, make_model, torch_logits

LENGTHS = np.array([12, 7, 1])
ROWS = np.random.default_rng(0).integers(0, 32, (3, 12)).astype(np.int32)
MASK = np.arange(12) < LENGTHS[:, None]


@pytest.fixture(params=sorted(CONFIGS))
def model(request):
    return make_model(request.param)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def test_logits_agree_including_padding(model, folder):
    config, params = load_pretrained(folder, jnp.float32)
    ours = flat_logits(params, config, jnp.asarray(ROWS), jnp.asarray(MASK))
    theirs = torch_logits(model, ROWS, MASK).numpy()
    np.testing.assert_allclose(np.asarray(ours)[MASK], theirs[MASK], rtol=0, atol=1e-4)


def test_grouped_log_probs_agree(model, folder):
    config, params = load_pretrained(folder, jnp.float32)
    rng = np.random.default_rng(1)
    completions = rng.integers(0, 32, (3, 4, 5)).astype(np.int32)
    lengths = rng.integers(1, 6, (3, 4))
    batch = tokens_only(
        prompt_ids=jnp.asarray(ROWS),
        prompt_mask=jnp.asarray(MASK),
        completion_ids=jnp.asarray(completions),
        completion_mask=jnp.asarray(np.arange(5) < lengths[..., None]),
    )
    ours = np.asarray(completion_log_probs(params, config, batch, 0.7))
    for n, g in np.ndindex(3, 4):
        prompt, completion = ROWS[n, : LENGTHS[n]], completions[n, g, : lengths[n, g]]
        row = np.concatenate([prompt, completion])[None]
        scores = torch_logits(model, row, np.ones_like(row))[0, len(prompt) - 1 : -1] / 0.7
        theirs = scores.log_softmax(-1).numpy()[np.arange(len(completion)), completion]
        np.testing.assert_allclose(ours[n, g, : len(completion)], theirs, rtol=0, atol=1e-4)


def test_our_file_is_theirs_byte_for_byte(folder, tmp_path):
    config, params = load_pretrained(folder, jnp.float32)
    save_pretrained(tmp_path / "ours", config, params)
    ours, theirs = ((f / "model.safetensors").read_bytes() for f in (tmp_path / "ours", folder))
    assert ours == theirs


def test_transformers_reads_what_we_write(model, folder, tmp_path):
    config, params = load_pretrained(folder, jnp.float32)
    save_pretrained(tmp_path / "ours", config, params)
    reread, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values()), report
    theirs, ours = (torch_logits(m, ROWS, MASK) for m in (model, reread.eval()))
    assert torch.equal(theirs, ours)


def test_transformers_reads_the_same_config(folder, tmp_path):
    config, params = load_pretrained(folder, jnp.float32)
    # Of config.json, what is not the decoder's shape is for the caller to hand on.
    extra = {"bos_token_id": None, "eos_token_id": 7, "pad_token_id": None}
    save_pretrained(tmp_path / "ours", config, params, extra_fields=extra)
    theirs = AutoConfig.from_pretrained(folder).to_dict() | extra
    ours = AutoConfig.from_pretrained(tmp_path / "ours").to_dict()
    assert ours.pop("head_dim") == config.head_dim
    for field in ("head_dim", "_name_or_path"):
        theirs.pop(field, None)
    assert {k: ours.get(k) for k in theirs} == theirs
    assert load_config(tmp_path / "ours") == config
