import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from ogrpo.learner import state
from ogrpo.learner.state import adam, hypers
from tests.learner.toy import KNOBS, TOTALS, updated

WORKER = Path(__file__).parent / "freed_worker.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and calls glibc")
def test_memory_that_was_freed_goes_back_after_a_long_compilation_alone():
    done = subprocess.run([sys.executable, WORKER], capture_output=True, text=True)
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
    recipe = {"reduction": TOTALS[total], "microbatches": microbatches}

    def at(large):
        monkeypatch.setattr(state, "LARGE", large)
        return updated(hyper=hypers(0.1, 0.8, KNOBS), optimizer=optimizer, **recipe)

    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), at(0), at(1 << 24))
