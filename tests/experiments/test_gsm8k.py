"""The command as a user types it, in a process of its own, on a scale of seconds."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from experiments.run import main
from ogrpo.policy.pretrained import load_pretrained

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
GSM8K = Path(os.environ.get("OGRPO_GSM8K", ROOT.parent / "shared" / "gsm8k"))
SMALL = (
    "--data.train=64 --warm-start.steps=4 --warm-start.batch=4 --warm-start.problems=16 "
    "--rollout.group-size=4 --schedule.prompts=4 --schedule.evaluate-every=2 --schedule.sync-interval=3 "
    "--evaluation.prompts=6 --checkpoint.every=2"
).split()
GIVEN = [option for option in SMALL if not option.startswith(("--data.train", "--warm-start"))]
"""Where problems or weights come from elsewhere, options that make them are refused."""
KEYS = set(
    "step completions updates pass@1/sampled pass@1/greedy reward kl/mu_pi ess staleness "
    "seconds/rollout seconds/update seconds/sync seconds/eval heldout/temperature "
    "pass@1/sampled/low pass@1/sampled/high".split()
)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", "gsm8k", *options]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return {**os.environ, "OGRPO_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}


@pytest.fixture(scope="module")
def run(environment):
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*options),
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


@pytest.fixture
def refused(environment, monkeypatch, capsys):
    """Runs a command that is refused in this process; returns what it said, without boxes."""
    monkeypatch.setenv("OGRPO_CACHE_DIR", environment["OGRPO_CACHE_DIR"])
    monkeypatch.chdir(ROOT)

    def refused(*options: str) -> str:
        capsys.readouterr()
        try:
            code = main(["gsm8k", *options])
        except SystemExit as stopped:
            code = stopped.code
        output = capsys.readouterr()
        assert code == 2, output.err
        assert "Traceback" not in output.err
        return " ".join((output.err + output.out).replace("│", " ").split())

    return refused


@pytest.fixture(scope="module")
def finished(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = run(*SMALL, "--schedule.steps=4", f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    return folder, done


def records(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def deterministic(folder: Path) -> list[dict]:
    # Times, and what is counted since the process began or depends on when files were written.
    apart = ("seconds/", "tokens/s", "collect/", "replay/bytes/allocated", "replay/unacknowledged")
    apart += ("reward/",)
    return [{k: v for k, v in r.items() if not k.startswith(apart)} for r in records(folder)]


def test_every_record_has_the_metrics_that_scripts_rely_on(finished):
    folder, _ = finished
    assert all({*record} >= KEYS for record in records(folder))
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3, 4]
    assert [r["staleness"] for r in records(folder)] == [None, 0, 1, 2, 0]
    assert records(folder)[-1]["pass@1/greedy"] is not None


def test_pass_at_k_stands_beside_pass_at_1_wherever_that_does(finished):
    folder, done = finished
    keys = [{k for k in r if k.startswith("pass@")} for r in records(folder)]
    assert all(found == keys[0] >= {"pass@4/sampled", "pass@4/sampled/low"} for found in keys)
    for record in records(folder):
        assert (record["pass@4/sampled"] is None) == (record["pass@1/sampled"] is None)
    first = next(r for r in records(folder) if r["pass@1/sampled"] is not None)
    assert first["pass@4/sampled"] >= first["pass@1/sampled"]
    assert first["pass@4/sampled"] * 6 == pytest.approx(round(first["pass@4/sampled"] * 6))
    page = (folder / "report.html").read_text()
    assert "Pass@4, sampled" in done.stdout
    assert "held-out Pass@4, sampled" in page  # a card
    assert "<th>Pass@4, sampled" in page
    assert "split “test”" in page


def test_the_run_directory_holds_what_was_promised(finished):
    folder, done = finished
    config = json.loads((folder / "config.json").read_text())
    assert (config["task"], config["schedule"]["sync_interval"], config["seed"]) == ("gsm8k", 3, 0)
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["2", "4"]
    assert len([*(folder / "plots").glob("*.png")]) >= 5
    for name in ("report.html", "model", "metrics.jsonl"):
        assert str(folder / name) in done.stdout
    assert "before (step 0)" in done.stdout
    assert "after (step 4)" in done.stdout


def test_the_report_needs_nothing_but_itself(finished):
    page = (finished[0] / "report.html").read_text()
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "http" not in page.replace("data:image/png;base64", "")
    assert page.count("data:image/png;base64,iVBOR") >= 5


def test_the_model_that_was_saved_can_be_loaded(finished):
    config, params = load_pretrained(finished[0] / "model", np.float32)
    tokenizer = Tokenizer.from_file(str(finished[0] / "model" / "tokenizer.json"))
    assert config.vocab_size >= tokenizer.get_vocab_size()
    assert all(np.isfinite(leaf).all() for leaf in __import__("jax").tree.leaves(params))


def test_a_finished_run_is_not_overwritten_but_can_be_resumed(finished, run, refused, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(finished[0], folder)
    assert re.search("is not empty .*--resume", refused(*SMALL, f"--run-dir={folder}"))
    longer = run(f"--run-dir={folder}", "--resume", "--schedule.steps=5")
    assert longer.returncode == 0, longer.stderr
    assert deterministic(folder)[:5] == deterministic(finished[0])
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3, 4, 5]


def test_without_old_experience_every_checkpoint_kept_can_be_resumed(run, tmp_path):
    folder = tmp_path / "frugal"
    frugal = ["--replay.no-keep", "--checkpoint.keep=2", "--checkpoint.every=1"]
    done = run(*SMALL, *frugal, "--schedule.steps=3", f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    kept = [file.name for file in sorted((folder / "experience").glob("*.parquet"))]
    assert [name[:19] for name in kept] == ["groups-000000000004", "groups-000000000008"]
    shutil.rmtree(folder / "checkpoints" / "3")
    resumed = run(f"--run-dir={folder}", "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert "resuming after step 2" in resumed.stdout
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3]


# Many short steps, so that a signal meets the loop and not its end.
LONG = (*SMALL, "--schedule.steps=40", "--schedule.evaluate-every=20", "--checkpoint.every=15")


@pytest.fixture(scope="module")
def whole(finished, run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = run(*LONG, f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "warm start read from" in done.stdout
    return folder


# With the metrics file there but empty, the initial policy is being evaluated: what is resumed is
# the same command a second time.
@pytest.mark.parametrize("written", [0, 3])
def test_an_interrupted_run_says_how_to_go_on_and_ends_the_same(
    run, environment, whole, tmp_path, written
):
    folder = tmp_path / "interrupted"
    process = subprocess.Popen(
        command(*LONG, f"--run-dir={folder}"),
        env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not (folder / "metrics.jsonl").exists() or len(records(folder)) < written:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert len(records(folder)) <= 40
    assert f"--run-dir {folder} --resume" in output
    assert (folder / "report.html").is_file()
    resumed = run("--run-dir", str(folder), "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert deterministic(folder) == deterministic(whole)


def test_the_official_data_and_a_random_model(run, tmp_path):
    if not (GSM8K / "train.jsonl").is_file():
        pytest.skip(f"GSM8K's train.jsonl is not in {GSM8K}: set OGRPO_GSM8K")
    folder = tmp_path / "official"
    options = [*GIVEN, "--schedule.steps=2", f"--data.path={GSM8K}", "--model.random=tiny"]
    short = ["--data.limit=200", "--data.prompt-length=64", "--rollout.max-tokens=8"]
    short += ["--data.prompt={question}"]
    done = run(*options, *short, f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ training prompts longer than 64 tokens, left out", done.stdout)
    assert records(folder)[-1]["truncated"] > 0


def test_a_saved_model_is_trained_further(finished, run, tmp_path):
    folder = tmp_path / "further"
    model = finished[0] / "model"
    options = [*GIVEN, "--data.train=64", "--schedule.steps=2", f"--model.path={model}"]
    done = run(*options, f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "warm start" not in done.stdout
    last, first = records(finished[0])[-1], records(folder)[0]
    assert first["pass@1/greedy"] == last["pass@1/greedy"]


def test_adapters_are_trained_told_of_saved_and_resumed(run, refused, environment, tmp_path):
    folder = tmp_path / "lora"
    done = run(*SMALL, "--schedule.steps=2", "--lora.rank=3", f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"lora: rank 3, alpha 32, targets all: [\d,]+ weights trained", done.stdout)
    load_pretrained(folder / "model", np.float32)  # a decoder's own tensors and no others
    fields = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (fields["r"], fields["lora_alpha"], len(fields["target_modules"])) == (3, 32, 7)
    kept = sum(f.stat().st_size for f in (folder / "checkpoints").rglob("*") if f.is_file())
    assert kept < (folder / "model" / "model.safetensors").stat().st_size
    assert fields["base_model_name_or_path"] == str((folder / "initial").resolve())
    message = refused(f"--run-dir={folder}", "--resume", "--lora.alpha=64")
    assert "was started with --lora.alpha 32.0, which cannot change to 64.0" in message
    shutil.rmtree(environment["OGRPO_CACHE_DIR"] + "/warm-start")  # the run keeps its own
    longer = [f"--run-dir={folder}", "--resume", "--schedule.steps=3", "--warm-start.steps=1"]
    assert "--warm-start.steps: 4 then, 1 now" in refused(*longer)
    resumed = run(*longer, "--resume-anyway")
    assert resumed.returncode == 0, resumed.stderr
    assert [r["step"] for r in records(folder)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lora.rank=0"], "lora.rank is 0: give at least 1"),
        (
            ["--lora.targets=mlp"],
            "lora.targets is mlp, which changes nothing here: give --lora.rank",
        ),
        (["--rollout.group-size=1"], "rollout.group-size = 1"),
        (["--data.prompt-length=5"], "none of .* prompts fits into data.prompt-length = 5"),
        (["--model.path=nowhere"], "nowhere"),
        (["--data.path=nowhere"], "nowhere"),
        (["--algorithm=grppo"], "there is no algorithm 'grppo'. Did you mean 'grpo'"),
        (["--algorithm=topr", "--knobs.eps-low=0.1"], "topr has no eps_low"),
        (["--schedule.stages=2"], "schedule.stages is 2, but nothing reads the reference policy"),
        (["--mesh.tensor=64"], r"tensor 64 takes 64 devices, and there are \d"),
        (["--resume"], "needs the --run-dir"),
        (["--resume", "--run-dir=nowhere"], "nothing to resume in nowhere"),
        (["--run-dir=pyproject.toml"], "pyproject.toml cannot be used"),
    ],
)
def test_bad_input_is_answered_and_leaves_no_traceback(refused, tmp_path, options, message):
    placed = any("run-dir" in option or option == "--resume" for option in options)
    place = [] if placed else [f"--run-dir={tmp_path / 'r'}"]
    base = GIVEN if any("path" in option for option in options) else SMALL
    assert re.search(message, refused(*base, *options, *place))
    assert not (tmp_path / "r").exists() or not [*(tmp_path / "r").iterdir()]


def test_an_unknown_study_is_answered_with_the_nearest():
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "gsmk8"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "Did you mean 'gsm8k'?" in done.stderr
