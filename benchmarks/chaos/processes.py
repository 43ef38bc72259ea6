"""The trainer and its servers as commands that are killed and started again, and their children."""

import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

GO_ON = "go on with:"
LONGEST = 64
"""Tokens of prompt and completion that servers take."""
GRACE = 60.0
"""Seconds in which a server must end after SIGTERM."""
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Has the kernel end this process when the one that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def free_port() -> int:
    """Returns a port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process, if it exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def read_proc(pid: int, name: str) -> bytes:
    """Returns a file of /proc/PID; empty where the process is gone or is another user's."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return b""


def processes() -> list[int]:
    """Returns all process ids."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def parent(pid: int) -> int | None:
    """Returns the process id of a process's parent."""
    fields = read_proc(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else None


def descendants(pid: int) -> list[int]:
    """Returns the processes that a process has started, and those that these have."""
    children = [each for each in processes() if parent(each) == pid]
    return [*children, *(further for child in children for further in descendants(child))]


def reward_processes(mark: str) -> list[int]:
    """Returns the reward processes of trainers with this mark, whoever is their parent now."""
    variable = f"OGRPO_STORM={mark}".encode()
    return [
        pid
        for pid in processes()
        if variable in read_proc(pid, "environ").split(b"\0")
        and b"_serve.py" in read_proc(pid, "cmdline")
    ]


class Command:
    """A Python module in a session of its own, started as often as needed; all output in one log.

    Attributes:
      pid: the process id while it runs or is stopped, None otherwise.
      code: the exit code; None while it runs and before the first start.
    """

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def code(self) -> int | None:
        return None if self.process is None else self.process.poll()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.code is None else None

    def launch(self, words: Sequence[str], **environment: str) -> None:
        """Starts it; does not wait."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, **environment},
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process while it runs."""
        if (pid := self.pid) is not None:
            send(pid, number)

    def wait(self, seconds: float | None = None) -> int | None:
        """Waits for the end; returns the exit code, None if it was never started."""
        return None if self.process is None else self.process.wait(seconds)


class Trainer(Command):
    """`ogrpo train`: started anew, or resumed by the command that it printed at its end."""

    def __init__(self, options: Sequence[str], run: Path, log: Path, mark: str) -> None:
        super().__init__(log)
        self._options, self._run, self._mark, self._start = [*options], run, mark, 0

    def output(self) -> str:
        """Returns what it has printed since its last start."""
        return self.log.read_text(errors="replace")[self._start :] if self.log.exists() else ""

    def start(self) -> None:
        """Starts a new run, or goes on with it, by the printed command if there is one."""
        printed = self.output().partition(GO_ON)[2].split("\n", 2)[1:2]
        if printed:
            words = shlex.split(printed[0])[1:]
        elif (self._run / "config.json").exists():
            words = ["train", "--run-dir", str(self._run), "--resume"]
        else:
            words = ["train", *self._options]
        self._start += len(self.output())
        self.launch(["ogrpo", *words], COLUMNS="200", OGRPO_STORM=self._mark)

    def rewards(self) -> list[int]:
        """Returns the processes in which its rewards run."""
        pid = self.pid
        return [p for p in reward_processes(self._mark) if parent(p) == pid] if pid else []


class Server(Command):
    """`ogrpo-serve FOLDER --engine embedded`."""

    def __init__(self, folder: Path, log: Path) -> None:
        super().__init__(log)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        options = ["--device", "cpu", "--port", str(port), "--max-model-len", str(LONGEST)]
        self._words = ["ogrpo.serving.serve", str(folder), *options, "--engine", "embedded"]

    def start(self) -> None:
        """Starts it; does not wait until it answers."""
        self.launch(self._words)

    def stop(self) -> list[int]:
        """Ends it by SIGTERM, twice if need be; returns the processes of it that are left."""
        members = descendants(self.pid) if self.pid is not None else []
        self.signal(signal.SIGTERM)
        try:
            self.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGTERM)  # the second signal does not ask
            self.wait(GRACE)
        return [pid for pid in members if read_proc(pid, "cmdline")]
