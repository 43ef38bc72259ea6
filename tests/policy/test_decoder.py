import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.policy import completion_log_probs, decoder, init_params
from ogrpo.policy.decoder import keep_nothing, param_shapes, product, unstack
from ogrpo.policy.log_probs import run_prompt
from ogrpo.policy.params import int8_weights, round_to_int8
from tests.policy.tiny import FAMILIES, make_config, make_params, ragged_batch

KEY = jax.random.key(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_plain_dicts_of_the_announced_shapes(family):
    config = make_config(family)
    params = init_params(config, KEY)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, param_shapes(config))
    assert params["layers"]["mlp"]["down_proj"]["weight"].shape == (2, 16, 24)
    assert ("bias" in params["layers"]["self_attn"]["q_proj"]) == (family == "Qwen2")
    assert ("q_norm" in params["layers"]["self_attn"]) == (family == "Qwen3")
    assert ("lm_head" in params) == (family == "Llama")
    path, leaf = jax.tree_util.tree_leaves_with_path(init_params(config, KEY, jnp.bfloat16))[0]
    assert isinstance(leaf, jax.Array)
    assert leaf.dtype == jnp.bfloat16
    assert all(isinstance(key, jax.tree_util.DictKey) for key in path)


def test_24_layers_compile_as_one():
    ids, mask = jnp.zeros((1, 4), jnp.int32), jnp.ones((1, 4), bool)

    def program_size(layers):
        config = make_config(num_layers=layers)
        traced = jax.jit(lambda p: run_prompt(p, config, ids, mask)[0]).lower(param_shapes(config))
        return len(traced.as_text().splitlines())

    assert program_size(24) == program_size(2)


def test_unstacked_layers_share_their_stack_and_outlive_it():
    stack = jnp.arange(6 * 64, dtype=jnp.float32).reshape(6, 64)
    expected = np.array(stack)
    layers = unstack({"layers": {"weight": stack}})["layers"]
    start = stack.unsafe_buffer_pointer()
    addresses = [layer["weight"].unsafe_buffer_pointer() for layer in layers]
    assert addresses == [start + 64 * 4 * layer for layer in range(6)]
    jax.block_until_ready(jax.jit(lambda x: x * 0, donate_argnums=0)(stack))
    del stack
    for layer, row in zip(layers, expected, strict=True):
        np.testing.assert_array_equal(layer["weight"], row)


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
def test_long_rows_go_through_the_mlp_in_parts(dtype, monkeypatch):
    config = make_config("Qwen2")
    params = init_params(config, jax.random.key(0), dtype)
    batch = ragged_batch(config)

    def total(params):
        values = completion_log_probs(params, config, batch, 0.8, keep_fn=keep_nothing)
        return jnp.sum(jnp.sin(values))

    whole = jax.jit(jax.value_and_grad(total))(params)
    loops = str(jax.make_jaxpr(total)(params)).count("scan[")
    monkeypatch.setattr(decoder, "MANY_UNITS", 3 * 7 * config.intermediate_size)
    parts = jax.jit(jax.value_and_grad(lambda params: total(params)))(params)
    assert str(jax.make_jaxpr(lambda params: total(params))(params)).count("scan[") > loops
    close = 1e-5 if dtype == jnp.float32 else 2e-2
    for actual, expected in zip(jax.tree.leaves(parts), jax.tree.leaves(whole), strict=True):
        assert actual.dtype == expected.dtype
        scale = max(1.0, float(jnp.max(jnp.abs(expected))))
        wide = actual.astype(jnp.float32), expected.astype(jnp.float32)
        np.testing.assert_allclose(*wide, atol=close * scale)


# Products of rows with a weight, whichever operand goes left, against float64, gradients too.
# Above and below what goes left: 256 rows, weights of 65,536 entries.
ROWS = (1, 7, 256, 257, 600)
WEIGHTS = ((300, 320), (31, 17))
CLOSE = ((jnp.float32, 1e-6), (jnp.bfloat16, 8e-3))


# Pairwise: each number of rows with each shape and each type, each shape with each type.
@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "close"),
    [
        (rows, WEIGHTS[(place + narrow) % 2], *CLOSE[narrow])
        for place, rows in enumerate(ROWS)
        for narrow in range(2)
    ],
)
def test_value_and_gradients_are_those_of_float64(rows, shape, dtype, close):
    rng, sizes = np.random.default_rng(rows), ((rows, shape[1]), shape, (rows, shape[0]))
    x, weight, cotangent = (jnp.asarray(rng.normal(size=size), dtype) for size in sizes)
    y, pull = jax.vjp(jax.jit(product), x, weight)
    d_x, d_weight = pull(cotangent)
    wide_x, wide_weight, wide = (np.asarray(a, np.float64) for a in (x, weight, cotangent))
    for actual, expected in (
        (y, wide_x @ wide_weight.T),
        (d_x, wide @ wide_weight),
        (d_weight, wide.T @ wide_x),
    ):
        assert actual.dtype == dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(np.asarray(actual, np.float64), expected, atol=close * scale)


def test_a_row_has_at_most_255_levels_and_half_a_step_of_error():
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(2, 7, 500)).astype(np.float32) * np.geomspace(1e-3, 1e2, 7)[:, None]
    weight[0, 3] = 0.0
    rounded = np.asarray(round_to_int8(jnp.asarray(weight)))
    scale = np.abs(weight).max(-1, keepdims=True) / 127
    assert (np.abs(rounded - weight) <= scale * 0.5001).all()
    levels = rounded / np.where(scale > 0, scale, 1)
    np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
    assert np.abs(levels).max() == pytest.approx(127)
    np.testing.assert_array_equal(rounded[0, 3], 0.0)
    assert round_to_int8(jnp.asarray(weight, jnp.bfloat16)).dtype == jnp.bfloat16


@pytest.mark.parametrize("family", FAMILIES)
def test_matrices_are_rounded_and_norms_and_biases_stay(family):
    params = make_params(make_config(family))
    before = jax.tree_util.tree_leaves_with_path(params)
    after = jax.tree.leaves(int8_weights(params))
    for (path, leaf), rounded in zip(before, after, strict=True):
        name = jax.tree_util.keystr(path)
        kept = "norm" in name or "bias" in name
        assert bool((leaf == rounded).all()) == kept, name
