"""The `bounds` study on a scale of seconds: what is exact must hold, and the judge can fail it.

`variance` beside it: its estimates of errors on what is known, and its cells.
"""

from contextlib import closing
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from experiments.bounds.exact import (
    Bandit,
    Constants,
    bandit_learner,
    bandit_rewards,
    facts,
    trajectory,
)
from experiments.bounds.measure import bandit, plug_in, sampled
from experiments.bounds.study import (
    PLOTS,
    TOLERANCE,
    BoundsStudy,
    claims_table,
    make_claims,
    of_part,
)
from experiments.grid.cell import check_honest
from experiments.grid.train import Bench
from experiments.variance.along import moments, value_errors
from experiments.variance.study import VarianceStudy
from ogrpo.config.train import Data, WarmStart
from tests.run.rewards import ODD

pytestmark = pytest.mark.slow

SMALL = BoundsStudy(bandit=Bandit(steps=9, v=4, prompts=4, answers=5, draws=64))


@pytest.fixture(scope="module")
def exact():
    """Returns the records of a seed's exact cell."""
    cells = replace(SMALL, seeds=(0, 1, 2, 3, 4)).cells()
    cell = next(cell for cell in cells if (cell.label, cell.seed) == ("bandit", 0))
    return bandit(cell, None)["records"]


def moves():
    update, state = bandit_learner(SMALL.bandit, SMALL.train_config(0))
    return [*trajectory(SMALL.bandit, update, state, clip_eps=0.2, seed=0)]


def test_every_exact_inequality_holds_at_every_step(exact):
    claims = [c for c in make_claims(exact, SMALL.constants.delta) if c.where == "bandit"]
    assert len([c for c in claims if c.kind == "exact"]) == 7
    assert all(claim.of > 0 for claim in claims)
    assert [claim.text for claim in claims if claim.slack < -TOLERANCE] == []


def test_the_gain_is_the_change_of_the_mean_reward(exact):
    rewards, made = bandit_rewards(SMALL.bandit), moves()
    policies = [*(move.before for move in made), made[-1].after]
    values = [(policy * rewards).sum(-1).mean() for policy in policies]
    np.testing.assert_allclose([r["value/gain"] for r in exact], np.diff(values), atol=1e-12)
    np.testing.assert_allclose([r["value"] for r in exact], values[1:], atol=1e-12)
    assert values[-1] > values[0]


def test_estimates_are_the_exact_values_when_the_sample_is_the_distribution():
    """An empirical distribution that happens to be alpha must give what enumeration gives."""
    move, rewards = moves()[2], bandit_rewards(SMALL.bandit)
    with jax.enable_x64():
        alpha, before, after, earned = (jnp.asarray(x) for x in (*move[1:], rewards))
        constants = Constants(sigma_eps=0.01, clip_eps=0.05)
        sampled = plug_in(alpha, after / alpha, before / alpha, earned, constants)
        rows = [facts(*row, constants) for row in zip(after, before, alpha, earned, strict=True)]
    for name, value in sampled.items():
        assert float(value) == pytest.approx(np.mean([row[name] for row in rows]), abs=1e-12)


def test_all_seeds_are_held_to_the_claims_and_a_failure_is_told(exact):
    row = {"label": "bandit", "role": "report", "coordinates": {}, "setting": {}}
    rows = [{**row, "seed": seed, "records": exact} for seed in (10, 11)]
    assert SMALL.broken(rows) == []
    claims = claims_table(rows, SMALL.constants.delta)
    assert claims.lines[0][3] == f"{2 * SMALL.bandit.steps} of {2 * SMALL.bandit.steps}"
    pictures = [p for section in SMALL.report(rows) for p in section.pictures]
    assert [p.name for p in pictures] == [name for name in PLOTS if not name.startswith("run")]
    assert all(p.draw().axes for p in pictures)
    for name, text in {"mm": "minorise-maximise", "certificate/mean": "certificate's mean"}.items():
        low = [{**r, f"slack/{name}": -2 * TOLERANCE} for r in exact]
        broken = SMALL.broken([rows[0], {**rows[1], "records": low}])
        assert broken == [f"bandit: {text} ≤ ΔJ held 9 times of 18"]


def test_the_default_task_is_measured_at_each_step_and_period(tmp_path):
    tiny = WarmStart(steps=2, batch=4, problems=16, demonstrations=1, cache=False)
    base = replace(SMALL.base, warm_start=tiny, data=Data(train=64), rewards=(ODD,))
    study = replace(SMALL, base=base, steps=3, v=2, prompts=3, samples=8)
    with closing(Bench(tmp_path, Console(quiet=True))) as bench:
        records = sampled(study.cells()[0], bench)["records"]
    assert [r["step"] for r in of_part(records, "run")] == [1, 2, 3]
    assert [r["step"] for r in of_part(records, "period")] == [2, 3]
    assert min(r["ess"] for r in of_part(records, "run")) < 1, "no update moved the policy"
    assert None not in [v for r in records for v in r.values()], "not finite"
    assert max(r["mismatch"] for r in of_part(records, "period")) < 1e-4


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
