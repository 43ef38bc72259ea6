"""Rows of a measurement in a file of JSON lines, which the next call adds to; tables of them."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def read_rows(path: Path) -> list[Row]:
    """Returns the rows of a file, packed or not."""
    packed = path.read_bytes()
    text = (lzma.decompress(packed) if path.suffix == ".xz" else packed).decode()
    return [json.loads(line) for line in text.splitlines()]


def add_row(path: Path, row: Row) -> None:
    """Adds a row to a file, which is made if it is not there."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    return [line(head), "|---" * len(head) + "|", *map(line, rows)]


def line(cells: Sequence[object]) -> str:
    """Returns a line of a table in Markdown."""
    return "".join(f"| {cell} " if cell != "" else "| " for cell in cells) + "|"
