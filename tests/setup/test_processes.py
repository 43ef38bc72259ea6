"""Runs of two processes with two devices each, beside the same runs of one process."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.chaos.processes import free_port
from benchmarks.chaos.schedules import Schedule, make_task
from ogrpo.learner import hosts
from ogrpo.report.run_dir import RunDir
from ogrpo.setup import processes
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from ogrpo.setup.processes import check_alike, check_processes
from tests.loop.walk import with_options
from tests.run.small_run import untimed

ROOT = Path(__file__).parents[2]
SERVE = re.compile(r"^  ogrpo-serve (.+)$")
STEPS = 3


@pytest.fixture(scope="module")
def task(tmp_path_factory) -> Path:
    return make_task(tmp_path_factory.mktemp("task"))


def started(devices: int, *options: str, **environment: str) -> subprocess.Popen[str]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", "ogrpo", "train", *options],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, **environment},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def pair(*options: str) -> list[subprocess.Popen[str]]:
    where = f"--processes.coordinator=127.0.0.1:{free_port()}"
    ids = [f"--processes.id={n}" for n in range(2)]
    return [started(2, *options, where, "--processes.count=2", number) for number in ids]


def found_by_slurm(*options: str) -> list[subprocess.Popen[str]]:
    """The same with what Slurm tells each task in place of the options."""
    job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost"}
    tasks = [{**job, "SLURM_NTASKS": "2", "SLURM_PROCID": n, "SLURM_LOCALID": n} for n in "01"]
    return [started(2, *options, "--processes.auto", **task) for task in tasks]


def outputs(*processes: subprocess.Popen[str], code: int = 0) -> list[str]:
    """Returns each process's output when all have ended so; if one hangs the others are ended."""
    try:
        printed = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert {process.returncode for process in processes} == {code}, printed
    return printed


def records(run: Path) -> list[dict]:
    return RunDir(run).read_metrics()


def compare(run: Path, expected: Path, steps: int = STEPS) -> None:
    """Metrics and weights to rounding."""
    actual, desired = records(run), records(expected)
    assert len(actual) == steps + 1
    for ours, theirs in zip(actual, desired, strict=True):
        ours, theirs = (untimed(record, "sync/", "server/") for record in (ours, theirs))
        assert ours.keys() == theirs.keys()
        for name, x in theirs.items():
            about = pytest.approx(x, rel=1e-4, abs=1e-5) if isinstance(x, float) else x
            assert ours[name] == about, name
    ours, theirs = (load_file(next((at / "model").glob("*.safetensors"))) for at in (run, expected))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        np.testing.assert_allclose(ours[name], weight, rtol=0, atol=1e-4)


def learned(run: Path) -> None:
    assert len({record["reward"] for record in records(run)}) > 2
    assert all(record["grad_norm"] > 1e-3 for record in records(run)[1:])


@pytest.mark.slow
def test_a_run_of_two_processes_stops_and_goes_on_and_is_that_of_one(task, tmp_path):
    steps = 5  # more than go by between a step's record and a signal
    schedule = Schedule(  # on a mesh where no process has all of a weight
        "--mesh.fsdp=2 --mesh.tensor=2 --schedule.sync-interval=2 --optimizer.batching=packed"
        " --knobs.beta=0.1 --evaluation.token-samples=0"
    )
    (output,) = outputs(started(4, *schedule.words(task, tmp_path / "one", steps)))
    assert "mesh data 1 x fsdp 2 x tensor 2: parameters" in output
    assert "repeated, layers.self_attn.k_proj.weight: 1 kv_heads cannot be cut" in output
    learned(tmp_path / "one")
    run = tmp_path / "t[w]o"
    both = pair(*schedule.words(task, run, steps))
    await_step(run, 1, both)
    both[1].send_signal(signal.SIGTERM)
    printed = outputs(*both, code=130)
    assert "stopped by SIGTERM after step" in printed[0]
    assert 0 < len(records(run)) < steps + 1
    printed = outputs(*found_by_slurm(f"--run-dir={run}", "--resume"))
    compare(run, tmp_path / "one", steps)
    assert "step" in printed[0]
    assert "run directory" not in printed[1]


def await_step(run: Path, step: int, processes: list[subprocess.Popen[str]]) -> None:
    while not (run / "metrics.jsonl").exists() or len(records(run)) <= step:
        assert not any(process.poll() is not None for process in processes), outputs(*processes)
        time.sleep(0.05)


