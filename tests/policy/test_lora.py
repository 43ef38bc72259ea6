"""Adapters against the weights that they stand for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner.state import join
from ogrpo.policy import completion_log_probs, lora
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.packing import packed_log_probs_and_entropy
from ogrpo.policy.params import param_axes
from tests.policy.test_packing import make_groups, packed
from tests.policy.tiny import (
    by_name,
    make_case,
    make_config,
    make_params,
    ragged_batch,
    run_sampler,
)

pytestmark = pytest.mark.slow

ALL = lora.TARGETS["all"]
# Every choice of projections, each with another family.
PAIRS = (("Qwen2", "all"), ("Qwen3", "attention"), ("Llama", "mlp"))


def adapters(params, *, rank=3, alpha=6.0, targets=ALL, seed=0, noise=0.3):
    """A split whose adapters do something: B is not 0."""
    trained, frozen = lora.split(
        params, jax.random.key(seed), rank=rank, alpha=alpha, targets=targets
    )
    rng = np.random.default_rng(seed)
    moved = jax.tree.map(lambda x: x + jnp.asarray(rng.normal(0, noise, x.shape), x.dtype), trained)
    return lora.SplitParams(moved, frozen)


@pytest.mark.parametrize(
    ("family", "choice", "rank", "alpha"),
    [(*pair, 1 + n, (0.5, 4.0)[n % 2]) for n, pair in enumerate(PAIRS)],
)
def test_fresh_adapters_are_the_policy_beneath_them_and_others_their_merged_one(
    family, choice, rank, alpha
):
    config, params, batch = make_case(family)
    options = {"rank": rank, "alpha": alpha, "targets": lora.TARGETS[choice]}
    whole = join(*adapters(params, **options, seed=rank, noise=0.1))
    fresh = join(*lora.split(params, jax.random.key(0), **options))
    adapted, merged, unmoved, plain = (
        completion_log_probs(p, config, batch, 0.9)
        for p in (whole, lora.merge(whole), fresh, params)
    )
    np.testing.assert_allclose(unmoved, plain, atol=2e-6)
    np.testing.assert_allclose(adapted, merged, atol=2e-5)
    assert np.max(np.abs(adapted - plain)) > 1e-3
    before, after = by_name(params), by_name(lora.merge(whole))
    assert before.keys() == after.keys()
    same = {name for name, leaf in after.items() if leaf is before[name]}
    assert len(before) - len(same) == len(options["targets"])


def test_packed_rows_and_the_sampler_take_adapters():
    config, groups = make_config(), make_groups(4, 3, 5, 40, seed=1)
    params = make_params(config)
    whole = join(*adapters(params, noise=0.1))
    merged, rows = lora.merge(whole), packed(groups, microbatches=2)[2]
    packs = [packed_log_probs_and_entropy(p, config, rows, 1.0) for p in (whole, merged, params)]
    np.testing.assert_allclose(packs[0].log_probs, packs[1].log_probs, atol=2e-5)
    assert np.max(np.abs(packs[0].log_probs - packs[2].log_probs)) > 1e-3
    batch = ragged_batch(config)
    drawn = [run_sampler(config, p, batch, temperature=1.0) for p in (whole, merged)]
    np.testing.assert_array_equal(drawn[0].token_ids, drawn[1].token_ids)
    np.testing.assert_allclose(drawn[0].log_probs, drawn[1].log_probs, atol=2e-5)


def dtypes(tree):
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


def test_float32_adapters_beside_bfloat16_weights():
    config, batch = make_config(), ragged_batch(make_config())
    params = make_params(config, dtype=jnp.bfloat16)
    trained, frozen = adapters(params, noise=0.1)
    whole, wide = join(trained, frozen), jax.tree.map(jnp.float32, join(trained, frozen))
    merged = lora.merge(whole)
    assert (dtypes(trained), dtypes(merged)) == ({"float32"}, {"bfloat16"})
    exact, adapted, rounded, plain = (
        completion_log_probs(p, config, batch, 0.9) for p in (wide, whole, merged, params)
    )
    np.testing.assert_allclose(adapted, exact, atol=0.15)
    np.testing.assert_allclose(rounded, exact, atol=0.15)
    assert np.max(np.abs(exact - plain)) > 0.5
    grads = jax.grad(lambda t: jnp.sum(completion_log_probs(join(t, frozen), config, batch, 0.9)))
    assert dtypes(jax.eval_shape(grads, trained)) == {"float32"}


@pytest.mark.parametrize(("family", "choice"), PAIRS)
def test_gradients_are_the_full_gradient_seen_through_the_adapters(family, choice):
    """dL/dB = scale dL/dW A^T and dL/dA = scale B^T dL/dW, at the merged W."""
    config, targets = make_config(family), lora.TARGETS[choice]
    batch = ragged_batch(config)
    trained, frozen = adapters(make_params(config), rank=2, alpha=5.0, targets=targets, noise=0.1)

    def total(params):
        return jnp.sum(jnp.sin(completion_log_probs(params, config, batch, 0.9)))

    grads = jax.grad(lambda t: total(join(t, frozen)))(trained)
    full = by_name(jax.grad(total)(lora.merge(join(trained, frozen))))
    adapter_names, full_names = by_name(trained), by_name(grads)
    assert len(full_names) == 2 * len(targets)
    for name in (name.removesuffix(".lora.a") for name in adapter_names if name.endswith(".a")):
        a, b, d_w = (np.float64(x) for x in (
            adapter_names[f"{name}.lora.a"], adapter_names[f"{name}.lora.b"], full[f"{name}.weight"]))  # fmt: skip
        d_b, d_a = 2.5 * d_w @ a.swapaxes(1, 2), 2.5 * b.swapaxes(1, 2) @ d_w
        np.testing.assert_allclose(full_names[f"{name}.lora.b"], d_b, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(full_names[f"{name}.lora.a"], d_a, rtol=1e-3, atol=1e-4)


def test_a_split_shares_the_weights_and_depends_on_its_key():
    params = make_params(make_config())
    one, same, other = (
        lora.split(params, jax.random.key(k), rank=4, alpha=8.0, targets=ALL) for k in (0, 0, 1)
    )
    before, after = by_name(params), by_name(one.frozen)
    assert all(after[name] is leaf for name, leaf in before.items())
    assert {name for name in after if name not in before} == {
        f"layers.{'mlp' if name in lora.TARGETS['mlp'] else 'self_attn'}.{name}.lora.scale"
        for name in ALL
    }
    first, again, others = (by_name(x.trained) for x in (one, same, other))
    for name, leaf in first.items():
        np.testing.assert_array_equal(leaf, again[name])
        inputs = leaf.shape[-1]
        if name.endswith(".a"):
            assert leaf.shape[1] == 4
            assert 0.8 / inputs**0.5 < np.max(np.abs(leaf)) <= 1 / inputs**0.5
            assert np.max(np.abs(leaf - others[name])) > 0
        else:
            assert not leaf.any()
    leaves = map(jax.tree.leaves, (lora.merge(params), params))
    assert all(merged is leaf for merged, leaf in zip(*leaves, strict=True))


@pytest.mark.parametrize("choice", sorted(lora.TARGETS))
def test_axes_are_those_of_the_trees(choice):
    config, targets = make_config(), lora.TARGETS[choice]
    split = partial(lora.split, rank=3, alpha=1.0, targets=targets)
    shapes = jax.eval_shape(split, param_shapes(config), jax.random.key(0))
    axes = lora.split_axes(param_axes(config), targets)
    for tree, named in zip(shapes, axes, strict=True):
        sizes = {name: len(leaf.shape) for name, leaf in by_name(tree).items()}
        assert sizes == {name: len(leaf.axes) for name, leaf in by_name(named).items()}
    cut = {axis.name for leaf in jax.tree.leaves(axes.trained) for axis in leaf.axes}
    assert "rank" in cut


def test_wrong_adapters_are_refused():
    params = make_params(make_config())
    with pytest.raises(ValueError, match="rank is 0: an adapter needs at least 1"):
        lora.split(params, jax.random.key(0), rank=0, alpha=1.0, targets=ALL)
    for targets in (("q_proj", "w_q"), ()):
        with pytest.raises(ValueError, match=r"targets \[.*\]: choose from q_proj, k_proj"):
            lora.split(params, jax.random.key(0), rank=1, alpha=1.0, targets=targets)
