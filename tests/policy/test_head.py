import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.policy.head import token_log_probs

HIDDEN = jax.random.normal(jax.random.key(0), (7, 4))
TABLE = jax.random.normal(jax.random.key(1), (9, 4))
IDS = jax.random.randint(jax.random.key(2), (7, 2), 0, 9)


@pytest.mark.parametrize("rows", [1, 3, 6])
def test_chunks_change_neither_values_nor_gradients(rows):
    def total(hidden, table, temperature, max_logits):
        out = token_log_probs(hidden, table, IDS, temperature, max_logits=max_logits)
        return jnp.sum(out.log_probs * jnp.arange(14.0).reshape(7, 2)) + jnp.sum(out.entropy)

    run = jax.jit(jax.value_and_grad(total, (0, 1, 2)), static_argnums=3)
    whole, chunked = (run(HIDDEN, TABLE, jnp.float32(0.7), most) for most in (63, 9 * rows))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), whole, chunked
    )


def test_chunks_bound_the_memory():
    hidden, table = jnp.zeros((512, 8)), jnp.zeros((1024, 8))
    ids = jnp.zeros((512, 1), jnp.int32)

    def temporary_bytes(max_logits):
        def total(hidden, table):
            return jnp.sum(
                token_log_probs(hidden, table, ids, jnp.float32(1), max_logits=max_logits).log_probs
            )

        compiled = jax.jit(jax.grad(total, (0, 1))).lower(hidden, table).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(1 << 15) < temporary_bytes(1 << 19) / 4
