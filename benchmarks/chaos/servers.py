"""Servers of the embedded sampler, each a process of its own, which can be killed and come back."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from benchmarks.chaos.victim import die_with_parent

LONGEST = 64


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """`ogrpo-serve FOLDER --engine embedded` on one port, as often as it is started."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder, self._log, self._port = folder, log, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """Of its process, if that runs or is stopped."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """Whether its process runs, or is stopped."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts it; does not wait until it answers."""
        place = ["--device", "cpu", "--port", str(self._port), "--max-model-len", str(LONGEST)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "ogrpo.serving.serve",
                    self._folder,
                    "--engine",
                    "embedded",
                    *place,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process, if there is one."""
        if self.alive and self._process is not None:
            os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
