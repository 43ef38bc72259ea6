"""A run's saved model is a model like any other: transformers loads it and agrees."""

import jax.numpy as jnp
import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ogrpo.policy.log_probs import flat_logits
from ogrpo.policy.pretrained import load_pretrained
from tests.run.small_run import go


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
