"""Rows: the results of cells, in a run's folder and compressed in the repository.

RUN_DIR/cells/KEY.json    the result of a measurement, by content hash; whole or absent
RUN_DIR/failed/KEY.json   a cell that failed, with its last words; tried again at the next start
RUN_DIR/rows.jsonl.xz     a header, then a row a line, of the study's cells when it ran last
experiments/STUDY/rows.jsonl.xz   the same, committed
"""

import json
import lzma
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.grid.cell import Cell, Place, changes, place_of
from ogrpo.system.files import (
    drop_drafts,
    make_folder,
    parse_json,
    read_json,
    read_object,
    replacing,
    write_text,
)

Row = dict[str, Any]
Rows = Sequence[Row]
SCORE = "pass@1/sampled"
DIGITS = 4
LARGEST_ROWS = 1 << 28
ROWS = "rows.jsonl.xz"
PLACE = ("key", "label", "role", "coordinates", "setting", "seed", "measure")
"""Fields of a row that say which cell it is of (`place_in_study`)."""
ROOT = Path(__file__).parents[2]
REMEDY = "put back the committed file, or run the study again"


def rounded(value: Any) -> Any:
    """Returns JSON values with floats of four digits, which compress well; None if not finite."""
    if isinstance(value, Mapping):
        return {name: rounded(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


class CellFiles:
    """The finished and the failed cells in a run's folder."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.cells, self.failed = run_dir / "cells", run_dir / "failed"
        self.rows = run_dir / ROWS

    def open(self) -> None:
        """Makes the folders, and deletes what killed writers left."""
        for folder in (self.cells, self.failed):
            make_folder(folder)
        drop_drafts(self.run_dir, self.cells, self.failed)

    def has(self, cell: Cell) -> bool:
        """Whether a cell is finished."""
        return (self.cells / f"{cell.key}.json").is_file()

    def put(self, key: str, result: Mapping[str, Any]) -> None:
        """Writes the result of the cell with this key, which has not failed any more."""
        write_text(self.cells / f"{key}.json", json.dumps(result, allow_nan=False) + "\n")
        (self.failed / f"{key}.json").unlink(missing_ok=True)

    def restore(self, row: Row) -> bool:
        """Writes the result that a row was made of, if it is not there; returns whether it did."""
        if (self.cells / f"{row['key']}.json").is_file():
            return False
        left_out = (*PLACE, "changes")
        self.put(row["key"], {k: v for k, v in row.items() if k not in left_out})
        return True

    def put_failed(self, cell: Cell, words: str) -> None:
        """Writes why a cell failed."""
        note = {**place_in_study(cell), "words": words}
        write_text(self.failed / f"{cell.key}.json", json.dumps(note, indent=2) + "\n")

    def row(self, cell: Cell, base: Any) -> Row:
        """Returns the row of a finished cell."""
        path = self.cells / f"{cell.key}.json"
        try:
            result = read_object(path)
            if not result:
                raise ValueError(f"{path} is no result of a cell")
        except ValueError as error:
            raise ValueError(f"{error}: delete it, the same command measures it anew") from error
        return {**place_in_study(cell), "changes": changes(cell.config, base), **result}

    def failure(self, cell: Cell) -> Row | None:
        """Returns the note of a failed cell, or None."""
        path = self.failed / f"{cell.key}.json"
        return read_json(path) if path.is_file() else None

    def finished(self, cells: Iterable[Cell], base: Any) -> list[Row]:
        """Returns the rows of those cells that are finished."""
        return [self.row(cell, base) for cell in cells if self.has(cell)]


def place_in_study(cell: Cell) -> Row:
    """Returns the part of a row that says which cell it is of."""
    place = {name: getattr(cell, name) for name in PLACE}
    return {**place, "coordinates": dict(cell.coordinates), "setting": dict(cell.setting)}


def rows_file(study: str) -> Path:
    """Returns the path of a study's committed rows."""
    return ROOT / "experiments" / study.replace("-", "_") / ROWS


def write_rows(path: Path, header: Row, rows: Rows) -> int:
    """Writes rows compressed, whole or not at all; returns the bytes."""
    lines = [json.dumps(line, allow_nan=False, separators=(",", ":")) for line in (header, *rows)]
    packed = lzma.compress(("\n".join(lines) + "\n").encode(), preset=9 | lzma.PRESET_EXTREME)
    make_folder(path.parent)
    with replacing(path, "wb") as file:
        file.write(packed)
    return len(packed)


def read_rows(path: Path) -> tuple[Row, list[Row]]:
    """Returns the header and the rows that `write_rows` wrote.

    Raises:
      ValueError: the file is absent or no such file; names it and the remedy.
    """
    if not path.is_file():
        raise ValueError(
            f"there are no rows in {path}: run the study, then python -m experiments.run rows"
            " STUDY RUN_DIR"
        )
    try:
        packed = lzma.LZMADecompressor()
        text = packed.decompress(path.read_bytes(), LARGEST_ROWS).decode()
    except (lzma.LZMAError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} holds no rows ({error}): {REMEDY}") from error
    if not text.endswith("\n") or packed.unused_data:
        raise ValueError(f"{path} is cut off, or several files in one: {REMEDY}")
    lines = [parse_json(line, f"{path}, line {n}") for n, line in enumerate(text.splitlines(), 1)]
    places = Counter(json.dumps([row.get(name) for name in PLACE]) for row in lines[1:])
    if (most := places.most_common(1)) and most[0][1] > 1:
        raise ValueError(f"{path} has a row twice, of {most[0][0]}: {REMEDY}")
    return lines[0], lines[1:]


def judged_by(row: Row, score: str) -> Row:
    """Returns the row with this score where verdicts and tables look for `SCORE`."""
    return {**row, "final": {**row["final"], SCORE: row["final"].get(score)}}


def where(rows: Iterable[Row], **is_: Any) -> list[Row]:
    """Returns rows whose fields, or coordinates, or settings, have these values."""

    def matches(row: Row) -> bool:
        values = {**row["setting"], **row["coordinates"], **row}
        return all(values.get(name) == value for name, value in is_.items())

    return [row for row in rows if matches(row)]


def reported(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows that figures are of."""
    return [row for row in rows if row["role"] == "report"]


def of_labels(rows: Rows, labels: Sequence[str]) -> list[Row]:
    """Returns the rows of these methods, in this order."""
    return [row for label in dict.fromkeys(labels) for row in rows if row["label"] == label]


def groups(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    """Returns rows by method and coordinates, seeds in order."""
    places: dict[Place, list[Row]] = {}
    for row in rows:
        places.setdefault(place_of(row["label"], row["coordinates"]), []).append(row)
    return {place: sorted(trials, key=lambda row: row["seed"]) for place, trials in places.items()}


def without_coordinates(rows: Iterable[Row]) -> list[Row]:
    """Returns the rows as if their method alone said where they lie, for legends of one place."""
    return [{**row, "coordinates": {}} for row in rows]


def final(row: Row, name: str = SCORE) -> float:
    """Returns a row's last value of a score or counter; NaN where it has none."""
    value = row["final"].get(name)
    return float("nan") if value is None else float(value)


def by_seed(rows: Iterable[Row], score: str = SCORE) -> dict[int, float]:
    """Returns a final score by seed."""
    return {row["seed"]: final(row, score) for row in rows}


def diverged(row: Row) -> bool:
    """Whether a run ended because its updates were not finite."""
    return str(row.get("ended", "")).startswith("diverged")
