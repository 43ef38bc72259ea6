"""The crash harness on trainers of a few lines: one that resumes, and two that say so and do not."""

import random
import shlex
import sys
from itertools import accumulate

import pytest

from benchmarks.chaos import foreign
from benchmarks.chaos.foreign import Trainer, compared, disturbed, live
from benchmarks.chaos.kills import Life, Plan
from benchmarks.reliability import main
from benchmarks.rows import read_rows

TRAINER = """
import json, pathlib, random, sys, time
run, kind = pathlib.Path(sys.argv[2]), sys.argv[-1]  # --out RUN KIND
run.mkdir(exist_ok=True)
state, metrics = run / "state.json", run / "metrics.jsonl"
step, total = 0, 0.0
random.seed(0)
if state.exists():
    step, total, draws, length = json.loads(state.read_text())
    with metrics.open("r+b") as file:
        file.truncate(length)
    if kind != "forgets its draws":
        [random.random() for _ in range(draws)]
while step < 4:
    step, total = step + 1, total + random.random()
    with metrics.open("a") as file:
        print(json.dumps({"step": step, "loss": total, "seconds": time.time()}), file=file)
    draft = run / "draft"
    draft.write_text(json.dumps([step, total, step, metrics.stat().st_size]))
    if kind != "saves nothing":
        draft.rename(state)
    time.sleep(0.05)
"""


@pytest.fixture
def words(tmp_path):
    (tmp_path / "train.py").write_text(TRAINER)
    return shlex.join([sys.executable, "-S", str(tmp_path / "train.py")]) + " --out {run}"


@pytest.mark.parametrize("kind", ["right", "forgets its draws", "saves nothing"])
def test_a_kill_shows_who_resumes(words, kind, tmp_path):
    trainer = Trainer(f"{words} '{kind}'", f"{words} '{kind}'", "{run}/metrics.jsonl")
    run = tmp_path / "run"
    assert disturbed(trainer, run, [Plan(True, 0.5, 0.03)], Life(0, 1.0), steps=4) == ""
    records, draw = read_rows(run / "metrics.jsonl"), random.Random(0)
    assert ([r["step"] for r in records] == [1, 2, 3, 4]) == (kind != "saves nothing")
    losses = [*accumulate(draw.random() for _ in range(4))]
    assert ([r["loss"] for r in records[-4:]] == losses) == (kind != "forgets its draws")


def test_the_command_says_equal_of_the_one_and_what_differs_of_the_other(words, capsys):
    options = ["--metrics", "{run}/metrics.jsonl", "--runs", "1"]
    assert main(["--command", f"{words} right", *options]) == 0
    assert "run 0" in capsys.readouterr().out
    assert main(["--command", f"{words} right", *options, "--ignore", "loss"]) == 0
    with pytest.raises(SystemExit, match="undisturbed"):
        main(["--command", "exit 3", "--metrics", "{run}/metrics.jsonl"])
    with pytest.raises(SystemExit):
        main(["--command", "true"])
    with pytest.raises(SystemExit):
        main(["kills", "--runs", "100"])
    assert "--runs is of another trainer" in capsys.readouterr().err


def test_records_are_compared_without_what_is_ignored_and_half_a_line_is_told_of(tmp_path):
    trainer = Trainer("", "", "{run}.jsonl", ("lo",))
    (tmp_path / "run.jsonl").write_text('{"step": 1, "loss": 2.0, "kl": 3.0}\n')
    (line,) = compared(trainer, tmp_path / "run", [{"step": 1, "loss": 1.0, "kl": 1.0}])
    assert line == "step 1: kl is 3.0, not 1.0"
    (tmp_path / "run.jsonl").write_text('{"step": 1, "lo{"step": 1}\n')
    (line,) = compared(trainer, tmp_path / "run", [{"step": 1}])
    assert "run.jsonl has half of a line" in line


def test_a_command_that_is_killed_takes_its_children_with_it(tmp_path):
    command, run = "sleep 60 & echo >> {run}.lines; wait", tmp_path / "run"
    life = live(command, run, tmp_path / "run.lines", kill=(1, 0.2))
    assert life.code == -9
    assert 0.2 <= life.seconds < 30


def test_a_kill_of_a_resumed_run_falls_after_a_record_that_it_adds(tmp_path, monkeypatch):
    metrics, kills = tmp_path / "metrics.jsonl", []

    def live(*_, kill):
        kills.append(kill)
        return Life(0, 1.0)

    monkeypatch.setattr(foreign, "live", live)
    metrics.write_text("{}\n" * 3)
    trainer = Trainer("train", "train", str(metrics))
    plan = Plan(at_write=True, share=0.5, delay=0.03)
    assert disturbed(trainer, tmp_path / "run", [plan], Life(0, 1.0), steps=7) == ""
    assert kills == [(5, 0.03)]
