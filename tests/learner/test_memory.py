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

from ogrpo.core import aggregate
from ogrpo.learner import state
from ogrpo.learner.state import adam, apply_gradient, clip_by_global_norm, hypers, init_state
from ogrpo.learner.update import make_update
from tests.learner.toy import make_batch, make_params, make_recipe

WORKER = Path(__file__).parent / "freed_worker.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and calls glibc")
def test_memory_that_was_freed_goes_back_after_a_long_compilation_alone():
    done = subprocess.run([sys.executable, WORKER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, short, after = map(int, re.findall(r"\d+", done.stdout))
    assert abs(before - short) < 20
    assert before - after > 200, done.stdout


@pytest.fixture
def all_large(monkeypatch):
    monkeypatch.setattr(state, "LARGE", 0)


@pytest.mark.parametrize("size", [0.01, 10.0])
def test_clipping_large_models_is_that_of_optax(size, all_large):
    rng = np.random.default_rng(0)
    tree = {"a": rng.normal(0, size, (40, 30)), "b": rng.normal(0, size, 7)}
    grads = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
    ours, theirs = (
        transform.update(grads, transform.init(grads))[0]
        for transform in (clip_by_global_norm(1.3), optax.clip_by_global_norm(1.3))
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=3e-7), ours, theirs)
    assert (size > 1) == (float(optax.tree.norm(ours)) < float(optax.tree.norm(grads)))


def test_a_large_models_optimizer_holds_no_second_copy_of_the_gradient(all_large):
    weights = {name: jax.ShapeDtypeStruct((1024, 512), jnp.float32) for name in "abcd"}
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    shapes = jax.eval_shape(lambda w: init_state(w, optimizer), weights)
    rate = hypers(0.1, 1.0, {}).learning_rate

    def step(before, rows):
        grads = jax.tree.map(lambda w: rows.T @ (rows @ w), before.params)
        return apply_gradient(before, grads, optimizer, rate)

    rows = jax.ShapeDtypeStruct((8, 1024), jnp.float32)
    compiled = jax.jit(step, donate_argnums=0).lower(shapes, rows).compile()
    held = compiled.memory_analysis().temp_size_in_bytes
    assert held < 1.5 * sum(4 * w.size for w in weights.values())


@pytest.mark.parametrize(
    ("total", "microbatches"), [("token_total", 1), ("sequence_total", 2), ("group_total", 1)]
)
def test_a_large_models_update_is_that_of_a_small_one(microbatches, total, monkeypatch):
    recipe = make_recipe(reduction=getattr(aggregate, total), microbatches=microbatches)
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=0.05)
    knobs = hypers(0.1, 0.8, {"eps_low": 0.2, "eps_high": 0.3, "beta": 0.1})

    def updated(large):
        monkeypatch.setattr(state, "LARGE", large)
        before = init_state(make_params(), optimizer)
        after, metrics = make_update(optimizer, recipe)(before, make_batch(), knobs)
        return after.params, after.opt_state, metrics

    close = partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7)
    jax.tree.map(close, updated(0), updated(1 << 24))
