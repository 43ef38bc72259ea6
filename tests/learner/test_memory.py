import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ogrpo.learner import state
from ogrpo.learner.state import adam, apply_gradient, hypers, init_state
from tests.learner.toy import KNOBS, TOTALS, updated

WORKER = Path(__file__).parent / "freed_worker.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and calls glibc")
def test_memory_that_was_freed_goes_back_after_a_long_compilation_alone():
    done = subprocess.run([sys.executable, WORKER], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, short, after = map(int, re.findall(r"\d+", done.stdout))
    assert abs(before - short) < 20
    assert before - after > 200, done.stdout


def test_a_large_models_optimizer_holds_no_second_copy_of_the_gradient(monkeypatch):
    monkeypatch.setattr(state, "LARGE", 0)
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
    ("total", "microbatches", "max_grad_norm"),
    [("token", 1, 0.05), ("sequence", 2, 0.05), ("group", 1, 1e9)],
)
def test_a_large_models_update_is_that_of_a_small_one(
    total, microbatches, max_grad_norm, monkeypatch
):
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=max_grad_norm)
    recipe = {"reduction": TOTALS[total], "microbatches": microbatches}

    def at(large):
        monkeypatch.setattr(state, "LARGE", large)
        return updated(hyper=hypers(0.1, 0.8, KNOBS), optimizer=optimizer, **recipe)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), at(0), at(1 << 24))
