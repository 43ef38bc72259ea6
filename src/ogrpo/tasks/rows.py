"""Rows of files and objects: a mapping of columns each, with the place where it was read."""

import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ogrpo.system import files


class Row(NamedTuple):
    """The columns of one line, and `file:line`."""

    columns: Mapping[str, Any]
    source: str


def read_rows(path: str | Path) -> list[Row]:
    """Reads a file that ends in .jsonl, .json (a list of objects), .csv or .parquet.

    Raises:
      ValueError: the file is missing, has another ending, is empty, or a line of it is wrong;
        the message names the file and the line.
    """
    path = Path(path).expanduser()
    if path.suffix not in _READERS:
        if not path.exists():
            _check_file(path)
        raise ValueError(
            f"{path}: give a file that ends in one of {sorted(_READERS)}; the library datasets "
            "writes one by dataset.to_parquet('own.parquet')."
        )
    return list(_READERS[path.suffix](path))


def is_rows(name: str) -> bool:
    """Returns whether a name is that of a file that `Task.from_file` takes."""
    return Path(name).suffix in _READERS


def _read_csv(path: Path) -> Iterator[Row]:
    """Reads comma-separated values with a line of names, in UTF-8; every cell is a text."""
    csv.field_size_limit(sys.maxsize)  # of 128 KiB by default, in all of the process
    lines = csv.reader(io.StringIO(_text(_bytes(path), str(path)), newline=""), strict=True)
    line = 1
    try:
        names = next(lines, [])
        if not all(names) or len(set(names)) < len(names) or not names:
            raise ValueError(f"{path}:1: the columns are {names}; give each a name of its own.")
        for cells in lines:
            first, line = line + 1, lines.line_num
            if len(cells) != len(names):
                raise ValueError(f"{path}:{first} has {len(cells)} cells for {len(names)} columns.")
            yield Row(dict(zip(names, cells, strict=True)), f"{path}:{first}")
    except csv.Error as error:
        raise ValueError(f"{path}:{lines.line_num} is no line of CSV: {error}") from error
    if line == 1:
        raise ValueError(f"{path} has no rows.")


def read_jsonl(path: str | Path) -> Iterator[Row]:
    """Reads one JSON object a line, in UTF-8 with or without a byte order mark.

    Raises:
      ValueError: as `read_rows`.
    """
    # Split at b"\n" alone: str.splitlines would also cut at U+2028, which stands in questions.
    lines = _bytes(path).removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise ValueError(f"{path}:1: the line is empty, and there is no other; the file is empty.")
    for number, line in enumerate(lines, start=1):
        yield parse_line(line, f"{path}:{number}")


def _read_json(path: Path) -> Iterator[Row]:
    """Reads a JSON file that holds a list of objects; a source is `file:entry 3`."""
    content = parse_json(_bytes(path), str(path))
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: {content!r:.60}; give a list of JSON objects, at least one.")
    return mapping_rows(content, str(path), "entry ")


def read_parquet(path: str | Path) -> Iterator[Row]:
    """Reads a Parquet file, batch by batch; a source is `file:row 3`, counted from 1.

    Raises:
      ValueError: as `read_rows`.
    """
    _check_file(path)

    def rows() -> Iterator[Any]:
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches():
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:  # damaged pages are OSErrors to Arrow
            raise ValueError(f"{path} is not a Parquet file, or a damaged one: {error}") from error

    return mapping_rows(rows(), str(path), "row ")


_READERS = {".jsonl": read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": read_parquet}
FILES = tuple(_READERS)
"""The endings of files that are read."""


def mapping_rows(rows: Iterable[Any], name: str, unit: str = "") -> Iterator[Row]:
    """Yields the rows of an iterable; a source is `name:3`, or `name:<unit>3`, counted from 1.

    Raises:
      ValueError: a row is not a mapping, or there is none.
    """
    number = 0
    for number, row in enumerate(rows, start=1):
        yield _row(row, f"{name}:{unit}{number}")
    if number == 0:
        raise ValueError(f"{name} has no rows.")


def parse_line(line: bytes, source: str) -> Row:
    """Parses one line of a JSONL file.

    Raises:
      ValueError: the line is empty, not UTF-8, not JSON or not an object.
    """
    if not line.strip():
        raise ValueError(f"{source}: the line is empty; give one JSON object a line.")
    return _row(parse_json(line, source), source)


def parse_json(content: bytes, source: str) -> Any:
    """Decodes and parses JSON.

    Raises:
      ValueError: it is not UTF-8, or not JSON that we take (`ogrpo.system.files.parse_json`).
    """
    return files.parse_json(_text(content, source), source)


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 (byte {error.start}): save it as UTF-8") from error


def _bytes(path: str | Path) -> bytes:
    _check_file(path)
    return Path(path).read_bytes()


def _check_file(path: str | Path) -> None:
    if not Path(path).is_file():
        what = "is a folder; give a file" if Path(path).is_dir() else "is not there"
        raise ValueError(f"{path} {what}.")


def _row(row: Any, source: str) -> Row:
    if not isinstance(row, Mapping):
        raise ValueError(
            f"{source}: {type(row).__name__}; give a JSON object (a mapping) with a prompt."
        )
    return Row(row, source)
