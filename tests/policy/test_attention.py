import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.policy.attention import KeySegment, attend, causal

N, G, T, H, K, D, P = 2, 3, 4, 6, 2, 5, 7


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dense(queries, keys, values, mask):
    """Attention by loops in float64: queries [T, H, D], keys [S, K, D], mask [T, S]."""
    out = np.zeros(queries.shape)
    for t, h in np.ndindex(queries.shape[:2]):
        k = h // (H // K)
        scores = keys[:, k].astype(np.float64) @ queries[t, h] / np.sqrt(D)
        weights = np.where(mask[t], np.exp(scores - scores.max()), 0)
        out[t, h] = weights @ values[:, k] / weights.sum()
    return out


def test_segments_are_one_softmax_over_their_union():
    queries = draw(0, N, G, T, H, D)
    shared = draw(1, 2, N, P, K, D)
    private = draw(2, 2, N, G, T, K, D)
    lengths = np.array([P, 3])
    seen = np.arange(P) < lengths[:, None]
    prompts = KeySegment(*jnp.asarray(shared), jnp.asarray(lengths)[:, None, None])
    completions = KeySegment(*jnp.asarray(private), causal(jnp.ones((1, 1, T), bool)))
    out = attend(jnp.asarray(queries), [prompts, completions])
    for n, g in np.ndindex(N, G):
        keys, values = (np.concatenate([shared[i, n], private[i, n, g]]) for i in (0, 1))
        mask = np.concatenate([np.tile(seen[n], (T, 1)), np.tril(np.ones((T, T), bool))], axis=1)
        np.testing.assert_allclose(out[n, g], dense(queries[n, g], keys, values, mask), atol=1e-5)


def test_padding_sees_nothing_and_nobody_looks_ahead():
    mask = jnp.asarray([[True, True, True], [True, True, False]])
    np.testing.assert_array_equal(causal(mask), [[1, 2, 3], [1, 2, 0]])


def test_masked_keys_have_no_weight_and_no_gradient():
    queries, keys, values = (jnp.asarray(draw(i, 1, 1, 2, 2, 4)) for i in range(3))
    seen = jnp.asarray([[[1, 1]]])

    def total(keys, values):
        return jnp.sum(jnp.square(attend(queries, [KeySegment(keys, values, seen)])))

    by_keys, by_values = jax.grad(total, (0, 1))(keys, values)
    assert np.all(by_keys[:, :, 1] == 0)
    assert np.all(by_values[:, :, 1] == 0)
    assert np.all(by_values[:, :, 0] != 0)
    huge = values.at[:, :, 1].set(1e30)
    plain, spoilt = (attend(queries, [KeySegment(keys, x, seen)]) for x in (values, huge))
    np.testing.assert_array_equal(spoilt, plain)


def test_a_query_that_sees_nothing_is_finite_with_finite_gradients():
    queries, keys, values = (jnp.asarray(draw(i, 1, 1, 2, 2, 4)) for i in range(3))
    segment = KeySegment(keys, values, jnp.zeros((1, 1, 2), jnp.int32))
    out, gradient = jax.value_and_grad(lambda q: jnp.sum(attend(q, [segment])))(queries)
    assert np.isfinite(out)
    assert np.all(gradient == 0)


def test_scores_are_float32_for_bfloat16_inputs():
    # In bfloat16 the two scores, 256 and 257, would be equal and the weights 1/2 each.
    queries, keys, values = (
        jnp.asarray(rows, jnp.bfloat16)[None, :, None]
        for rows in ([[16.0, 16.0]], [[16.0, 0.0], [16.0, 0.0625]], [[0.0, 0.0], [1.0, 1.0]])
    )
    out = attend(queries[None], [KeySegment(keys, values, jnp.full((1, 1, 1), 2))])
    expected = 1 / (1 + np.exp(-1 / np.sqrt(2)))
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32).ravel(), [expected] * 2, atol=4e-3)
