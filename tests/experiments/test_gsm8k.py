"""The command as a user types it, on a scale of seconds: in a process of its own once."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from experiments.run import main
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.run_dir import RunDir
from tests.run.small_run import left, make_parts_again

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GSM8K = Path(os.environ.get("OGRPO_GSM8K", ROOT.parent / "shared" / "gsm8k"))
SMALL = (
    "--data.train=64 --warm-start.steps=4 --warm-start.batch=4 --warm-start.problems=16 "
    "--rollout.group-size=4 --schedule.prompts=4 --schedule.evaluate-every=2 --schedule.sync-interval=3 "
    "--evaluation.prompts=6 --checkpoint.every=2"
).split()
PLAIN = ["--evaluation.no-gradient-variance", "--evaluation.token-samples=0"]
OTHERS = [option for option in SMALL if not option.startswith(("--data.train", "--warm-start"))]
"""Where problems or weights come from elsewhere, options that make them are refused."""
KEYS = set(
    "step completions updates pass@1/sampled pass@1/greedy reward kl/mu_pi ess staleness "
    "seconds/rollout seconds/update seconds/sync seconds/eval heldout/temperature "
    "pass@1/sampled/low pass@1/sampled/high pass@4/sampled pass@4/sampled/low".split()
)


@pytest.fixture(scope="module", autouse=True)
def _caches_of_this_module(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGRPO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(ROOT)
        patch.setattr("ogrpo.run.main.make_parts", make_parts_again)
        yield


def run(*options: str, code: int = 0) -> str:
    """Runs the command in this process; returns what it printed, without boxes."""
    output = StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        try:
            ended = main(["gsm8k", *options])
        except SystemExit as stopped:
            ended = stopped.code
    assert ended == code, output.getvalue()
    assert "Traceback" not in output.getvalue()
    return " ".join(output.getvalue().replace("│", " ").split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    command = [sys.executable, "-m", "experiments.run", "gsm8k", *SMALL]
    words = [*command, "--schedule.steps=4", f"--run-dir={folder}"]
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}  # which has no mu
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def records(folder: Path) -> list[dict]:
    return RunDir(folder).read_metrics()


def test_the_run_directory_holds_what_was_promised(finished):
    folder, output = finished
    written = records(folder)
    assert all({*record} >= KEYS for record in written)
    assert [r["step"] for r in written] == [0, 1, 2, 3, 4]
    assert [r["staleness"] for r in written] == [None, 0, 1, 2, 0]
    assert written[-1]["pass@1/greedy"] is not None
    evaluated = [r["pass@4/sampled"] is not None for r in written]
    assert evaluated == [r["pass@1/sampled"] is not None for r in written]
    page = (folder / "report.html").read_text()
    assert "Pass@4, sampled" in output
    assert "held-out Pass@4, sampled" in page  # a card
    assert '<th scope="col">Pass@4, sampled' in page
    assert "split “test”" in page
    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["schedule"]["sync_interval"], config["seed"]) == ("gsm8k", 3, 0)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["2", "4"]
    lines = [json.loads(line) for line in (folder / "tokens.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert [{each["staleness"] for each in line["completions"]} for line in lines] == [{1}, {0}]
    for each in lines[1]["completions"]:  # drawn with the weights that scored them
        pairs = zip(each["mu"], each["pi"], strict=True)
        assert all(abs(mu - pi) < 1e-3 for mu, pi in pairs)
        assert each["removed"] == []
    for name in ("report.html", "model", "metrics.jsonl"):
        assert str(folder / name) in output
    assert "before (step 0)" in output
    assert "after (step 4)" in output


def test_a_finished_run_is_not_overwritten_but_can_be_resumed(finished, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0], folder)
    assert re.search("is not empty .*--resume", run(*SMALL, f"--run-dir={folder}", code=2))
    run(f"--run-dir={folder}", "--resume", "--schedule.steps=5")
    assert left(folder)[0][:5] == left(finished[0])[0]
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3, 4, 5]


def test_the_official_data_and_a_random_model(tmp_path):
    if not (GSM8K / "train.jsonl").is_file():
        pytest.skip(f"GSM8K's train.jsonl is not in {GSM8K}: set OGRPO_GSM8K")
    folder = tmp_path / "official"
    options = [*OTHERS, *PLAIN, f"--data.path={GSM8K}", "--model.random=tiny"]
    short = ["--data.limit=200", "--data.prompt-length=64", "--rollout.max-tokens=8"]
    prompt = ["--data.prompt={question}", "--schedule.steps=2"]
    output = run(*options, *short, *prompt, f"--run-dir={folder}")
    assert re.search(r"\d+ training prompts longer than 64 tokens, left out", output)
    assert records(folder)[-1]["truncated"] > 0


def test_a_saved_model_is_trained_further(finished, tmp_path):
    folder = tmp_path / "further"
    model = finished[0] / "model"
    options = [*OTHERS, *PLAIN, "--preset=none", "--data.train=64", f"--model.path={model}"]
    assert "warm start" not in run(*options, "--schedule.steps=2", f"--run-dir={folder}")
    last, first = records(finished[0])[-1], records(folder)[0]
    assert first["pass@1/greedy"] == last["pass@1/greedy"]


def test_adapters_are_trained_told_of_saved_and_resumed(tmp_path):
    folder = tmp_path / "lora"
    output = run(*SMALL, *PLAIN, "--schedule.steps=2", "--lora.rank=3", f"--run-dir={folder}")
    assert re.search(r"lora: rank 3, alpha 32, targets all: [\d,]+ weights trained", output)
    load_pretrained(folder / "model", np.float32)  # a decoder's own tensors and no others
    fields = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"], len(fields["target_modules"])) == (3, 32, 7)
    kept = sum(f.stat().st_size for f in (folder / "checkpoints").rglob("*") if f.is_file())
    assert kept < (folder / "model" / "model.safetensors").stat().st_size
    assert fields["base_model_name_or_path"] == str((folder / "initial").resolve())
    message = run(f"--run-dir={folder}", "--resume", "--lora.alpha=64", code=2)
    assert "was started with --lora.alpha 32.0, which cannot change to 64.0" in message
    shutil.rmtree(os.environ["OGRPO_CACHE_DIR"] + "/warm-start")  # the run keeps its own
    longer = [f"--run-dir={folder}", "--resume", "--schedule.steps=3", "--warm-start.steps=1"]
    assert "--warm-start.steps: 4 then, 1 now" in run(*longer, code=2)
    run(*longer, "--resume-anyway")
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--run-dir=r", "--rollout.group-size=1"], "rollout.group-size = 1"),
        (["--run-dir=r", "--mesh.tensor=64"], "tensor 64 takes 64 devices, and there are"),
        (["--run-dir=file"], "file cannot be used"),
    ],
)
def test_bad_input_is_answered_and_leaves_no_traceback(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    assert message in run(*SMALL, *options, code=2)
    assert [*Path("r").glob("*")] == []


def test_an_unknown_study_is_answered_with_the_nearest(capsys):
    assert main(["gsmk8"]) == 2
    assert "Did you mean 'gsm8k'?" in capsys.readouterr().err
