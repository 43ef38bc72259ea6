"""The decoder and its files against transformers, on tiny random models and a run's own."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ogrpo.policy import load_config, load_pretrained, save_pretrained
from ogrpo.policy.log_probs import flat_logits
from tests.parity.families import CONFIGS, make_model, torch_logits
from tests.run.small_run import go

ROWS = np.random.default_rng(0).integers(0, 32, (3, 12)).astype(np.int32)
MASK = np.arange(12) < np.array([[12], [7], [1]])


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_we_read_what_transformers_writes_and_it_reads_what_we_write(name, tmp_path):
    model = make_model(name)
    model.save_pretrained(tmp_path / "theirs")
    config, params = load_pretrained(tmp_path / "theirs", jnp.float32)
    ours = flat_logits(params, config, jnp.asarray(ROWS), jnp.asarray(MASK))
    theirs = torch_logits(model, ROWS, MASK)  # padding included
    np.testing.assert_allclose(np.asarray(ours)[MASK], theirs.numpy()[MASK], rtol=0, atol=1e-4)
    # Of config.json, what is not the decoder's shape is for the caller to hand on.
    extra = {"bos_token_id": None, "eos_token_id": 7, "pad_token_id": None}
    save_pretrained(tmp_path / "ours", config, params, extra_fields=extra)
    folder = tmp_path / "ours"
    reread, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    assert torch.equal(theirs, torch_logits(reread.eval(), ROWS, MASK))
    fields = AutoConfig.from_pretrained(folder).to_dict()
    assert fields.pop("head_dim") == config.head_dim
    expected = AutoConfig.from_pretrained(tmp_path / "theirs").to_dict() | extra
    for field in ("head_dim", "_name_or_path"):
        expected.pop(field, None)
    assert {k: fields.get(k) for k in expected} == expected
    assert load_config(folder) == config


def test_the_model_of_a_run_is_one_that_transformers_loads(tmp_path):
    go(tmp_path / "run")
    folder = tmp_path / "run" / "model"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("Tom has 7 apples .", return_tensors="pt").input_ids
    with torch.no_grad():
        theirs = model(ids).logits.numpy()
    config, params = load_pretrained(folder, jnp.float32)
    rows = jnp.asarray(ids.numpy(), jnp.int32)
    ours = flat_logits(params, config, rows, jnp.ones(rows.shape, bool))
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
