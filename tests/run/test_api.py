"""The trainer as a library calls it: a task and a reward of one's own, and what is refused."""

import dataclasses
import json

import pytest
from rich.console import Console

from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Checkpointing, Evaluation, Model, Rollout, TrainConfig
from ogrpo.report import trackers
from ogrpo.rewards.reward import Reward
from ogrpo.run import main
from ogrpo.run.api import Trainer
from ogrpo.setup.presets import make_preset
from ogrpo.tasks import Task
from tests.run import rewards
from tests.run.small_run import make_parts_again

QUIET = Console(quiet=True)
ROWS = [
    {"prompt": f"{n} + 1 =", "answer": f"{n + 1}", "solution": f"{n} + 1 = {n + 1}", "level": n % 3}
    for n in range(40)
]
SETTINGS = {
    "algorithm": "grpo",
    "schedule": Schedule(steps=3, prompts=4, evaluate_every=3),
    "rollout": Rollout(group_size=4, prompts_per_call=2),
    "model": Model(random="tiny"),
    "evaluation": Evaluation(prompts=4, gradient_variance=False, token_samples=0),
    "console": QUIET,
}


@pytest.fixture(autouse=True)
def _programs_once(monkeypatch):
    monkeypatch.setattr(main, "make_parts", make_parts_again)


def trained(tmp_path, judge, **changes):
    task = Task.from_iterable(ROWS, rewards=[judge])
    return Trainer(task=task, run_dir=tmp_path / "run", **SETTINGS, **changes).train()


def test_a_completion_that_cannot_be_judged_carries_no_loss(tmp_path, caplog):
    def picky(completions, **_):
        print("hello", flush=True)  # what a reward prints harms nothing
        if any(len(text) % 5 == 1 for text in completions):
            raise RuntimeError("a length I do not like")
        return [float(len(text) % 2) for text in completions]

    result = trained(tmp_path, picky)
    last = result.records[-1]
    assert 0 < last["reward/failed/raised"] == last["reward/failed"]
    assert "a length I do not like" in caplog.text
    assert "picky" in caplog.text
    assert __file__ in caplog.text
    assert "not judged, and without loss: raised" in (result.run_dir / "report.html").read_text()


def test_a_reward_that_never_works_ends_the_run_with_its_name_and_the_state_saved(tmp_path):
    def broken(completions, **_):
        return 1 / 0

    with pytest.raises(RuntimeError, match=r"'broken' .*test_api\.py"):
        trained(tmp_path, broken, checkpoint=Checkpointing(every=1))
    assert (tmp_path / "run" / "checkpoints" / "0").is_dir()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedul": 1}, r"no option schedul\. Did you mean schedule\?"),
        ({"steps": 3}, r"no option steps\. It is .*schedule\.steps, in Python schedule=Schedule"),
        ({"learning_rate": 1e-5}, r"optimizer\.learning-rate, in Python optimizer=Optimizer\(lea"),
        ({"schedule": {"step": 3}}, r"no option schedule\.step\. Did you mean schedule\.steps\?"),
        ({"schedule": {"steps": "3"}}, r"schedule\.steps is '3': give int"),
        ({"schedule": 3}, r"schedule is 3: give a table of options, or in Python a Schedule\("),
        ({"seed": "one"}, r"Trainer: seed is 'one': give int"),
        ({"model": "no/such/one"}, "no/such/one is no folder, no GGUF file and no known name"),
        ({"preset": "rouse"}, r"no preset 'rouse'\. Did you mean 'reuse'\?"),
        ({"preset": "reuse", "config": TrainConfig()}, "preset and config are given"),
        ({"algorithm": "gpro"}, r"no algorithm 'gpro'\. Did you mean 'gspo'"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(tmp_path, options, message):
    task = Task.from_iterable(ROWS, rewards=[rewards.even_length])
    with pytest.raises(ValueError, match=message):
        Trainer(task=task, run_dir=tmp_path / "run", console=QUIET, **options)
    assert not (tmp_path / "run").exists()


def test_a_trainer_begins_with_the_options_of_a_preset():
    task = Task.from_iterable(ROWS, rewards=[rewards.even_length])
    config = Trainer(task=task, preset="reuse", seed=2, console=QUIET).config
    theirs = make_preset("reuse")
    assert config == dataclasses.replace(theirs, task=task.name, seed=2)


def test_a_loop_over_the_steps_may_be_left_and_gone_on_with(tmp_path, monkeypatch):
    """Of a task and rewards of one's own."""
    figures, calls = [], []
    tracker = trackers.Tracker(lambda values, step: figures.append((step, values)), lambda: None)
    monkeypatch.setitem(trackers.TRACKERS, "wandb", lambda folder, config: tracker)
    length = Reward("length", rewards.even_length, weight=0.5)
    judges = [rewards.ends_right, length, rewards.slow_judge]
    names = ("ends_right", "length", "slow_judge")

    def trainer(**changes):
        return Trainer(
            task=Task.from_iterable(ROWS, rewards=judges),
            callbacks=[lambda state, record: calls.append((state.step, record["step"]))],
            **{"run_dir": tmp_path / "run", "track": ("wandb",), **SETTINGS, **changes},
        )

    begun = trainer()
    for state, record in begun:
        if record["step"] == 1:
            assert state.completions == record["completions"]
            break
    with pytest.raises(RuntimeError, match="the run has not ended"):
        _ = begun.result
    resumed = trainer(resume=True)
    assert [record["step"] for _, record in resumed] == [2, 3]
    result = resumed.result
    assert result.stopped is None
    records = result.records
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert calls == [(step, step) for step in range(4)]
    tracked = [(step, values["completions"]) for step, values in figures]
    assert tracked == [(record["step"], record["completions"]) for record in records]
    for record in records[1:]:
        parts = [record[f"reward/{name}"] for name in names]
        assert record["reward"] == pytest.approx(parts[0] + 0.5 * parts[1] + parts[2], abs=1e-6)
    assert records[-1]["reward/failed"] == 0
    assert records[-1]["pass@4/sampled"] is None  # three are 0 or 1, and none is marked
    for name in names:
        assert records[-1][f"heldout/reward/{name}/sampled"] is not None
    assert (result.model / "config.json").is_file()
    assert "weights were made in the run" in (result.model / "README.md").read_text()  # its card
    config = json.loads((result.run_dir / "config.json").read_text())
    assert (config["task"], config["algorithm"]) == ("rows", "grpo")
    assert config["rewards"] == [f"{rewards.__file__}:{name}" for name in names]
    assert config["reward"]["weights"] == [1.0, 0.5, 1.0]
    assert config["optimizer"]["learning_rate"] == 1e-3  # of a model that is made here
    assert config["rollout"]["max_tokens"] is not None
