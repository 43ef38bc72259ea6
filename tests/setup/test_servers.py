"""`--rollout.url` as a user types it, against the protocol from the embedded sampler."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.chaos.processes import free_port
from ogrpo.cli.main import main
from tests.processes import serving

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = (
    "--data.train=64 --model.random=tiny --rollout.group-size=4 --schedule.prompts=4 "
    "--schedule.evaluate-every=2 --schedule.sync-interval=2 --evaluation.prompts=6 --schedule.steps=4 "
    "--certificate.delta=None"  # whose draws by the old weights are pushes too
).split()
SERVE = re.compile(r"^  ogrpo-serve (.+)$", re.MULTILINE)


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "experiments.run", "gsm8k", *SMALL, *options]


@pytest.fixture
def free_url():
    return f"http://127.0.0.1:{free_port()}"


def test_a_run_says_how_to_start_its_server_waits_for_it_and_trains(free_url, tmp_path):
    folder = tmp_path / "served"
    words = command(f"--rollout.url={free_url}", f"--run-dir={folder}")
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines = []
        while not SERVE.match(line := process.stdout.readline()):
            assert line, process.stderr.read()
            lines.append(line)
        assert re.match(rf"waiting for {free_url} \(.*refused\); start it elsewhere", lines[-1])
        options = SERVE.match(line)[1]
        assert options.startswith(f"{folder / 'initial'} --device cpu")
        with serving(*shlex.split(options)):
            stdout, stderr = process.communicate(timeout=300)
    assert process.returncode == 0, stderr
    stdout = "".join(lines) + stdout
    assert f"server         {free_url}" in stdout
    assert "tokenizer      the trainer's" in stdout
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [r["staleness"] for r in records] == [None, 0, 1, 0, 1]
    # Evaluated by the server, it gets the trainer's weights for that, and its own again after.
    assert records[-1]["sync/count"] == 8
    assert records[-1]["sync/bytes"] > 0
    assert records[-1]["server/generated_tokens"] > 0
    assert all(r["sync/seconds"] > 0 for r in records[1:])
    assert re.search(r"step +4 .*running \d+ .*push \d+\.\d\d s", stdout)
    page = (folder / "report.html").read_text()
    assert "pushes of weights to servers<td>8" in page
    assert "requests that failed and were sent again<td>0" in page
    assert "Seconds of the last push of weights to servers" in page
    assert all(r["mismatch"] < 1e-4 for r in records if r["staleness"] == 0)


def test_a_server_that_is_not_there_is_named_with_the_command_that_starts_it(
    free_url, tmp_path, capsys
):
    words = [f"--rollout.url={free_url}", "--rollout.wait=0", f"--run-dir={tmp_path}"]
    for _ in range(2):  # nothing but first weights is left behind, so that it can be tried again
        assert main(["train", *SMALL, *words]) == 2
        errors = capsys.readouterr().err
        assert f"{free_url} does not answer; start it with:" in errors
        assert SERVE.search(errors)
        assert "Traceback" not in errors
        assert {path.name for path in tmp_path.iterdir()} == {".ogrpo.lock", "initial"}
