"""The study of estimators' errors: its estimates of errors on what is known, and its cells."""

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.grid.cell import check_honest
from experiments.variance.along import moments, value_errors
from experiments.variance.study import VarianceStudy

pytestmark = pytest.mark.slow


def test_squared_bias_and_variance_are_estimated_without_bias():
    rng = np.random.default_rng(1)
    shift, scale, prompts, size = np.array([0.0, 0.3]), np.array([1.0, 2.0]), 16, 5
    means = {"bias2": [], "variance": []}
    for _ in range(400):
        between = rng.normal(size=(prompts, 1, size))  # what differs between prompts
        noise = rng.normal(size=(prompts, 2, size)) * scale[:, None]
        truth = between[:, 0] + rng.normal(size=(prompts, size))
        drawn = between + shift[:, None] + noise
        got = moments(jnp.asarray(drawn, jnp.float32), jnp.asarray(truth, jnp.float32))
        for name, values in means.items():
            values.append(np.asarray(got[name]))
    bias2, variance = (np.array(values) for values in means.values())
    error = bias2.std(0) / np.sqrt(len(bias2))
    assert np.all(np.abs(bias2.mean(0) - size * shift**2) < 4 * error)
    np.testing.assert_allclose(variance.mean(0), size * (1 + scale**2), rtol=0.05)


def test_a_cap_from_the_root_has_the_least_error_on_the_half_that_it_was_found_on():
    rng = np.random.default_rng(2)
    half = rng.lognormal(sigma=1.0, size=200)
    ratios = np.repeat(half / half.mean(), 2)  # both halves are the same
    rewards = (ratios > 1.5).astype(np.float32)
    errors = value_errors(ratios, rewards, 16)
    assert errors["tau/root"] == pytest.approx(errors["tau/best"], rel=1e-6)
    assert errors["mse/root"] == pytest.approx(errors["mse/best"], rel=1e-9)
    assert errors["mse/best"] < min(errors[f"mse/{name}"] for name in ("plain", "proposed", "none"))


def test_its_cells_are_runs_of_every_rate_and_without_rows_there_is_no_section():
    study = VarianceStudy()
    cells = [cell for stage in study.stages() for cell in stage([])]
    check_honest(cells, quick=False)
    assert [cell.role for cell in cells].count("report") == 2 * 5
    assert {cell.config.train.optimizer.learning_rate for cell in cells} == set(study.rates)
    assert study.report([]) == []
