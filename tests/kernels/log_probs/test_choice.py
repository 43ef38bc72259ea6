"""Which version runs: by name, by size."""

from functools import partial

import jax
import numpy as np
import pytest

from ogrpo.kernels.log_probs import choose, chunked_log_probs
from ogrpo.policy import completion_log_probs_and_entropy
from ogrpo.policy.head import token_log_probs
from tests.policy.tiny import make_config, make_params, ragged_batch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("vocab_size", "name"), [(64, "reference"), (151_936, "chunked")])
def test_auto_goes_by_the_vocabulary(vocab_size, name):
    assert choose("auto", vocab_size) == name


@pytest.mark.parametrize("family", ["Qwen2", "Llama"], ids=["tied", "untied"])
def test_the_decoder_takes_them(family):
    config = make_config(family, num_layers=1)
    batch, params = ragged_batch(config), make_params(config)

    def values(log_probs_fn, params):
        return completion_log_probs_and_entropy(
            params, config, batch, 0.8, log_probs_fn=log_probs_fn
        )

    run = jax.jit(values, static_argnums=0)
    ours = run(partial(chunked_log_probs, width=4), params)
    plain = run(token_log_probs, params)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), ours, plain)
