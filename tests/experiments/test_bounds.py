"""The `bounds` study on a scale of seconds: what is exact must hold, and the judge must be able to fail it."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.bounds.claims import TOLERANCE, make_claims, of_part
from experiments.bounds.exact import (
    Bandit,
    bandit_rewards,
    bandit_state,
    bandit_update,
    facts,
    trajectory,
)
from experiments.bounds.main import BoundsStudy, exact_records, main_config, parse
from experiments.bounds.sampled import plug_in, resamples

ROOT = Path(__file__).parents[2]
SMALL = BoundsStudy(bandit=Bandit(steps=9, v=4, prompts=4, answers=5, draws=64))
OPTIONS = (
    "--steps=3 --v=2 --prompts=3 --samples=8 --bandit.steps=4 --bandit.answers=5 --bandit.draws=16 "
    "--warm-start.steps=80 --warm-start.batch=16 --warm-start.problems=400"
).split()


@pytest.fixture(scope="module")
def exact():
    return [*exact_records(SMALL)]


def moves(seed: int = 0):
    config = replace(main_config(SMALL), seed=seed)
    update, state = bandit_update(config), bandit_state(SMALL.bandit, config)
    return [*trajectory(SMALL.bandit, update, state, clip_eps=0.2, seed=seed)]


def test_every_exact_inequality_holds_at_every_step(exact):
    claims = [
        c for c in make_claims(exact, SMALL.delta) if c.where in ("bandit", "variance", "clip")
    ]
    assert len([c for c in claims if c.kind == "exact"]) == 14
    assert all(claim.of > 0 for claim in claims)
    assert [claim.text for claim in claims if claim.slack < -TOLERANCE] == []


@pytest.mark.parametrize("name", ["mm", "sharp", "stale", "published", "certificate/mean"])
def test_a_bound_above_the_gain_is_noticed(exact, name):
    broken = [{**r, f"slack/{name}": -2 * TOLERANCE} if r["part"] == "bandit" else r for r in exact]
    failed = [c for c in make_claims(broken, SMALL.delta) if c.kind == "exact" and not c.holds]
    assert [(claim.held, claim.of) for claim in failed] == [(0, SMALL.bandit.steps)]


def test_the_gain_is_the_change_of_the_mean_reward(exact):
    rewards = bandit_rewards(SMALL.bandit)
    values = [(move.before * rewards).sum(-1).mean() for move in moves()]
    values.append((moves()[-1].after * rewards).sum(-1).mean())
    steps = of_part(exact, "bandit")
    np.testing.assert_allclose([r["value/gain"] for r in steps], np.diff(values), atol=1e-12)
    np.testing.assert_allclose([r["value"] for r in steps], values[1:], atol=1e-12)
    assert values[-1] > values[0]


def test_the_sampler_is_renewed_every_v_steps():
    for n, move in enumerate(moves()):
        fresh = np.array_equal(move.mu, move.before)
        assert fresh == (n % SMALL.bandit.v == 0)
        assert move.step == n + 1
        assert not np.array_equal(move.before, move.after)


def test_the_published_bound_promises_nothing_below_one_half(exact):
    by_prompt = [r["by_prompt"] for r in of_part(exact, "bandit")]
    low = [
        p for by in by_prompt for s, p in zip(by["sigma"], by["published"], strict=True) if s <= 0.5
    ]
    assert len(low) > 10
    assert max(low) <= TOLERANCE


def test_the_seed_decides_everything(exact):
    steps = of_part(exact, "bandit")
    assert [*islice(exact_records(SMALL), len(steps))] == steps
    other = BoundsStudy(seed=1, bandit=SMALL.bandit)
    assert [*islice(exact_records(other), len(steps))] != steps


def test_estimates_are_the_exact_values_when_the_sample_is_the_distribution():
    """An empirical distribution that happens to be alpha must give what enumeration gives."""
    move, rewards = moves()[2], bandit_rewards(SMALL.bandit)
    with jax.enable_x64():
        alpha, before, after, earned = (jnp.asarray(x) for x in (*move[1:], rewards))
        knobs = {"sigma_eps": 0.01, "clip_eps": 0.05}
        sampled = plug_in(alpha, after / alpha, before / alpha, earned, **knobs)
        rows = [facts(*row, **knobs) for row in zip(after, before, alpha, earned, strict=True)]
    for name, value in sampled.items():
        assert float(value) == pytest.approx(np.mean([row[name] for row in rows]), abs=1e-12)


def test_resamples_are_distributions_and_the_first_is_the_sample_itself():
    weights = resamples((3, 8), seed=0)
    np.testing.assert_allclose(weights.sum(-1), 1)
    np.testing.assert_array_equal(weights[0], 1 / 8)
    assert not np.array_equal(weights[1], weights[2])


def test_thresholds_that_the_theory_knows(exact):
    sizes = of_part(exact, "clip")
    caps = [r["tau/optimal"] for r in sizes]
    assert caps == sorted(caps)
    assert len({r["tau/proposed"] for r in sizes}) == 1
    assert [r["tau/sqrt_n"] for r in sizes] == [math.sqrt(r["n"]) for r in sizes]
    assert all(r["mse/proposed"] > r["mse/optimal"] for r in sizes)


def start(*options: str, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "experiments.run", "bounds", *options],
        env={**os.environ, "OGRPO_CACHE_DIR": str(cache)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    cache, folder = tmp_path_factory.mktemp("cache"), tmp_path_factory.mktemp("runs") / "first"
    done = start(*OPTIONS, f"--run-dir={folder}", cache=cache)
    assert done.returncode == 0, done.stderr
    return folder, done, cache


def test_the_command_measures_the_default_run(finished):
    folder, done, _ = finished
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in of_part(records, "run")] == [1, 2, 3]
    assert [r["step"] for r in of_part(records, "period")] == [2, 3]
    assert min(r["ess"] for r in of_part(records, "run")) < 1, "no update moved the policy"
    numbers = [v for r in records for v in r.values() if isinstance(v, float)]
    assert np.isfinite(numbers).all()
    assert max(r["mismatch"] for r in of_part(records, "period")) < 1e-4
    assert "Did each inequality hold?" in done.stdout


def test_the_page_says_what_held_and_needs_nothing_but_itself(finished):
    folder = finished[0]
    page = (folder / "report.html").read_text()
    assert (
        page.count("data:image/png;base64,iVBOR") == len([*(folder / "plots").glob("*.png")]) == 9
    )
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "14 of 14" in page
    assert "it cannot promise an improvement" in page
    assert json.loads((folder / "config.json").read_text())["study"] == "bounds"


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_numbers(finished, tmp_path):
    folder, _, cache = finished
    done = start(*OPTIONS, f"--run-dir={tmp_path / 'again'}", cache=cache)
    assert done.returncode == 0, done.stderr
    again = (tmp_path / "again" / "metrics.jsonl").read_text()
    assert again == (folder / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--sigma-eps=0", "sigma-eps is 0"),
        ("--delta=1", "delta is 1"),
        ("--samples=1", "samples is 1"),
        ("--bandit.answers=1", "bandit.answers is 1"),
    ],
)
def test_values_that_cannot_be_are_refused(option, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse([option])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
