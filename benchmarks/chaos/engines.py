"""A run over two real vLLM servers, one of whose engines is killed every minute.

    python -m benchmarks.chaos engines --minutes 15 --python VLLM_PYTHON

`ogrpo-serve --restarts` starts a server again whose engine was killed, with its first weights;
nobody else does anything. An engine is drawn each time from those whose server is well: a start
takes a minute or more, and one that is never let finish would show nothing. Where it takes longer
than a minute, there are times without any server. At the end the trainer is told to stop, and
what it leaves is examined as after a storm.
"""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import numpy as np

from benchmarks.chaos.compare import records
from benchmarks.chaos.kills import Case, initial_model
from benchmarks.chaos.schedules import Schedule, make_task
from benchmarks.chaos.servers import LONGEST, free_port
from benchmarks.chaos.storm import STEPS, Storm, send, told
from benchmarks.chaos.trainer import Trainer, parent
from benchmarks.chaos.victim import die_with_parent

SCHEDULE = Schedule(
    "--schedule.sync-interval=2 --schedule.sync-offset=1 --schedule.evaluate-every=1000"
    " --checkpoint.every=50 --rollout.timeout=60 --rollout.patience=300"
)
KIND = "engine killed"
COUNTED = ("requests", "failed_requests", "discarded_groups", "sync/count", "rollout/refused")
STARTED_AGAIN, BACK = "; starting it again", " is back"
LONGEST_START = 600.0
"""Seconds without a step, in which two servers may start on a busy machine."""
GRACE = 60.0
"""Seconds in which a server must end that is told to."""


class VllmServer:
    """`ogrpo-serve FOLDER --restarts N` on one port."""

    def __init__(self, folder: Path, log: Path, python: str, restarts: int) -> None:
        self._folder, self._log, self._port = folder, log, free_port()
        self._python, self._restarts = python, restarts
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it; does not wait until it answers."""
        place = ["--device", "cpu", "--port", str(self._port), "--max-model-len", str(LONGEST)]
        sizes = ["--max-num-seqs", "32", "--kv-cache-gib", "1", "--python", self._python]
        how = [*place, *sizes, "--restarts", str(self._restarts)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ogrpo.serving.serve", self._folder, *how],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def engines(self) -> list[int]:
        """The processes that compute; none while the server does not answer."""
        if self._process is None or not self._answers():
            return []
        return [pid for pid in descendants(self._process.pid) if b"EngineCore" in _words(pid)]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).is_success
        except httpx.TransportError:
            return False

    def stop(self) -> list[int]:
        """Tells it to end, and waits; returns what is left of it."""
        if self._process is None:
            return []
        members = descendants(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.terminate()  # the second signal does not ask
            self._process.wait(GRACE)
        return [pid for pid in members if _words(pid)]


def _end_with_parent() -> None:
    # SIGTERM, which it passes on: of SIGKILL the processes of vLLM would hear nothing.
    die_with_parent(signal.SIGTERM)


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and these others."""
    everyone = [int(place.name) for place in Path("/proc").glob("[0-9]*")]
    children = [each for each in everyone if parent(each) == pid]
    return [*children, *(further for child in children for further in descendants(child))]


def _words(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def kill_one(servers: Sequence[VllmServer], rng: np.random.Generator) -> bool:
    """SIGKILL of one engine, if there is one."""
    found = [pid for server in servers for pid in server.engines()]
    if not found:
        return False
    send(found[int(rng.integers(len(found)))], signal.SIGKILL)
    return True


def study(minutes: float, every: float, python: str, seed: int) -> int:
    """Kills an engine every so many seconds, prints what happened; returns how much is wrong."""
    scratch = Path(tempfile.mkdtemp(prefix="ogrpo-engines-"))
    print(f"seed {seed}, in {scratch}", flush=True)
    task, run = make_task(scratch / "task"), scratch / "run"
    model = initial_model(Case("served", Schedule(), scratch / "served", task))
    kills = int(60 * minutes / every)
    servers = [
        VllmServer(model, scratch / f"server-{n}.log", python, 2 * kills + 1) for n in range(2)
    ]
    words = SCHEDULE.words(task, run, STEPS, model=f"--model.path={model}")
    words += ["--rollout.url", *(server.url for server in servers)]
    trainer = Trainer(words, run, scratch / "trainer.log", scratch.name)
    rng = np.random.default_rng(seed)
    storm = Storm(trainer, [], run, rng, longest=LONGEST_START)
    storm.blows = {KIND: (1, lambda: kill_one(servers, rng))}
    try:
        for each in (*servers, trainer):
            each.start()
        storm.until_step(0)
        begun = time.monotonic()
        for n in range(kills):
            storm.attend(begun + n * every - time.monotonic())
            if not storm.strike(KIND):
                print(f"minute {n * every / 60:g}: no server is well, nothing to kill", flush=True)
        storm.calm()
    finally:
        trainer.signal(signal.SIGKILL)
        left = [pid for server in servers for pid in server.stop()]
    storm.wrong += [f"processes of vLLM are left: {left}"] if left else []
    show_counts(run, scratch)
    return told(storm, scratch, run, time.monotonic() - begun)


def show_counts(run: Path, scratch: Path) -> None:
    """Prints what the servers and the trainer said and counted."""
    started = sum(log.read_text().count(STARTED_AGAIN) for log in scratch.glob("server-*.log"))
    back = (scratch / "trainer.log").read_text(errors="replace").count(BACK)
    print(f"\nservers were started again {started} times, and used again {back} times")
    last = records(run)[-1]
    print(", ".join(f"{name} {last.get(name, 0):,.0f}" for name in COUNTED))
    for name in sorted(last):
        if name.startswith(("servers/", "rollout/refused/")):
            print(f"{name} {last[name]:,.0f}")
