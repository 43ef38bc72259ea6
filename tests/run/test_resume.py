"""A run is resumed from what is whole, whatever ended it, and is the run that nobody stopped."""

import gc
import re
import shutil
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from ogrpo.batch import VALUE_HEAD
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Checkpointing
from ogrpo.config.update import Lora, Region
from ogrpo.learner.checkpoint import CheckpointError
from ogrpo.loop.evaluate import withdraw
from ogrpo.report.run_dir import RunDir
from ogrpo.run import resuming
from ogrpo.system import lock
from tests.run.small_run import CONFIG as SMALL
from tests.run.small_run import PROGRAMS, failing, go, go_with, left, looking

pytestmark = pytest.mark.slow
CONFIG = replace(SMALL, rewards=(), schedule=Schedule(steps=2, prompts=2, evaluate_every=100))
"""With the rewards of the task, which count."""


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def watched(config):
    """Runs; returns the bytes at each update beyond those before the run, and its first weights."""
    for parts in PROGRAMS.values():  # their engines are used again
        withdraw(parts.collection.engine)
        withdraw(parts.evaluator.engine)
    before, held, first = live_bytes(), [], []
    faults = {
        "learner.init": looking(first.append),  # of a new run
        "learner.shapes": looking(first.append),  # of a resumed one
        "learner.update": looking(lambda *_: held.append(live_bytes() - before)),
    }
    go_with(config.run_dir, faults, config)
    return held, first[0]


def judged(run: Path) -> list[int]:
    """Returns how many completions and evaluation answers the report counts."""
    page = (run / "report.html").read_text()
    kinds = ("completions", "evaluation answers")
    return [sum(map(int, re.findall(rf"{kind} judged \w+<td>(\d+)", page))) for kind in kinds]


ADAPTED = {"lora": Lora(rank=2), "trust_region": Region(kind="clip")}


@pytest.mark.parametrize("changes", [{}, ADAPTED])
def test_a_resumed_run_holds_one_train_state_and_goes_on_counting(tmp_path, changes):
    run = tmp_path / "run"
    config = replace(CONFIG, run_dir=run, **changes)
    begun, _ = watched(config)
    assert judged(run) == [8, 12]
    longer = replace(config, resume=True, schedule=replace(config.schedule, steps=4))
    resumed, params = watched(longer)
    assert judged(run) == [16, 18]
    # The rewards' own counters too: of them the report tells what could not be judged.
    records = RunDir.reopen(run).read_metrics()
    assert [record["reward/completions"] for record in records[1:]] == [4, 8, 12, 16]
    assert len(begun) == len(resumed) == 2
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert max(resumed) < max(begun) + size / 20
    trained = config.lora.rank is None
    assert all(leaf.is_deleted() == trained for leaf in jax.tree.leaves(params))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    go(folder)
    return folder


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "[bold]copy"))


def harm(run: Path, *steps: int) -> dict[int, str]:
    """Flips a bit in a file of these checkpoints; the file's name of each."""
    damaged = {}
    for step in steps:
        file = max((run / "checkpoints" / str(step) / "arrays" / "d").iterdir())
        data = file.read_bytes()
        file.write_bytes(data[:100] + bytes([data[100] ^ 4]) + data[101:])
        damaged[step] = file.name
    return damaged


def everything(run: Path) -> dict[str, bytes]:
    files = (path for path in run.rglob("*") if path.is_file() and path.name != lock.NAME)
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_a_damaged_newest_checkpoint_is_set_aside_for_the_one_before(whole, copy):
    damaged = harm(copy, 4)
    (copy / "report.json").write_text("[")
    said = go(copy, resume=True)
    assert f"the page lacks earlier commands: {copy / 'report.json'} is damaged" in said
    assert f"the checkpoint of step 4 is damaged (arrays/d/{damaged[4]} has other bytes" in said
    assert "resuming after step 3" in said
    assert left(copy) == left(whole)
    (aside,) = (copy / "checkpoints" / "set_aside").iterdir()
    assert str(aside) in said  # brackets and all
    assert (aside / "arrays" / "d" / damaged[4]).is_file()


def test_a_run_without_a_checkpoint_that_can_be_used_is_left_as_it_is(copy):
    damaged, before = harm(copy, 2, 3, 4), everything(copy)
    with pytest.raises(CheckpointError, match="--resume-from 0") as error:
        go(copy, resume=True)
    assert all(name in str(error.value) for name in damaged.values())
    assert everything(copy) == before


