"""The commands from end to end on a small file: what they write, print and refuse.

`ogrpo env` describes the machine for a bug report and prints no secret.
"""

import contextlib
import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

import ogrpo
from ogrpo.cli import env
from ogrpo.cli.main import COMMANDS, main, usage
from ogrpo.cli.options import as_file, parse, read_file
from ogrpo.config.train import TrainConfig
from ogrpo.rollout.collection import CollectionError
from ogrpo.rollout.vllm.errors import RolloutError
from ogrpo.system.terminal import RunNote
from ogrpo.system.values import changed
from tests.loop.walk import SUMS
from tests.run import rewards
from tests.run.small_run import make_parts_again

SMALL = (
    *("--schedule.steps", "2", "--schedule.prompts", "4", "--rollout.group-size", "4"),
    *("--warm-start.steps", "4", "--evaluation.prompts", "4"),
    *("--evaluation.no-gradient-variance", "--evaluation.token-samples", "0"),
)


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
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ogrpo {importlib.metadata.version('ogrpo')}\n"


def test_help_is_light_and_algorithms_have_a_list_of_their_own(capsys):
    """Neither JAX nor NumPy is loaded for the help of a command with a config."""
    program = "import sys; from ogrpo.cli.main import main\ntry: main([sys.argv[1], '--help'])\n"
    program += "finally: print({'jax', 'numpy', 'pyarrow', 'httpx'} & {*sys.modules})"
    for name in ("train", "eval"):
        shown = subprocess.check_output([sys.executable, "-c", program, name], text=True)
        assert shown.splitlines()[-1] == "set()"
    with pytest.raises(SystemExit):
        parse(["--algorithms"], program="ogrpo train", preset="none")
    assert "off_policy_grpo: the clip of pi/mu" in capsys.readouterr().out


def noted(error, note="step 3 is saved; go on with:\n  ogrpo train --run-dir r --resume"):
    error.add_note(RunNote(note))
    return error


def ended_by(cause):
    """Returns what ends a collection whose thread this ended."""
    error = CollectionError(f"step 0: {cause}")
    error.__cause__ = cause
    return error


GO_ON = "  ogrpo train --run-dir r --resume"
FULL = OSError(28, "No space left on device", "metrics.jsonl")
ENDS = [
    # what ends a command, what it came from; exit code, whether a traceback stands above, last line
    (noted(RuntimeError("x" * 9000)), None, 1, True, GO_ON),
    (RuntimeError("closing failed, too"), noted(MemoryError()), 1, True, GO_ON),
    (noted(FULL), None, 2, False, GO_ON),
    (noted(KeyboardInterrupt()), None, 130, False, GO_ON),
    (KeyboardInterrupt("SIGTERM: interrupted"), None, 130, False, "SIGTERM: interrupted"),
    (ValueError("seed is -1"), None, 2, False, "error: seed is -1"),
    (ended_by(KeyError("a")), None, 1, True, "error: CollectionError: step 0: 'a'"),
    (ended_by(UnicodeError("b")), None, 1, True, "error: CollectionError: step 0: b"),
    (ended_by(RolloutError("none")), None, 2, False, "error: step 0: none"),
]


@pytest.mark.parametrize("end", ENDS)
def test_whatever_ends_a_command_the_last_lines_are_ours(monkeypatch, capsys, end):
    error, cause, code, traced, last = end
    error.__context__ = cause
    monkeypatch.setattr("ogrpo.cli.env.main", Mock(side_effect=error))
    monkeypatch.setattr("atexit.register", lambda _function: None)
    assert main(["env"]) == code
    shown = capsys.readouterr().err
    assert shown.splitlines()[-1] == last
    assert ("Traceback" in shown) == traced
    assert len("\n".join(shown.splitlines()[-3:])) < 800


