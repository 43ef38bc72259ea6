import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ogrpo.core.aggregate import mean, token_total
from ogrpo.core.algorithms import ALGORITHMS, ENTROPY, with_parts
from ogrpo.core.trust_region import adaptive_clip
from ogrpo.learner.metrics import head_norm
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import (
    compute_in,
    gradient,
    jit_step,
    join_frozen,
    loss_inputs,
    make_update,
)
from ogrpo.setup.devices import make_policy_fn
from tests.learner import toy
from tests.policy.tiny import make_config, make_params


def numpy_loss(table, batch, knobs, *, temperature=1.0, drop=True):
    """Off-policy GRPO with centred advantages and sequence means, written out with loops."""
    n, g, _ = batch.completion_ids.shape
    total = 0.0
    for prompt in range(n):
        rewards = np.asarray(batch.rewards[prompt], np.float64)
        if drop and rewards.max() == rewards.min():
            continue
        row = table[int(batch.prompt_ids[prompt, -1])] / temperature
        log_pi = row - np.log(np.exp(row).sum())
        for member in range(g):
            mask = np.asarray(batch.completion_mask[prompt, member])
            losses = []
            for place in np.flatnonzero(mask):
                at = (prompt, member, int(place))
                log_prob = log_pi[int(batch.completion_ids[at])]
                old = float(batch.behavior_log_probs[at])
                center = np.exp(float(batch.proximal_log_probs[at]) - old)
                ratio, advantage = np.exp(log_prob - old), rewards[member] - rewards.mean()
                low, high = max(center - knobs["eps_low"], 0.0), center + knobs["eps_high"]
                gain = min(ratio * advantage, np.clip(ratio, low, high) * advantage)
                drift = float(batch.ref_log_probs[at]) - log_prob
                losses.append(knobs["beta"] * (np.expm1(drift) - drift) - gain)
            total += np.mean(losses)
    return total / (n * g)


@pytest.mark.parametrize(("temperature", "drop"), [(1.0, True), (0.7, False)])
def test_loss_is_that_of_a_formula_written_with_loops(temperature, drop):
    """Groups of equal rewards carry neither loss nor KL, or their KL."""
    batch, table = toy.make_batch(), np.asarray(toy.make_params()["table"], np.float64)
    expected = numpy_loss(table, batch, toy.KNOBS, temperature=temperature, drop=drop)
    _, metrics = toy.updated(batch, hypers(0.1, temperature, toy.KNOBS), mask_zero_variance=drop)
    np.testing.assert_allclose(metrics["loss"], expected, rtol=2e-6)


def test_gradient_step_descends_the_loss_written_with_loops():
    batch, params = toy.make_batch(), toy.make_params()
    table, rate, step = np.asarray(params["table"], np.float64), 0.5, 1e-5
    after, _ = toy.updated(batch, hypers(rate, 1.0, toy.KNOBS))
    moved = (table - np.asarray(after.params["table"], np.float64)) / rate
    for place in np.ndindex(table.shape):
        bump = np.zeros_like(table)
        bump[place] = step
        up, down = (numpy_loss(table + s * bump, batch, toy.KNOBS) for s in (1, -1))
        np.testing.assert_allclose(moved[place], (up - down) / (2 * step), rtol=2e-3, atol=2e-6)


