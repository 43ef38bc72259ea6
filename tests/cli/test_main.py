"""The commands from end to end on a small file: what they write, print and refuse."""

import json

import pytest
import yaml

from ogrpo.cli.config_file import as_file, read_file, split, with_values
from ogrpo.cli.main import COMMANDS, main, usage
from ogrpo.cli.options import parse
from ogrpo.trainer.config import TrainConfig

ROWS = [
    {
        "prompt": f"{a} + {b} =",
        "answer": str(a + b),
        "solution": f"{a} + {b} = {a + b} #### {a + b}",
    }
    for a in range(6)
    for b in range(6)
]
SMALL = (
    *("--schedule.steps", "2", "--schedule.prompts", "4", "--rollout.group-size", "4"),
    *("--warm-start.steps", "4", "--warm-start.no-cache", "--evaluation.prompts", "4"),
)


@pytest.fixture
def task(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path / "cache"))


def test_every_command_is_told_and_has_help(capsys):
    assert all(name in usage() for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit) as end:
            main([name, "--help"])
        assert end.value.code == 0
    assert main(["trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err


def test_options_come_from_files_and_what_is_typed_comes_after(tmp_path):
    toml, yml = tmp_path / "run.toml", tmp_path / "run.yaml"
    toml.write_text("seed = 3\nalgorithm = 'dapo'\n[schedule]\nsteps = 7\noffline = false\n")
    yml.write_text("seed: 3\nalgorithm: dapo\nschedule:\n  steps: 7\n  offline: false\n")
    for path in (toml, yml):
        found = parse(["--config", str(path), "--seed", "4"], program="ogrpo train", preset="none")
        assert (found.seed, found.algorithm, found.schedule.steps) == (4, "dapo", 7)


def test_what_print_config_prints_is_read_again(tmp_path, capsys):
    options = ["--rewards", "a.py:x", "b.py:y", "--knobs.beta", "0.1", "--model.path", "somewhere"]
    with pytest.raises(SystemExit) as end:
        parse([*options, "--print-config"], program="ogrpo train", preset="none")
    assert end.value.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    again = with_values(TrainConfig(), read_file(path), path)
    assert again == parse(options, program="ogrpo train", preset="none")
    assert as_file(again) == path.read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer:\n  learning_rat: 1\n", r"no option optimizer.learning_rat.*learning-rate"),
        ("optimiser:\n  b1: 1\n", r"no option optimiser. Did you mean optimizer\?"),
        ("schedule: 3\n", r"schedule is 3: give a table"),
        ("schedule:\n  steps: many\n", r"schedule.steps is 'many': give int"),
        ("schedule:\n  steps: 0\n", r"schedule.steps is 0"),
        ("- 1\n", r"holds no options"),
        ("{", r"cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        with_values(TrainConfig(), read_file(path), path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"there is no such file"):
        read_file(tmp_path / "none.toml")
    assert split(["--config", "x", "--seed", "1"]).options == ["--seed", "1"]


@pytest.mark.slow
def test_train_eval_rescore_report_and_compare(task, tmp_path, monkeypatch, capsys):
    def command(*arguments):
        code = main([*map(str, arguments)])
        return code, capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    rewards = tmp_path / "my_rewards.py"
    rewards.write_text(
        "def near(prompts, completions, answer, **columns):\n"
        "    return [float(text.split()[-1:] == [gold])"
        " for text, gold in zip(completions, answer)]\n"
    )
    for name in ("one", "two"):
        code, told = command(
            *("train", "--task", task, "--rewards", "my_rewards.py:near", "--run-dir", name),
            *("--seed", len(name), *SMALL, *(("--knobs.beta", "0.1") if name == "two" else ())),
        )
        assert code == 0, told
    records = [json.loads(x) for x in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 1, 2]
    assert records[-1]["reward/near"] == records[-1]["reward"]
    page = (tmp_path / "one/report.html").read_text()
    (tmp_path / "one/report.html").unlink()
    code, told = command("report", "one")
    assert (code, (tmp_path / "one/report.html").read_text()) == (0, page), told
    code, told = command("compare", "one", "two", "--output", "both.html")
    assert code == 0, told
    assert "knobs.beta" in told
    assert "knobs.beta" in (tmp_path / "both.html").read_text()
    evaluated = ("eval", "--task", task, "--rewards", "my_rewards.py:near")
    drawn = ("--model.path", "one/model", "--samples", "4", "--temperature", "1")
    code, told = command(*evaluated, *drawn, "--max-tokens", "16", "--output", "answers.jsonl")
    assert code == 0, told
    answers = [json.loads(x) for x in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 4 * 4  # a tenth of 36 problems is held out
    code, told = command(*evaluated, "--rescore", "answers.jsonl")
    assert code == 0, told
    assert "0 of 16 verdicts changed" in told
    with pytest.raises(SystemExit):
        main(["eval", "--print-config"])
    assert yaml.safe_load(capsys.readouterr().out)["task"] == "gsm8k"


def test_evaluation_without_a_model_is_refused(task, capsys):
    assert main(["eval", "--task", str(task)]) == 2
    assert "--model.path" in capsys.readouterr().err
