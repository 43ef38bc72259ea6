"""Cells of seconds that do what they are told: finish, raise, die, or wait for a file."""

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.grid.cell import Cell
from tests.processes import eventually


@dataclass(frozen=True)
class Number:
    """A number to be squared."""

    value: int
    seed: int
    folder: str
    """Where it is noted that a cell was measured; gives orders, too."""


def square(cell: Cell, _: object) -> dict[str, int]:
    """Squares, unless its folder has the order `raise-N`, `die-N` or `wait-N`."""
    assert "jax" not in sys.modules, "a process that trains nothing is slow to start"
    number: Number = cell.config
    folder = Path(number.folder)
    with (folder / "measured").open("a") as file:
        file.write(f"{number.value} {os.getpid()}\n")
    if (folder / f"raise-{number.value}").exists():
        raise ValueError(f"{number.value} is not to my taste")
    if (folder / f"die-{number.value}").exists():
        print("about to die", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    eventually(lambda: not (folder / f"wait-{number.value}").exists(), seconds=120)
    return {"square": number.value**2}
