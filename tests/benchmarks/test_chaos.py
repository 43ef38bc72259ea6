"""The checks for loss, doubling and leaks find them; a short storm and a short soak are survived."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from benchmarks.chaos import kills, soak
from benchmarks.chaos.compare import differences, prompt_differences
from benchmarks.chaos.schedules import BATCH, PROMPTS, Schedule
from benchmarks.chaos.soak import Sample, slopes
from benchmarks.chaos.storm import examine
from ogrpo.data.batching import PromptStream

ROOT = Path(__file__).parents[2]
STEPS, SIZE = 3, 4


def write_groups(run, first, problems, *, silent=0):
    """A segment of groups as runs leave them, of which the first completions carry no loss."""
    folder = run / "experience"
    folder.mkdir(exist_ok=True)
    stop = first + len(problems)
    whole = [{"start": 0, "end": 2}]
    rows = [
        {
            "group": first + n // SIZE,
            "completion": n % SIZE,
            "problem": problems[n // SIZE],
            "token_ids": [n, n + 1],
            "without_loss": whole if n < silent else [],
        }
        for n in range(SIZE * len(problems))
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / f"groups-{first:012d}-{stop:012d}.parquet")


def write_records(run, *, unjudged=0, **changed):
    lines = [{"step": n, "loss": n / 7, "seconds/update": 0.1} for n in range(STEPS + 1)]
    lines[1]["unjudged"] = unjudged
    lines[-1] |= changed
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def run(tmp_path):
    """Writes a run folder of three steps, as far as the checks read it."""
    made = tmp_path / "run"
    (made / "model").mkdir(parents=True)
    save_file({"weight": np.arange(4.0)}, made / "model" / "model.safetensors")
    write_records(made)
    stream = PromptStream(PROMPTS, BATCH, 0)
    for step in range(STEPS):
        write_groups(made, step * BATCH, stream.indices(step).tolist())
    return made


@pytest.fixture
def other(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "other"))


def prompts(run):
    return [*prompt_differences(run, steps=STEPS, size=SIZE)]


def test_equal_runs_have_no_difference_whatever_they_cost(run, other):
    write_records(other, **{"seconds/update": 9.0, "collect/seconds": 1.0})
    assert [*differences(other, run)] == []
    assert prompts(run) == []


def test_one_figure_one_byte_and_one_token_are_seen(run, other):
    write_records(other, loss=np.nextafter(STEPS / 7, 1))
    (line,) = differences(other, run)
    assert line.startswith(f"step {STEPS}: loss is 0.42857142857142")
    write_records(other)
    save_file({"weight": np.arange(4.0) + 1e-9}, other / "model" / "model.safetensors")
    assert [*differences(other, run)] == ["model/model.safetensors differs"]
    shutil.rmtree(other / "model")
    assert "model/model.safetensors differs" in differences(other, run)
    shutil.copytree(run / "model", other / "model")
    write_groups(other, 0, [0, 0, 0, 0])
    assert any("problem of group" in line for line in differences(other, run))


def test_a_prompt_that_is_lost_or_doubled_is_seen(run, other):
    last = f"groups-{(STEPS - 1) * BATCH:012d}-{STEPS * BATCH:012d}.parquet"
    (other / "experience" / last).unlink()
    lost = PromptStream(PROMPTS, BATCH, 0).indices(STEPS - 1).tolist()
    assert any(f"{lost} are lost, [] doubled" in line for line in prompts(other))
    write_groups(run, STEPS * BATCH, [lost[0]] * BATCH)
    assert any(f"[] are lost, {[lost[0]] * BATCH} doubled" in line for line in prompts(run))


def test_a_storm_s_verdicts_and_weights_are_counted(run):
    assert [*examine(run)] == []
    write_records(run, unjudged=3)
    assert [*examine(run)] == ["3 completions were recorded without a verdict, 0 carry no loss"]
    write_groups(run, 0, PromptStream(PROMPTS, BATCH, 0).indices(0).tolist(), silent=3)
    assert [*examine(run)] == []
    save_file({"weight": np.array([1.0, np.nan])}, run / "model" / "model.safetensors")
    assert [*examine(run)] == ["model.safetensors: weight is not finite"]


def samples(**growing):
    held = {"resident": 10**9, "handles": 12, "threads": 5, "arrays": 80}
    grown = [{k: v + int(n * growing.get(k, 0)) for k, v in held.items()} for n in range(100)]
    return [Sample(n, **each, seconds=0.1) for n, each in enumerate(grown)]


def test_what_grows_is_called_a_leak():
    assert slopes(samples()).wrong == []
    assert slopes(samples(resident=soak.BYTES_A_STEP - 100)).wrong == []
    assert "memory grew" in slopes(samples(resident=soak.BYTES_A_STEP + 100)).wrong[0]
    for name in ("handles", "threads", "arrays"):
        (line,) = slopes(samples(**{name: 0.1})).wrong
        assert line.startswith(f"{name} grew by")


def test_a_life_that_does_not_end_is_a_failure_and_no_kill(tmp_path, monkeypatch):
    def start(*_, **__):
        return os.posix_spawnp("sleep", ["sleep", "60"], os.environ)

    monkeypatch.setattr(kills, "LONGEST", 0.1)
    monkeypatch.setattr(kills, "start", start)
    case = kills.Case(Schedule(), tmp_path / "case", [])
    lives, failure = kills.until_done(lambda *_: kills.live(case, []), [])
    assert len(lives) == 1
    assert failure.startswith(f"ended with {kills.HUNG}")


@pytest.mark.slow
def test_a_run_of_many_steps_holds_no_more_handles_threads_and_arrays(tmp_path):
    grown = slopes(soak.run(tmp_path, 100, soak.OPTIONS + soak.IN_STEP))
    # A pool may end idle threads meanwhile: fewer are no leak.
    assert max(grown.handles, grown.threads, grown.arrays) <= 0, grown


@pytest.mark.slow
def test_a_run_outlives_its_servers_its_rewards_and_its_trainer():
    blows = ["server killed", "trainer killed"]
    words = [sys.executable, "-m", "benchmarks.chaos", "storm", "--seed", "1", "--blows", *blows]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for blow in blows:
        (line,) = [line for line in done.stdout.splitlines() if line.startswith(blow)]
        assert line.split()[-4:-2] == ["1", "1"], done.stdout  # struck, recovered from
    assert "every prompt of every step is in the data once" in done.stdout
