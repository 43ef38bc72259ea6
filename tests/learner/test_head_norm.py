"""The gradient norm of the output head, beside that of everything."""

import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner.metrics import head_norm

TABLE = {"weight": jnp.array([[3.0, 4.0]])}
OTHER = {"weight": jnp.array([[12.0]])}


@pytest.mark.parametrize(
    ("grads", "norm"),
    [
        ({"embed_tokens": TABLE, "layers": OTHER}, 5.0),  # tied
        ({"embed_tokens": TABLE, "lm_head": OTHER}, 12.0),
    ],
)
def test_it_is_of_the_heads_own_weights_or_of_those_it_shares(grads, norm):
    np.testing.assert_allclose(head_norm(grads)["grad_norm/head"], norm)


@pytest.mark.parametrize("grads", [{"layers": OTHER}, (TABLE, OTHER)])
def test_where_no_head_is_trained_there_is_none(grads):
    assert head_norm(grads) == {}
