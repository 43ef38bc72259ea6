"""`--rollout.url` as a user types it, against the protocol from the embedded sampler."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = (
    "--data.train=64 --warm-start.steps=4 --warm-start.batch=4 --warm-start.problems=16 "
    "--rollout.group-size=4 --schedule.prompts=4 --schedule.evaluate-every=2 --schedule.v=2 "
    "--evaluation.prompts=6 --schedule.steps=4"
).split()


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.run", "gsm8k", *SMALL, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    done = run(f"--run-dir={folder}", "--warm-start.no-cache")
    assert done.returncode == 0, done.stderr
    return folder / "model"


@pytest.fixture(scope="module")
def url(model):
    command = [sys.executable, "-m", "ogrpo.serve", str(model), "--engine", "embedded"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--max-model-len", "96"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    found = re.search(r"http://\S+", process.stdout.readline())
    assert found is not None
    yield found[0]
    process.terminate()
    process.communicate(timeout=30)


def test_training_through_a_server_is_recorded(model, url, tmp_path):
    folder = tmp_path / "served"
    done = run(f"--model.path={model}", f"--rollout.url={url}", f"--run-dir={folder}")
    assert done.returncode == 0, done.stderr
    assert url in done.stdout
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["staleness"] for r in records] == [None, 0, 1, 0, 1]
    assert records[-1]["sync/count"] == 2
    assert records[-1]["sync/bytes"] > 0
    assert records[-1]["server/generated_tokens"] > 0
    assert all(r["sync/seconds"] > 0 for r in records[1:])
    assert re.search(r"step +4 .*running \d+ .*push \d+\.\d\d s", done.stdout)
    page = (folder / "report.html").read_text()
    assert "Weights sent to the servers" in page
    assert "of 2 pushes" in page
    assert (folder / "plots" / "push_seconds.png").is_file()
    assert all(r["mismatch"] < 1e-4 for r in records if r["staleness"] == 0)


def test_a_server_that_is_not_there_is_named(model, tmp_path):
    gone = "http://127.0.0.1:9"
    done = run(f"--model.path={model}", f"--rollout.url={gone}", f"--run-dir={tmp_path / 'r'}")
    assert done.returncode == 2
    assert gone in done.stderr
    assert "Traceback" not in done.stderr