def test_a_run_goes_back_to_the_step_that_is_asked_for(whole, copy):
    before = everything(copy)
    with pytest.raises(ValueError, match="no checkpoint of step 1; there are: 2, 3, 4, and 0"):
        go(copy, resume_from=1)
    with pytest.raises(ValueError, match=r"schedule\.steps is 3, but the checkpoint is of step 4"):
        go(copy, resume=True, schedule=replace(SMALL.schedule, steps=3))
    assert everything(copy) == before
    segment = sorted((copy / "experience").glob("*.parquet"))[1]  # what the checkpoint draws from
    for file in (copy / "metrics.jsonl", segment):
        content = file.read_bytes()
        file.write_bytes(b"?\n" + content)
        damaged = everything(copy)
        with pytest.raises(ValueError, match=re.escape(file.name)):
            go(copy, resume_from=2)
        assert everything(copy) == damaged
        file.write_bytes(content)
    said = go(copy, resume_from=2)
    assert "resuming after step 2" in said
    assert all(f"the checkpoint of step {step} is now {copy}" in said for step in (3, 4))
    assert "2 records will be written again" in said
    assert left(copy) == left(whole)
    records = (copy / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "metrics.jsonl").write_bytes(b"".join(records[:2]))  # as copied while the run went on
    assert "ends at step 1: the records up to step 4 are missing" in go(copy, resume=True)


def test_a_process_that_is_refused_alone_waits_for_no_other(monkeypatch, tmp_path):
    exchanges: list[object] = []
    monkeypatch.setattr(resuming, "is_first", lambda: False)
    monkeypatch.setattr(resuming, "on_first", exchanges.append)
    session: Any = SimpleNamespace(run=RunDir(tmp_path))
    checkpoints: Any = SimpleNamespace(set_aside=lambda step: tmp_path / str(step))
    leaving = resuming._leaving_behind(session, checkpoints, {4: None}, step=2, beside=2, keep=True)
    with pytest.raises(MemoryError), leaving:
        raise MemoryError
    assert len(exchanges) == 1  # the look at the records, before anything is moved


def test_a_critic_goes_on_where_its_checkpoint_left_it(tmp_path):
    """PPO's value head is in the checkpoints, though never in what is published."""
    ppo, run, heads = replace(SMALL, algorithm="ppo"), tmp_path / "run", []

    def look(train, *_):
        heads.append(jax.tree.map(np.any, train.params[VALUE_HEAD]))
        assert VALUE_HEAD not in train.whole(train.params)

    go_with(run, {"learner.update": looking(look)}, ppo)
    assert heads[-1] == {"weight": True, "bias": True}
    whole = left(run)
    assert VALUE_HEAD.encode() not in whole[1]
    assert "resuming after step 2" in go(run, ppo, resume_from=2)
    assert left(run) == whole


def test_what_a_sampler_recorded_goes_on_with_the_buffer(tmp_path):
    """And where it is not recorded, the run says how biased its ratios are."""
    changes = {
        "rollout": replace(SMALL.rollout, top_p=0.9, keep_sampling_mask=True, top_k=300),
        "override": replace(SMALL.override, centering=1),
        "replay": replace(SMALL.replay, groups=4, sampler="uniform"),
        "schedule": replace(SMALL.schedule, replay=2),
    }
    recording, run = replace(SMALL, **changes), tmp_path / "run"
    said = go(run, recording)
    whole = left(run)
    assert whole[0][1]["ratio/mean"] == pytest.approx(1, abs=1e-4)
    assert "ratio of policy to sampler" not in said
    assert "resuming after step 2" in go(run, recording, resume_from=2)
    assert left(run) == whole
    rollout = replace(SMALL.rollout, top_p=0.9)
    assert go(tmp_path / "cut", SMALL, rollout=rollout).count("ratio of policy to sampler") == 1
    fresh = left(tmp_path / "cut")[0][1:]
    assert all(0.85 < 1 + record["ratio/bias"] < 0.95 for record in fresh)


STORY = [
    # what fails, at which call, the step that is saved, what is said
    ("evaluator.judge", MemoryError(), 1, 0, "the state after step 0 is saved; go on with"),
    ("collection.reward_fn", KeyError("gold"), 2, 1, "the state after step 1 is saved; go on with"),
    ("method.hypers_at", OSError(5, "Input/output error"), 1, 1, "step 2 was under way"),
    ("learner.update", KeyboardInterrupt(), 1, 1, "what it had changed is not saved; go on with"),
    ("evaluator.judge", ValueError("odd"), 1, 2, "the state after step 2 is saved; go on with"),
]


def test_a_run_that_errors_end_again_and_again_ends_as_one_that_none_did(tmp_path):
    """What is whole is saved first, and the way on is told beside the error."""
    folder, whole = tmp_path / "run", tmp_path / "whole"
    config = replace(
        SMALL,
        checkpoint=Checkpointing(every=4),  # the others are of the errors
        evaluation=replace(SMALL.evaluation, token_samples=2),
    )
    go(whole, config)
    for n, (part, error, call, step, said) in enumerate(STORY):
        with pytest.raises(BaseException) as caught:  # noqa: PT011 - which, is compared
            go_with(folder, {part: failing(error, call)}, config, resume=n > 0)
        shown = "".join(traceback.format_exception(caught.value))
        assert said in shown
        assert f"--run-dir {folder} --resume" in shown
        assert traceback.format_exception_only(error)[0] in shown  # behind it are its notes
        assert max(int(entry.name) for entry in (folder / "checkpoints").iterdir()) == step
    go(folder, config, resume=True)
    assert left(folder) == left(whole)
    assert RunDir(folder).tokens.read_bytes() == RunDir(whole).tokens.read_bytes()
