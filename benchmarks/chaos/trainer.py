"""`ogrpo train` as a command of its own, which ends in every way that a command can."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chaos.victim import die_with_parent

GO_ON = "go on with:"


class Trainer:
    """The command, as often as it is started; what it says goes to one file."""

    def __init__(self, options: Sequence[str], run: Path, log: Path, mark: str) -> None:
        self._new, self._run, self._log, self._mark = [*options], run, log, mark
        self._process: subprocess.Popen[bytes] | None = None
        self._begins = 0

    @property
    def pid(self) -> int | None:
        """Of its process, if that runs or is stopped."""
        return self._process.pid if self._process is not None and self.code is None else None

    @property
    def code(self) -> int | None:
        """What it ended with; None while it runs."""
        return None if self._process is None else self._process.poll()

    def said(self) -> str:
        """What it said since it was started last."""
        return self._log.read_text(errors="replace")[self._begins :] if self._log.exists() else ""

    def start(self) -> None:
        """A new run, or the command that goes on with it: the one that was printed, if one was."""
        printed = self.said().partition(GO_ON)[2].split("\n", 2)[1:2]
        if printed:
            words = shlex.split(printed[0])[1:]
        elif (self._run / "config.json").exists():
            words = ["train", "--run-dir", str(self._run), "--resume"]
        else:
            words = ["train", *self._new]
        self._begins = len(self._log.read_text(errors="replace")) if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ogrpo", *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
                env={**os.environ, "COLUMNS": "200", "OGRPO_STORM": self._mark},
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process, if there is one."""
        if (pid := self.pid) is not None:
            os.kill(pid, number)

    def wait(self, seconds: float) -> int:
        """Its exit code."""
        assert self._process is not None
        return self._process.wait(seconds)

    def rewards(self) -> list[int]:
        """The processes in which its rewards run."""
        return [] if self.pid is None else [p for p in judging(self._mark) if parent(p) == self.pid]


def judging(mark: str) -> list[int]:
    """The processes of rewards that trainers with this mark have started, whoever has them now."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, environment = (place / n for n in ("cmdline", "environ"))
            ours = f"OGRPO_STORM={mark}".encode() in environment.read_bytes().split(b"\0")
            if ours and b"_serve.py" in words.read_bytes():
                found.append(int(place.name))
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def parent(pid: int) -> int | None:
    """Whose child a process is."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None