def served(*processes: subprocess.Popen[str]) -> list[str]:
    """Starts the server that the first process asks for; returns what each prints to its end.

    With the embedded sampler in vLLM's place.
    """
    lines, stream = [], processes[0].stdout
    assert stream is not None
    while (command := SERVE.match(line := stream.readline())) is None:
        assert line, outputs(*processes)
        lines.append(line)
    words = [sys.executable, "-m", "ogrpo.serving.serve", *shlex.split(command[1])]
    with subprocess.Popen([*words, "--engine", "embedded"], stdout=subprocess.DEVNULL) as server:
        try:
            first, *others = outputs(*processes)
        finally:
            server.terminate()
    return ["".join([*lines, line, first]), *others]


@pytest.mark.slow
def test_a_run_says_how_to_start_its_server_and_of_two_processes_the_first_talks_to_it(
    task, tmp_path
):
    ahead = "--schedule.sync-interval=2 --schedule.sync-offset=1 --schedule.replay=2"
    one, two = tmp_path / "one", tmp_path / "two"
    url, other_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    options, others = (
        Schedule(f"{ahead} --replay.groups=8 --rollout.url={at}").words(task, run, STEPS)
        for at, run in ((url, one), (other_url, two))
    )
    (output,) = served(started(1, *options))
    waiting = rf"waiting for {url} \(.*refused\); start it elsewhere with:\n  ogrpo-serve "
    assert re.search(f"{waiting}{one / 'initial'} --device cpu", output)
    assert f"server         {url}" in output
    assert re.search(rf"step +{STEPS} .*running \d+ .*push \d+\.\d\d s", output)
    learned(one)
    *_, last = lines = records(one)[1:]
    # Evaluated by the server, it gets the trainer's weights for that, and its own again after.
    assert last["sync/count"] == 6
    assert min(last["sync/bytes"], last["server/generated_tokens"]) > 0
    assert all(line["sync/seconds"] > 0 for line in lines)
    page = (one / "report.html").read_text()
    assert "pushes of weights to servers<td>6" in page
    assert "requests that failed and were sent again<td>0" in page
    assert "Seconds of the last push of weights to servers" in page
    served(*pair(*others, "--mesh.data=2", "--mesh.fsdp=2"))
    compare(two, one)


def test_processes_that_were_told_different_things_are_refused(monkeypatch):
    both = [{"configuration": name, "tokenizer": "a"} for name in "ab"]
    monkeypatch.setattr(processes, "several", lambda: True)
    monkeypatch.setattr(processes, "digests", lambda _: both[0])
    monkeypatch.setattr(processes, "everyone", lambda _: both)
    with pytest.raises(ValueError, match=r"the configuration of processes \[1\] differs"):
        check_alike(None)
    monkeypatch.setattr(processes, "everyone", lambda _: both[:1] * 2)
    check_alike(None)


def test_two_configs_have_other_digests_and_two_places_the_same(tmp_path):
    config = with_options(main_study(), {"data.train": 40})
    configs = (config, replace(config, seed=1), replace(config, run_dir=tmp_path))
    digests = []
    for each in configs:
        with closing(prepare(each)) as prepared:
            digests.append(processes.digests(prepared)["configuration"])
    assert digests[0] == digests[2] != digests[1]
    seen = []
    for columns in (
        {"a": 1, "b": np.arange(2)},
        {"b": np.arange(2), "a": 1},
        {"a": 1, "b": {(1,): 2}},
    ):
        other = replace(prepared, heldout=[replace(x, columns=columns) for x in prepared.heldout])
        seen.append(processes.digests(other)["held-out problems"])
    assert seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"schedule.sync_offset": 1}, "schedule.sync-offset is 1.*give 0, or servers"),
        ({"rollout.workers": 2}, "rollout.workers is 2.*give 1, or servers"),
    ],
)
def test_the_embedded_sampler_of_several_processes_keeps_step(monkeypatch, setting, message):
    config = with_options(main_study(), setting)
    check_processes(config)
    monkeypatch.setattr(processes, "several", lambda: True)
    check_processes(main_study())
    with pytest.raises(ValueError, match=message):
        check_processes(config)
    check_processes(with_options(config, {"rollout.url": ("http://127.0.0.1:1",)}))
    with pytest.raises(ValueError, match="several processes do not imitate together"):
        check_processes(with_options(main_study(), {"warm_start.solutions": True}))


def test_one_process_says_nothing_to_others():
    tree = {"a": np.ones(2)}
    assert hosts.fetch(tree) is tree
    assert hosts.from_first(lambda: 3) == hosts.on_first(lambda: 3) == 3
    assert hosts.everyone(3) == [3]
    with pytest.raises(KeyError, match="mine"):
        hosts.on_first(lambda: {}["mine"])
