"""A cell is what the public trainer makes of its config, whatever its process measured before."""

import json
from contextlib import closing
from dataclasses import replace

import pytest
from rich.console import Console

from experiments.grid import train
from experiments.grid.cell import Cell, Watch
from experiments.grid.train import Bench, TrainingRun, program_of, row_of, train_cell
from experiments.real.measure import TEMPERATURES, TRAINED, UNTOUCHED, trained, untouched
from ogrpo.config.train import Replay, TrainConfig, WarmStart
from ogrpo.config.update import Knobs
from ogrpo.report.run_dir import RunDir
from ogrpo.setup.find_task import MADE_RATE
from tests.run.small_run import CONFIG, go

pytestmark = pytest.mark.slow

MADE = replace(
    CONFIG,
    model=TrainConfig().model,
    warm_start=WarmStart(steps=2, batch=4, problems=8, cache=False),
    rollout=replace(CONFIG.rollout, max_tokens=14),
)
REPLAYED = replace(
    MADE,
    seed=1,
    schedule=replace(MADE.schedule, steps=5, replay=2, sync_interval=3),
    replay=Replay(groups=6, sampler="uniform"),
    knobs=Knobs(eps_low=0.1),
    reward=replace(MADE.reward, flip=0.4),
    optimizer=replace(MADE.optimizer, learning_rate=0.01),
)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    with closing(Bench(tmp_path_factory.mktemp("bench"), Console(quiet=True))) as bench:
        yield bench


def measured(config: TrainConfig, bench: Bench) -> dict:
    return train_cell(Cell("method", "pilot", config), bench)


def test_cells_that_share_a_program_are_what_the_public_trainer_makes_of_them(bench, tmp_path):
    assert program_of(MADE) == program_of(REPLAYED)
    measured(MADE, bench)
    row = measured(REPLAYED, bench)
    go(tmp_path / "run", REPLAYED)
    records = RunDir(tmp_path / "run").read_metrics()
    scored = [r for r in records if r["pass@1/sampled"] is not None]
    for name in ("step", "updates", "completions", "tokens", "flops/rollout", "flops/update"):
        assert row["evaluations"][name] == [r[name] for r in scored]
        assert row["steps"][name] == [r[name] for r in records[1:]]
    for name in ("pass@1/sampled", "pass@1/greedy", "pass@2/sampled"):
        assert row["evaluations"][name] == pytest.approx([r[name] for r in scored], rel=1e-3)
        assert row["final"][name] == pytest.approx(scored[-1][name], rel=1e-3)
    for name in ("reward", "entropy", "kl/pi_mu", "ess", "grad_norm", "staleness"):
        assert row["steps"][name] == pytest.approx([r[name] for r in records[1:]], rel=1e-3)
    assert row["ended"] == "whole"
    seconds = row["steps"]["seconds"]
    assert seconds == sorted(seconds)
    assert row["final"]["seconds"] > 0
    json.dumps(row, allow_nan=False)


def test_final_scores_of_real_are_of_all_problems_at_every_temperature(bench):
    row = trained(Cell("it", "pilot", MADE, measure=TRAINED), bench)
    before = untouched(Cell("start", "pilot", MADE, measure=UNTOUCHED), bench)
    sampled = [f"pass@1/sampled at {t:g}" for t in TEMPERATURES]
    for scores in (row["final"], before["final"]):
        best = max(scores[name] for name in ("pass@1/sampled", *sampled))
        assert scores["pass@1/best"] == best
        assert all(0 <= scores[name] <= 1 for name in ("pass@1/greedy", *sampled))
    assert row["ended"] == "whole"
    assert row["evaluations"]["pass@1/greedy"][0] == before["final"]["pass@1/greedy"]


@pytest.mark.parametrize(
    "changed",
    [
        {"knobs": Knobs(beta=0.1)},  # the reference's log-probs are read
        {"algorithm": "red_weight"},
        {"schedule": replace(MADE.schedule, prompts=4)},
        {"rollout": replace(MADE.rollout, group_size=4)},
    ],
)
def test_other_programs_are_known_as_such(changed):
    assert program_of(MADE) != program_of(replace(MADE, **changed))


def test_a_run_that_diverges_has_a_row_of_what_there_was_before(bench):
    # The server keeps its first weights, so that it is the update that meets the later ones.
    schedule = replace(MADE.schedule, sync_interval=50, evaluate_every=100, steps=9)
    wild = replace(MADE.optimizer, learning_rate=1e38, max_skipped=2)
    row = measured(replace(MADE, schedule=schedule, optimizer=wild), bench)
    assert row["ended"].startswith("diverged: 3 updates in a row were skipped")
    assert row["steps"]["step"] == [1, 2, 3, 4]
    assert row["evaluations"]["step"] == [0]
    assert row["final"]["pass@1/sampled"] == row["evaluations"]["pass@1/sampled"][0]


def test_what_a_cell_leaves_open_is_not_what_the_cell_before_had(tmp_path):
    def rated(rate):
        return replace(MADE, optimizer=replace(MADE.optimizer, learning_rate=rate))

    with closing(Bench(tmp_path, Console(quiet=True))) as bench:
        assert bench.prepare(rated(0.5)).config.optimizer.learning_rate == 0.5
        assert bench.prepare(rated(None)).config.optimizer.learning_rate == MADE_RATE


def test_seeds_that_share_a_warm_start_wait_for_one_another(tmp_path, monkeypatch):
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path))
    for seed in (50, 52):
        with train.warm_start_lock(replace(MADE, seed=seed, warm_start=WarmStart(seed=0))):
            pass
    assert [path.name for path in (tmp_path / "warm-start-locks").iterdir()] == ["seed-0"]


def test_signals_are_means_over_stretches_at_whose_end_they_stand():
    def record(step, value):
        counters = dict.fromkeys(("updates", "completions", "tokens"), 10 * step)
        flops = {"flops/rollout": step, "flops/update": step}
        phases = ("rollout", "update", "sync", "eval")
        seconds = dict.fromkeys((f"seconds/{phase}" for phase in phases), 0.5)
        scores = {"pass@1/sampled": 0.5, "heldout/temperature": 1.0}
        return {"step": step, **counters, **flops, **seconds, **scores, "kl/pi_mu": value}

    values = [None, 1.0, 2.0, float("nan"), 4.0, None]
    records = [record(step, value) for step, value in enumerate(values)]

    def run(compiled):
        return TrainingRun(records, compiled, "whole", None)

    row = row_of(run([0.0] * 6), Watch(("kl/pi_mu", "unknown"), points=3))
    assert row["steps"]["step"] == [2, 4, 5]
    assert row["steps"]["kl/pi_mu"] == [1.5, None, None]
    assert "unknown" not in row["steps"]
    assert row["evaluations"]["seconds"] == [1.5, 3.0, 4.5, 6.0, 7.5, 9.0]
    compiled = row_of(run([0.0, 1.0, 9.0, 0.0, 0.0, 0.0]), Watch(points=3))
    assert compiled["evaluations"]["seconds"] == [1.5, 2.0, 2.0, 3.5, 5.0, 6.5]