def test_options_come_from_files_and_what_is_typed_comes_after(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("seed: 3\nalgorithm: dapo\noptimizer:\n  learning-rate: 1e-4\n")
    how, options = {"program": "ogrpo train", "preset": "none"}, ["--config", str(path)]
    config = parse([*options, "--seed", "4"], **how)
    assert (config.seed, config.algorithm, config.optimizer.learning_rate) == (4, "dapo", 1e-4)
    with pytest.raises(ValueError, match="--config is given 2 times"):
        parse(options * 2, **how)
    for words, file in ((["--resume"], "run_dir: runs/1"), ([], "resume: true\nrun_dir: runs/1")):
        path.write_text(file)
        with pytest.raises(ValueError, match="needs the --run-dir"):
            parse([*options, *words], **how)


def test_what_print_config_prints_is_read_again(tmp_path, capsys):
    options = ["--rewards", "a.py:x", "b.py:y", "--knobs.beta", "0.1", "--model.path", "1e-4"]
    with pytest.raises(SystemExit) as end:
        parse([*options, "--print-config"], program="ogrpo train", preset="none")
    assert end.value.code == 0
    path = tmp_path / "printed.yaml"
    path.write_text(capsys.readouterr().out)
    again = changed(TrainConfig(), read_file(path), f"--config {path}: ")
    assert again == parse(options, program="ogrpo train", preset="none")
    assert as_file(again) == path.read_text()
    with pytest.raises(ValueError, match="--preset is chains, and the file's preset none"):
        parse(["--config", str(path), "--preset", "chains"], program="ogrpo train", preset="none")


WRONG_YAML = [
    ("optimizer:\n  learning_rat: 1\n", r"no option optimizer.learning_rat.*learning-rate"),
    ("schedule:\n  steps: many\n", r"schedule.steps is 'many': give int"),
    ("- 1\n", r"holds no options"),
    ("a: &x [1, 1]\nb: [*x, *x]\n", r"it has a reference \(\*x\)"),
    ("seed: 1\nseed: 2\n", r"it has 'seed' twice"),
    ("optimizer:\n  warmup: 1\nrun-dir: a\nrun_dir: b\n", r"it has 'run-dir' twice"),
    ("seed: " + "9" * 30, r"seed is 9+: give int"),
    ("seed: 4294967296", r"seed is 4294967296: give at least 0 and below 4294967296"),
    ("certificate:\n  delta: None\n", r"delta is 'None': give float or null"),
    ("seed: !!python/object/apply:os.system [ls]\n", r"cannot be read"),
    ("optimizer:\n  learning-rate: .nan\n", r"learning-rate is nan: give float"),
    ("rollout:\n  url: [http://me:SECRET@host]\n", r"rollout.url has credentials"),
    ("[" * 5000, r"nested deeper than 100"),
    (b"# \xff", r"is not UTF-8 \(byte 2\)"),
    ("#" * (1 << 20) + "#", r"has more than 1048576 bytes"),
]


@pytest.mark.parametrize(("content", "message"), WRONG_YAML)
def test_a_file_that_is_wrong_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as caught:
        changed(TrainConfig(), read_file(path), f"--config {path}: ")
    assert "wrong.yaml" in str(caught.value)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://me:SECRET@host:1", "me:SECRET@host", "http://h/?k=SECRET"])
def test_a_servers_password_reaches_nobody(tmp_path, monkeypatch, capfd, url):
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "run.yaml"
    config.write_text(f"rollout:\n  url: ['{url}']\n")
    train = ["train", "--task", SUMS, "--run-dir", "run"]
    for command in (
        [*train, "--rollout.url", url],
        [*train, "--rollout.url", url, "--print-config"],
        [*train, "--config", str(config)],
        ["eval", "--task", SUMS, "--model.path", ".", "--servers.url", url],
    ):
        with contextlib.suppress(SystemExit):
            assert main(command) == 2
        said = "".join(capfd.readouterr())
        assert "SECRET" not in said
        assert "OGRPO_API_KEY" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_train_eval_report_and_compare(tmp_path, monkeypatch, capsys):
    def command(*arguments):
        code = main([*map(str, arguments)])
        return code, "".join(capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("ogrpo.run.main.make_parts", make_parts_again)
    problems = Path(shutil.copy(SUMS, "sums.jsonl"))
    judged = ("--task", problems, "--rewards", "my_rewards.py:ends_right")
    shutil.copy(rewards.__file__, "my_rewards.py")
    code, output = command("train", *judged, "--run-dir", "one", *SMALL)
    assert code == 0, output
    records = [json.loads(x) for x in (tmp_path / "one/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records] == [0, 1, 2]
    assert records[-1]["reward/ends_right"] == records[-1]["reward"]
    page = (tmp_path / "one/report.html").read_text()
    (tmp_path / "one/report.html").unlink()
    code, output = command("report", "one")
    assert (code, (tmp_path / "one/report.html").read_text()) == (0, page), output
    longer = ("train", "--run-dir", "one", "--resume", "--schedule.steps", "3")
    code, output = command(*longer)
    assert code == 0, output
    card = (tmp_path / "one/model/README.md").read_text()
    assert card.count("my_rewards.py:ends_right") == card.count("--schedule.steps 3") == 1
    problems.write_text(problems.read_text().replace('"answer": "', '"answer": "1'))
    code, output = command(*longer)
    assert code == 2
    assert "training problems: not the checkpoint's" in output
    config = tmp_path / "two/config.json"
    shutil.copytree("one", "two")
    config.write_text(config.read_text().replace('"beta": null', '"beta": 0.1'))
    code, output = command("compare", "one", "two")
    assert code == 0, output
    assert "knobs.beta" in output
    drawn = ("--model.path", "one/model", "--samples", "4", "--temperature", "1")
    kept = ("--max-tokens", "16", "--output", "answers.jsonl")
    code, output = command("eval", *judged, *drawn, *kept)
    assert code == 0, output
    answers = [json.loads(x) for x in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 2 * 4  # a tenth of 24 problems is held out
    with pytest.raises(SystemExit):
        main(["eval", "--print-config"])
    assert yaml.safe_load(capsys.readouterr().out)["task"] == "gsm8k"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("report nowhere", "there is no folder nowhere: name the folder of a run"),
        ("report .", ". is no run's folder: it has no config.json"),
        ("compare . nowhere", ". is no run's folder: it has no config.json"),
        ("logs log.jsonl --system x", "--prompt-length, --max-tokens, --system and --temperature"),
        ("logs log.jsonl --temperature 2", "--prompt-length, --max-tokens, --system and --temper"),
        ("model smollm2-135m model", "model exists: name another one"),  # before it is fetched
        ("report model", "model is no run's folder: its config.json names no task"),
        ("logs nowhere", "nowhere is not there"),
        ("eval --task TASK --model.path nowhere", "nowhere is no folder, no GGUF file and no know"),
        ("eval --task TASK --model.path .", ". is a run's folder: its model is model"),
        ("eval --task TASK", "evaluation needs a model: give --model.path"),
        ("train --task TASK --model.path nowhere", "nowhere is no folder, no GGUF file and no kn"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, capsys, command, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "metrics.jsonl").touch()
    assert main(command.replace("TASK", SUMS).split()) == 2
    assert f"error: {message}" in capsys.readouterr().err


VARIABLES = {
    "OGRPO_API_KEY": "s3cret",
    "VLLM_API_KEY": "s4cret",
    "OGRPO_PROXY": "http://me:s5cret@host:1/",
    "VLLM_PROXY": "http://host:1/?key=s6cret",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "HOME_ADDRESS": "nobody asked",
}


def test_a_report_says_what_runs_here_and_hides_keys(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    lines = env.environment().splitlines()
    assert lines[0].endswith(str(Path(ogrpo.__file__).parent))
    assert "device info: cpu-1" in "\n".join(lines)
    assert f"flax: {importlib.metadata.version('flax')}" in lines
    assert {"OGRPO_API_KEY=(hidden)", "VLLM_API_KEY=(hidden)"} < {*lines}
    assert {"OGRPO_PROXY=http://...", "VLLM_PROXY=http://..."} < {*lines}
    assert f"XLA_FLAGS={VARIABLES['XLA_FLAGS']}" in lines
    assert not any("cret" in line or "HOME_ADDRESS" in line for line in lines)