# Each reduction, with numbers of microbatches and normalisers in turn.
@pytest.mark.parametrize(
    ("total", "microbatches", "count_masked"),
    [(total, (2, 4)[n // 2 % 2], bool(n % 2)) for n, total in enumerate(toy.TOTALS)],
)
def test_microbatches_add_up_to_the_full_batch(total, microbatches, count_masked):
    (whole, whole_metrics), (cut, cut_metrics) = (
        toy.updated(reduction=toy.TOTALS[total], microbatches=parts, count_masked=count_masked)
        for parts in (1, microbatches)
    )
    np.testing.assert_allclose(whole.params["table"], cut.params["table"], atol=1e-6)
    for name, value in whole_metrics.items():
        np.testing.assert_allclose(cut_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_changing_a_hyper_parameter_does_not_recompile():
    step, state = jit_step(toy.ADAM, toy.make_spec()), toy.make_state(toy.ADAM)
    update = join_frozen(step)
    for rate, temperature, eps in [(1e-3, 1.0, 0.2), (2e-3, 0.7, 0.3), (0.0, 1.1, 0.0)]:
        hyper = hypers(rate, temperature, {**toy.KNOBS, "eps_low": eps, "beta": eps})
        state, _ = update(state, toy.make_batch(), hyper)
    assert step._cache_size() == 1
    assert int(state.updates) == 3


def test_adam_is_optax_adamw():
    batch, hyper = toy.make_batch(), hypers(0.01, 1.0, toy.KNOBS)
    ours = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.1, max_grad_norm=0.05)
    state, _ = toy.updated(batch, hyper, optimizer=ours)
    params = toy.make_params()
    grads, aux = gradient(
        params, loss_inputs(batch, toy.make_spec(), hyper), hyper, toy.make_spec()
    )
    grads = jax.tree.map(lambda g: g / aux.total.count, grads)
    peer = optax.chain(
        optax.clip_by_global_norm(0.05),
        optax.adamw(0.01, b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.1),
    )
    with jax.numpy_dtype_promotion("standard"):
        direction, _ = peer.update(grads, peer.init(params), params)
    expected = optax.apply_updates(params, direction)
    np.testing.assert_allclose(state.params["table"], expected["table"], atol=1e-7)


def test_metrics_say_how_far_the_data_is():
    batch = toy.make_batch()
    output = toy.make_spec().policy_fn(toy.make_params(), batch, jnp.float32(1.0))
    mask = np.asarray(batch.completion_mask)
    log_ratio = np.asarray(output.log_probs - batch.behavior_log_probs)[mask]
    ratio = np.exp(log_ratio)
    expected = {
        "ess": ratio.sum() ** 2 / (ratio**2).sum() / ratio.size,
        "kl/mu_pi": np.mean(ratio - 1 - log_ratio),
        "ratio/max": ratio.max(),
        "entropy": np.asarray(output.entropy)[mask].mean(),
    }
    _, metrics = toy.updated(batch)
    assert {name: float(metrics[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert metrics["clipped"] == metrics["clipped/low"] + metrics["clipped/high"] > 0


@pytest.mark.parametrize(
    ("total", "count_masked"), [("token", True), ("sequence", True), ("group", False)]
)
def test_groups_without_variance_are_not_computed_and_the_update_stays_the_same(
    total, count_masked
):
    batch = toy.make_batch(n=6)
    zero_variance = jnp.asarray([True, False, True, False, True, True])
    rewards = jnp.where(zero_variance[:, None], 1.0, jnp.asarray([0.0, 1.0, 1.0])[None])
    batch = batch._replace(rewards=rewards)
    poisoned = batch._replace(  # were they computed, the table's row 4 would be nan
        prompt_ids=jnp.where(zero_variance[:, None], 4, jnp.minimum(batch.prompt_ids, 3))
    )

    def policy_fn(params, part, temperature):
        broken = jnp.where(part.prompt_ids[:, -1] == 4, jnp.nan, 1.0)[:, None, None]
        output = toy.make_spec().policy_fn(params, part, temperature)
        return output._replace(log_probs=output.log_probs * broken)

    changes = {"reduction": toy.TOTALS[total], "count_masked": count_masked}
    whole, _ = toy.updated(poisoned, **changes)
    skip = {"policy_fn": policy_fn, "microbatches": 3, "skip_zero_variance": True}
    skipped, metrics = toy.updated(poisoned, **changes, **skip)
    np.testing.assert_allclose(skipped.params["table"], whole.params["table"], atol=1e-6)
    assert all(np.isfinite(value) for value in metrics.values())
    np.testing.assert_allclose(metrics["zero_variance"], 4 / 6, rtol=1e-6)


@pytest.mark.parametrize("skip", [False, True])
def test_a_trust_region_is_measured_on_the_tokens_that_carry_loss(skip):
    after, _ = toy.updated(region_fn=toy.REGION, microbatches=2, skip_zero_variance=skip)
    whole, _ = toy.updated(region_fn=toy.REGION)
    np.testing.assert_allclose(after.region, whole.region, rtol=1e-6)


@pytest.mark.parametrize("changes", [{"microbatches": 1}, {"mask_zero_variance": False}])
def test_skipping_what_cannot_be_skipped_is_refused(changes):
    with pytest.raises(ValueError, match="skip_zero_variance"):
        toy.updated(**{"microbatches": 2, "skip_zero_variance": True, **changes})


def test_a_dual_variable_rises_while_the_policy_is_too_far_away():
    plain, metrics = toy.updated(mask_zero_variance=False)
    after, penalised = toy.updated(region_fn=toy.REGION, mask_zero_variance=False)
    expected = 0.25 + 0.5 * (float(metrics["kl/pi_mu"]) - 0.01)
    np.testing.assert_allclose(after.region, expected, rtol=1e-5)
    assert expected > 0.25
    distance = (float(penalised["loss"]) - float(metrics["loss"])) / 0.25
    assert distance > 0
    assert not np.allclose(after.params["table"], plain.params["table"], atol=1e-4)


def test_the_trust_regions_clip_takes_the_place_of_the_given_one():
    region_fn = partial(
        adaptive_clip, target=0.0, rate=0.1, initial=0.05, smallest=0.01, largest=0.5
    )
    after, _ = toy.updated(region_fn=region_fn)
    narrow = {**toy.KNOBS, "eps_low": 0.05, "eps_high": 0.05}
    expected, _ = toy.updated(hyper=hypers(1.0, 1.0, narrow))
    np.testing.assert_allclose(after.params["table"], expected.params["table"], atol=1e-6)
    np.testing.assert_allclose(after.region, 0.05 * np.exp(-0.1), rtol=1e-6)


TABLE, OTHER = {"weight": jnp.array([[3.0, 4.0]])}, {"weight": jnp.array([[12.0]])}


@pytest.mark.parametrize(
    ("grads", "norm"),
    [
        ({"embed_tokens": TABLE, "layers": OTHER}, 5.0),  # tied
        ({"embed_tokens": TABLE, "lm_head": OTHER}, 12.0),
        ({"layers": OTHER}, None),
        ((TABLE, OTHER), None),
    ],
)
def test_the_heads_norm_is_of_its_own_weights_or_of_those_it_shares(grads, norm):
    assert head_norm(grads).get("grad_norm/head") == norm


def gradient_of(algorithm, knobs, seed=0):
    """The gradient of the whole update."""
    numbers = algorithm.settings({"beta": 0.0, **knobs})
    spec = toy.make_spec(
        algorithm=algorithm, reads=algorithm.inputs(numbers), mask_zero_variance=False
    )
    hyper = hypers(0.1, 1.0, numbers)._replace(seed=jnp.uint32(seed))
    grads, aux = gradient(
        toy.make_params(), loss_inputs(toy.make_batch(), spec, hyper), hyper, spec
    )
    return grads["table"] / aux.total.count


def test_the_bonus_adds_the_gradient_of_the_mean_entropy_and_its_mask_keeps_the_top():
    base = with_parts(ALGORITHMS["grpo"], reduction="token")
    bonus = with_parts(base, bonus="entropy")
    assert ENTROPY in bonus.reads
    batch = toy.make_batch()

    def entropy(params):
        here = toy.policy_fn(params, batch, jnp.float32(1.0)).entropy
        return mean(token_total(here, batch.active_mask))

    added = gradient_of(bonus, {"entropy_coef": 0.3}) - gradient_of(base, {})
    expected = -0.3 * jax.grad(entropy)(toy.make_params())["table"]
    np.testing.assert_allclose(added, expected, rtol=1e-4, atol=1e-6)
    gated = gradient_of(with_parts(base, gate=["top_entropy"]), {"top_share": 0.2})
    moved = np.any(np.asarray(gated) != 0, axis=1)
    assert 0 < moved.sum() < np.any(np.asarray(gradient_of(base, {})) != 0, axis=1).sum()


def test_lots_are_drawn_by_the_updates_seed():
    knobs = {"share": 0.3, "cov_low": -9.0, "cov_high": 9.0}
    first, again, other = (gradient_of(ALGORITHMS["clip_cov"], knobs, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def table_policy(params, batch, temperature):
    """The toy, of a table in any dtype."""
    return toy.policy_fn({"table": params["table"].astype(jnp.float32)}, batch, temperature)


def descend(policy, params, rate, steps=1):
    """Plain gradient steps."""
    update = make_update(toy.GRADIENT, toy.make_spec(policy_fn=policy))
    state = init_state(jax.tree.map(jnp.copy, params), optax.identity())
    for _ in range(steps):
        state, _ = update(state, toy.make_batch(), hypers(rate, 1.0, toy.KNOBS))
    return state.params


@pytest.mark.slow
def test_the_update_is_that_of_float32_within_bfloat16():
    config = make_config("Qwen2")
    params, exact = make_params(config), make_policy_fn(config)
    moved = [
        jax.tree.map(lambda a, b: np.asarray(a - b), descend(policy, params, 1.0), params)
        for policy in (exact, compute_in(exact, jnp.bfloat16))
    ]
    for full, rounded in zip(*map(jax.tree.leaves, moved), strict=True):
        assert rounded.dtype == np.float32
        assert np.linalg.norm(full - rounded) < 0.05 * np.linalg.norm(full)
        assert np.any(full != rounded)


@pytest.mark.slow
def test_steps_too_small_for_bfloat16_add_up():
    rate, half = 1e-4, compute_in(table_policy, jnp.bfloat16)
    coarse = jax.tree.map(lambda x: x.astype(jnp.bfloat16), toy.make_params())
    master = jax.tree.map(lambda x: x.astype(jnp.float32), coarse)
    once, often = (descend(half, master, rate, steps)["table"] for steps in (1, 500))
    touched = np.unique(np.asarray(toy.make_batch().prompt_ids[1:, -1]))
    assert np.all(once[touched] != master["table"][touched])
    np.testing.assert_array_equal(once.astype(jnp.bfloat16), coarse["table"])
    assert np.any(often.astype(jnp.bfloat16) != coarse["table"])
    without_master = descend(table_policy, coarse, rate, 500)["table"]
    np.testing.assert_array_equal(without_master, coarse["table"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and calls glibc")
def test_memory_that_was_freed_goes_back_after_a_long_compilation_alone():
    worker = Path(__file__).parent / "freed_worker.py"
    done = subprocess.run([sys.executable, worker], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, short, after = map(int, re.findall(r"\d+", done.stdout))
    assert abs(before - short) < 20
    assert before - after > 200, done.stdout


@pytest.mark.parametrize(
    ("total", "microbatches", "max_grad_norm"),
    [("token", 1, 0.05), ("sequence", 2, 0.05), ("group", 1, 1e9)],
)
def test_a_large_models_update_is_that_of_a_small_one(
    total, microbatches, max_grad_norm, monkeypatch
):
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=max_grad_norm)
    spec = {"reduction": toy.TOTALS[total], "microbatches": microbatches}

    def at(large):
        monkeypatch.setattr("ogrpo.learner.state.LARGE", large)
        return toy.updated(hyper=hypers(0.1, 0.8, toy.KNOBS), optimizer=optimizer, **spec)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), at(0), at(1 << 24))
