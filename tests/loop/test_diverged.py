"""A run whose updates cease to be finite stops, keeps its weights, and leaves what explains it."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from ogrpo.cli.main import main
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Rollout, TrainConfig
from ogrpo.config.update import Optimizer
from ogrpo.learner import checkpoint
from ogrpo.learner.checkpoint import CheckpointError, Checkpoints
from ogrpo.learner.finite import NotFiniteError, nonfinite
from ogrpo.loop import DivergedError
from ogrpo.policy import DecoderConfig
from ogrpo.policy.config import SHAPES
from ogrpo.report.run_dir import RunDir
from ogrpo.run.diagnose import diagnose, read_batch, restored
from ogrpo.system.files import read_json, write_json
from ogrpo.system.values import from_json
from tests.loop.walk import BASE, with_options
from tests.run.small_run import CONFIG, go

DIVERGING = replace(
    CONFIG,
    rollout=Rollout(group_size=4, max_tokens=8),
    # The server keeps its first weights, so that it is the update that meets the later ones.
    schedule=Schedule(steps=9, prompts=4, sync_interval=50, evaluate_every=100),
    optimizer=Optimizer(learning_rate=1e38, warmup=0, max_skipped=2),
)


@pytest.fixture(scope="module")
def diverged(tmp_path_factory) -> tuple[Path, str]:
    """A run with an absurd learning rate, whose first update is its last, and what it said."""
    folder = tmp_path_factory.mktemp("diverged") / "run"
    with pytest.raises(DivergedError) as caught:
        go(folder, DIVERGING)
    return folder, str(caught.value)


@pytest.mark.slow
def test_a_run_that_diverges_counts_stops_and_says_how_to_look_and_go_on(diverged):
    folder, said = diverged
    records = RunDir(folder).read_metrics()
    assert [record["step"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["update/skipped"] for record in records] == [0, 0, 1, 2, 3]
    assert [record["updates"] for record in records] == [0, 1, 1, 1, 1]
    assert all("loss" in record["nonfinite"] for record in records[2:])
    assert "3 updates in a row were skipped by step 4" in said
    assert f"ogrpo diagnose {folder}/diverged/4" in said
    assert not (folder / "model").exists()
    with Checkpoints(folder / "checkpoints", keep=3) as checkpoints:
        assert checkpoints.steps == [2, 3, 4]
        assert checkpoints.progress(4)["skipped"] == 3


@pytest.mark.slow
def test_its_dump_replays_to_the_same_loss_and_names_the_first_token(diverged, capsys):
    """From checkpoints that hold the weights before what was skipped."""
    folder, _ = diverged
    dump = read_json(folder / "diverged" / "4" / "dump.json")
    config, decoder = from_json(TrainConfig, dump["config"]), DecoderConfig.from_hf(dump["decoder"])
    first, last = (restored(RunDir(folder), step, config, decoder) for step in (2, 4))
    assert not nonfinite(first)
    jax.tree.map(np.testing.assert_array_equal, first, last)
    assert main(["diagnose", str(folder / "diverged" / "4")]) == 0
    out = capsys.readouterr().out
    assert len(dump["updates"]) == 3
    for number, update in enumerate(dump["updates"]):
        assert update["metrics"]["loss"] == "nan"
        assert update["hypers"]["learning_rate"] > 1e37
        place = f"step {number + 1}, draw 0, iteration 0"
        assert f"update {number}: {place}; in the run loss nan" in out
    assert out.count("\nweights before the update, by array: finite\n") == 3
    assert out.count("\nthe sampler's log-probs: finite, from -") == 3
    assert out.count("\nloss: nan\n") == 3
    named = "first not finite: log-probs of the policy, the first at prompt 0, completion 0"
    assert out.count(named) == 3
    assert out.count(" NaN or infinite") >= 3 * 4
    assert "\ngradient, by array: finite" not in out


def test_a_damaged_dump_is_named(tmp_path):
    batch = tmp_path / "batch-0.npz"
    np.savez(batch, rewards=np.zeros(9))
    raw = batch.read_bytes()
    np.savez(batch, rewards=np.array(["x"]))
    for damaged in (batch.read_bytes(), raw[:-9], raw.replace(bytes(9), b"*" * 9, 1), b""):
        batch.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"batch-0\.npz cannot be read as a dumped batch: "):
            read_batch(batch)
    dump = {"step": 4, "decoder": SHAPES["qwen2.5-0.5b"].to_hf(), "config": 7, "updates": []}
    write_json(tmp_path / "dump.json", dump)
    with pytest.raises(ValueError, match=r"dump\.json is not what a run writes: AttributeError"):
        next(diagnose(tmp_path))


def test_a_warm_start_that_diverges_says_so(tmp_path):
    config = with_options(BASE, {"warm_start.steps": 4, "warm_start.learning_rate": 1e38})
    text = r"imitation diverged: its loss is nan at step 2; a smaller --warm-start\.learning-rate"
    with pytest.raises(ValueError, match=text):
        go(tmp_path / "run", config)
    assert not (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_are_not_finite_replace_no_checkpoint_and_none_goes_on_with_them(
    tmp_path, monkeypatch, bad
):
    arrays = {"server": {"w": np.array([1, bad, 1], np.float32)}}
    with Checkpoints(tmp_path / "run", keep=1) as checkpoints:
        good = {"server": {"w": np.ones(3, np.float32)}}
        checkpoints.save(1, good, {"step": 1})
        with pytest.raises(NotFiniteError, match=r"step 2 is not written.*NaN or infinity in serv"):
            checkpoints.save(2, arrays, {"step": 2})
        assert checkpoints.steps == [1]
        jax.tree.map(np.testing.assert_array_equal, checkpoints.restore(1, good)[0], good)
        monkeypatch.setattr(checkpoint, "require_finite", lambda *_: None)  # as before the check
        checkpoints.save(7, arrays, {"step": 7})
        with pytest.raises(CheckpointError, match=r"run/7 has NaN or infinity in server\.w"):
            checkpoints.restore(7, arrays)
