"""The decoder and its files against transformers, on tiny random models of each family."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ogrpo.policy import load_config, load_pretrained, save_pretrained
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
