"""A run is resumed from what is whole, and is the run that nobody stopped."""

import gc
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from rich.console import Console

from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Checkpointing, Data, Evaluation, Model, Rollout
from ogrpo.config.update import Lora, Region
from ogrpo.learner.checkpoint import CheckpointError
from ogrpo.report.run_dir import RunDir
from ogrpo.report.run_page import counted
from ogrpo.run.main import carry_out, to_end
from ogrpo.run.session import Invocation, Session, as_json, outcomes
from ogrpo.setup.build import find_devices, make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from ogrpo.system import lock
from tests.run.small_run import CONFIG as SMALL
from tests.run.small_run import go, left

CONFIG = main_study(
    data=Data(train=16),
    model=Model(random="tiny"),
    rollout=Rollout(group_size=2, max_tokens=4),
    schedule=Schedule(steps=2, prompts=2, evaluate_every=100),
    evaluation=Evaluation(prompts=2, gradient_variance=False, token_samples=0),
    checkpoint=Checkpointing(every=1),
)


def live_bytes() -> int:
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def carried(config, run):
    """Bytes that live at each update beyond those before, first parameters, the report's counts."""
    with closing(prepare(config)) as prepared:
        config, before, held = prepared.config, live_bytes(), []
        decoder, params = make_model(prepared, Console(quiet=True))
        devices = find_devices(config, decoder)
        parts = make_parts(config, prepared, decoder, devices=devices, experience=run.experience)

        def update(*arguments):
            held.append(live_bytes() - before)
            return parts.learner.update(*arguments)

        session = Session(
            config,
            run,
            prepared,
            decoder,
            devices,
            replace(parts, learner=replace(parts.learner, update=update)),
            Console(quiet=True),
            Invocation("train", "train"),
        )
        assert to_end(carry_out(session, params)) is None
    counts = counted(as_json(config), run.read_metrics(), prepared.left_out, outcomes(session))
    return held, params, dict(counts)


def total(counts, what):
    return sum(int(count) for label, count in counts.items() if label.startswith(f"{what} judged"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{}, {"lora": Lora(rank=2), "trust_region": Region(kind="clip")}]
)
def test_a_resumed_run_holds_one_train_state_and_goes_on_counting(tmp_path, changes):
    run = tmp_path / "run"
    config = replace(CONFIG, run_dir=run, **changes)
    begun, _, counts = carried(config, RunDir.create(run))
    longer = replace(config, resume=True, schedule=replace(config.schedule, steps=4))
    assert (total(counts, "completions"), total(counts, "evaluation answers")) == (8, 12)
    resumed, params, counts = carried(longer, RunDir.reopen(run))
    assert (total(counts, "completions"), total(counts, "evaluation answers")) == (16, 18)
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


@pytest.mark.slow
def test_a_damaged_newest_checkpoint_is_set_aside_for_the_one_before(whole, copy):
    damaged = harm(copy, 4)
    said = go(copy, resume=True)
    assert f"the checkpoint of step 4 is damaged (arrays/d/{damaged[4]} has other bytes" in said
    assert "resuming after step 3" in said
    assert left(copy) == left(whole)
    (aside,) = (copy / "checkpoints" / "set_aside").iterdir()
    assert str(aside) in said  # brackets and all
    assert (aside / "arrays" / "d" / damaged[4]).is_file()


@pytest.mark.slow
def test_a_run_without_a_checkpoint_that_can_be_used_is_left_as_it_is(copy):
    damaged, before = harm(copy, 2, 3, 4), everything(copy)
    with pytest.raises(CheckpointError, match="--resume-from 0") as error:
        go(copy, resume=True)
    assert all(name in str(error.value) for name in damaged.values())
    assert everything(copy) == before


@pytest.mark.slow
def test_a_run_goes_back_to_the_step_that_is_asked_for(whole, copy):
    before = everything(copy)
    with pytest.raises(ValueError, match="no checkpoint of step 1; there are: 2, 3, 4, and 0"):
        go(copy, resume_from=1)
    with pytest.raises(ValueError, match=r"schedule\.steps is 3, but the checkpoint is of step 4"):
        go(copy, resume=True, schedule=replace(SMALL.schedule, steps=3))
    assert everything(copy) == before
    said = go(copy, resume_from=2)
    assert "resuming after step 2" in said
    assert all(f"the checkpoint of step {step} is now {copy}" in said for step in (3, 4))
    assert "2 records will be written again" in said
    assert left(copy) == left(whole)


@pytest.mark.slow
def test_a_critic_goes_on_where_its_checkpoint_left_it(tmp_path):
    """PPO's value head is in the checkpoints, though never in what is published."""
    ppo, run = replace(SMALL, algorithm="ppo"), tmp_path / "run"
    go(run, ppo)
    whole = left(run)
    assert "resuming after step 2" in go(run, ppo, resume_from=2)
    assert left(run) == whole


@pytest.mark.slow
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
    assert "ratio of policy to sampler" not in said
    assert "resuming after step 2" in go(run, recording, resume_from=2)
    assert left(run) == whole
    rollout = replace(SMALL.rollout, top_p=0.9)
    assert go(tmp_path / "cut", SMALL, rollout=rollout).count("ratio of policy to sampler") == 1
    fresh = left(tmp_path / "cut")[0][1:]
    assert all(0.85 < 1 + record["ratio/bias"] < 0.95 for record in fresh)
