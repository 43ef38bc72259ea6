"""What the benchmark counts and compares; not how fast anything is."""

from argparse import Namespace

import jax
import numpy as np
import pytest

from ogrpo.kernels import timing
from ogrpo.kernels.log_probs import benchmark

pytestmark = pytest.mark.slow

ARGS = Namespace(rows=4, width=16, vocabulary=benchmark.PRODUCT, dtype="bfloat16", repeats=1)


def test_flops_are_counted_as_it_says():
    counted = {t.label: (t.flops, t.again) for t in benchmark.programs(ARGS)}
    once = 2 * 4 * 16 * benchmark.PRODUCT
    assert counted["products alone"] == (3 * once, 0)
    assert counted["chunked, nothing kept, forward"] == (once, 0)
    assert counted["chunked, nothing kept, both"] == (4 * once, once)
    assert counted["chunked, all kept, both"] == (3 * once, 0)
    assert counted["reference, both"] == (3 * once, 0)
    assert counted["policy's default, both"] == (3 * once, 0)  # few logits: all are kept


def test_errors_are_against_float64():
    inputs = benchmark.make_inputs(ARGS, 4, 64)
    kernel = benchmark.VERSIONS["chunked, all kept"][0]

    def half_off(*arguments):
        return jax.tree.map(lambda x: 1.5 * x, kernel(*arguments))

    assert max(benchmark.errors(kernel, inputs)) < 1e-2
    np.testing.assert_allclose(benchmark.errors(half_off, inputs), 0.5, rtol=3e-2)


def test_a_table_is_markdown():
    assert timing.table("a | b", [["1", "2"]]) == "| a | b |\n|---|---|\n| 1 | 2 |"
