"""Adapters that PEFT reads from our files and applies to the same model."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from ogrpo.learner.state import join
from ogrpo.policy import lora, save_pretrained
from ogrpo.policy.log_probs import flat_logits
from ogrpo.policy.lora import save_adapter
from tests.policy.test_lora import PAIRS, adapters
from tests.policy.tiny import make_config, make_params

peft = pytest.importorskip("peft")


# PEFT asks transformers by a name that transformers is giving up.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize(("family", "choice"), PAIRS)
def test_peft_adds_our_adapters_as_we_do(family, choice, tmp_path):
    config = make_config(family, num_layers=3)
    params = make_params(config)
    targets = lora.TARGETS[choice]
    trained, frozen = adapters(params, rank=3, alpha=7.5, targets=targets, noise=0.2)
    save_pretrained(tmp_path / "base", config, params)
    save_adapter(tmp_path / "adapter", trained, alpha=7.5, base=tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (2, 9))
    with torch.no_grad():
        theirs = adapted(torch.as_tensor(ids)).logits.numpy()
    rows, mask = jnp.asarray(ids, jnp.int32), jnp.ones(ids.shape, bool)
    ours = flat_logits(join(trained, frozen), config, rows, mask)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    plain = flat_logits(params, config, rows, mask)
    assert np.max(np.abs(ours - plain)) > 0.1
