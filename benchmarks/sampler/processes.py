"""A worker process with all its children: started, told to work, and measured from /proc."""

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import on_cpus

TICK = os.sysconf("SC_CLK_TCK")
MIB = 2**10  # of /proc's kB


@dataclass(frozen=True)
class Engine:
    """A worker in a session of its own, on the first so many CPUs."""

    process: subprocess.Popen[str]
    log: Path
    versions: dict[str, str]

    @classmethod
    def start(cls, command: list[str], environment: dict[str, str], threads: int, log: Path):
        process = subprocess.Popen(
            [*on_cpus(threads), *command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
            start_new_session=True,
        )
        return cls(process, log, _answer(process, log))

    def draw(self, seconds: float, seed: int, most: int) -> dict[str, Any]:
        """Returns what it drew, with CPU seconds and peak memory (MiB) of all its processes."""
        assert self.process.stdin is not None
        before = self._cpu_seconds()
        request = {"seconds": seconds, "seed": seed, "most": most}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        reply = _answer(self.process, self.log)
        spent = self._cpu_seconds() - before
        return {**reply, "cpu": spent, "peak": self._peak()}

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _cpu_seconds(self) -> float:
        """User and system time of its processes, and of those that they have waited for."""
        return sum(sum(map(int, fields[11:15])) for _, fields in self._members()) / TICK

    def _peak(self) -> float:
        """The sum of the kernel's peaks of resident memory; pages that are shared count twice."""
        texts = [(Path("/proc") / pid / "status").read_text() for pid, _ in self._members()]
        matches = (re.search(r"VmHWM:\s+(\d+)", text) for text in texts)
        return sum(int(match[1]) for match in matches if match) / MIB

    def _members(self) -> list[tuple[str, list[str]]]:
        """Process ids of the session, with the fields of /proc/PID/stat from the state on."""
        members = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[3]) == self.process.pid:
                members.append((stat.parent.name, fields))
        return members


def _answer(process: subprocess.Popen[str], log: Path) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"the worker ended:\n{log.read_text()[-4000:]}")
    return json.loads(line)
