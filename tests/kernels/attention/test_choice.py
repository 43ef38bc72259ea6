"""The choice of an attention: by name, by the number of keys, through the packed decoder."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.kernels.attention import LEAST_KEYS, describe, kernel
from ogrpo.kernels.attention.blocked import blocked_attention, tile_for
from ogrpo.kernels.log_probs import chunked_log_probs
from ogrpo.policy.attention import KeySegment, causal
from ogrpo.policy.flops import Tile
from ogrpo.policy.packing import packed_log_probs_and_entropy
from tests.policy.test_packing import make_groups, packed
from tests.policy.tiny import make_config, make_params

pytestmark = pytest.mark.slow


def calls_blocks(name, keys):
    of = jax.ShapeDtypeStruct
    q, k, seen = of((1, 1, 2, 2, 4), "float32"), of((1, keys, 1, 4), "float32"), jnp.ones((1, 1, 2))
    program = jax.make_jaxpr(lambda q, k: kernel(name)(q, [KeySegment(k, k, seen.astype(int))]))
    return "_attend" in str(program(q, k))


def test_auto_goes_by_the_keys():
    assert [calls_blocks("auto", keys) for keys in (LEAST_KEYS - 1, LEAST_KEYS)] == [False, True]
    assert not calls_blocks("plain", LEAST_KEYS)
    assert calls_blocks("blocked", 1)


def test_a_run_is_told_what_no_one_has_measured():
    assert describe("auto", "cpu") == "blocked from 128 keys on, plain below"
    assert describe("plain", "gpu") == "plain"
    shown = describe("blocked", "gpu")
    assert shown.endswith("1024 keys a step, in XLA, not yet measured on a gpu")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_blocks_are_lowered_for_accelerators_with_the_prompt_once(platform):
    n, g, p, t, h, k, d = 2, 4, 160, 96, 4, 2, 16
    of = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    shapes = (of((n, g, t, h, d)), *[of((n, p, k, d))] * 2, *[of((n, g, t, k, d))] * 2)

    def total(q, pk, pv, keys, values):
        seen = jnp.full((n, g, t), p, jnp.int32)
        segment = KeySegment(keys, values, causal(jnp.ones((n, g, t), bool)))
        mixed = kernel("auto", blocked=on_devices)(q, [KeySegment(pk, pv, seen), segment])
        return jnp.sum(mixed.astype(jnp.float32))

    on_devices = partial(blocked_attention, tile=tile_for("gpu"))
    traced = jax.jit(jax.grad(total, range(5))).trace(*shapes)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.while" in text
    assert f"tensor<{n}x{k}x{p}x{d}x" in text
    for repeated in (f"{n}x{g}x{p}x{k}x{d}", f"{n * g}x{k}x{p}x{d}", f"{n * g}x{p}x{k}x{d}"):
        assert f"tensor<{repeated}x" not in text


def test_the_packed_decoder_takes_both_kernels():
    """The padded one does in the updates of `tests/learner/mesh_worker.py`."""
    config = make_config("Llama")
    params, rows = make_params(config), packed(make_groups(3, 4, 9, 40, seed=1))[2]
    kernels = {
        "attention_fn": partial(blocked_attention, tile=Tile(5, 3)),
        "log_probs_fn": partial(chunked_log_probs, width=4),
    }

    def total(kernels, params):
        out = packed_log_probs_and_entropy(params, config, rows, 0.8, **kernels)
        return jnp.sum(jnp.sin(out.log_probs) + 0.3 * out.entropy), out

    actual, expected = (
        jax.jit(jax.grad(partial(total, parts), has_aux=True))(params) for parts in (kernels, {})
    )

    def check(fast, plain):  # a sum of float32 errs by its largest terms
        scale = max(1, np.abs(plain).max())
        np.testing.assert_allclose(fast, plain, rtol=2e-5, atol=3e-6 * scale)

    jax.tree.map(check, actual, expected)
