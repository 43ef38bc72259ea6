"""Rows of a measurement in a file of JSON lines, which the next call adds to; tables of them."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file, packed (.xz) or not."""
    with opened(path, "rt") as file:
        return [json.loads(line) for line in file]


def add_row(path: Path, row: Row) -> None:
    """Adds a row to a file, packed (.xz) or not, which is made if it is not there."""
    with opened(path, "at") as file:
        file.write(json.dumps(row) + "\n")


def opened(path: Path, mode: str) -> IO[Any]:
    """Opens a file of rows; what is added to a packed one is a stream of its own behind it."""
    return (lzma.open if path.suffix == ".xz" else open)(path, mode, encoding="utf-8")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    return [line(head), "|---" * len(head) + "|", *map(line, rows)]


def line(cells: Sequence[object]) -> str:
    """Returns a line of a table in Markdown."""
    return "".join(f"| {cell} " if cell != "" else "| " for cell in cells) + "|"
