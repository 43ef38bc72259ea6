"""Rows of files and objects: a mapping of columns each, with the place where it was read."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ogrpo import files


class Row(NamedTuple):
    """The columns of one line, and `file:line`."""

    columns: Mapping[str, Any]
    source: str


def read_rows(path: str | Path) -> list[Row]:
    """Read a file by its ending: .jsonl, .json (a list of objects) or .parquet.

    Raises:
        ValueError: the file is missing, has another ending, is empty, or a line of it is wrong;
            the message names the file and the line.
    """
    path = Path(path).expanduser()
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: give a file that ends in one of {sorted(_READERS)}.")
    return list(_READERS[path.suffix](path))


def read_jsonl(path: str | Path) -> Iterator[Row]:
    """Read one JSON object a line, in UTF-8 with or without a byte order mark.

    Raises:
        ValueError: as `read_rows`.
    """
    # Split at b"\n" alone: str.splitlines would also cut at U+2028, which stands in questions.
    lines = _bytes(path).removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise ValueError(f"{path}:1: the line is empty, and there is no other; the file is empty.")
    for number, line in enumerate(lines, start=1):
        yield parse_line(line, f"{path}:{number}")


def read_json(path: str | Path) -> Iterator[Row]:
    """Read a JSON file that holds a list of objects; a source is `file:entry 3`.

    Raises:
        ValueError: as `read_rows`.
    """
    content = parse_json(_bytes(path), str(path))
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: {content!r:.60}; give a list of JSON objects, at least one.")
    for number, entry in enumerate(content, start=1):
        yield _row(entry, f"{path}:entry {number}")


def read_parquet(path: str | Path) -> Iterator[Row]:
    """Read a Parquet file, batch by batch; a source is `file:row 3`, counted from 1.

    Raises:
        ValueError: as `read_rows`.
    """
    check_file(path)
    try:
        with pq.ParquetFile(path) as file:
            if file.metadata.num_rows == 0:
                raise ValueError(f"{path} has no rows.")
            number = 0
            for batch in file.iter_batches():
                for columns in batch.to_pylist():
                    number += 1
                    yield Row(columns, f"{path}:row {number}")
    except (pa.ArrowException, OSError) as error:  # damaged pages are OSErrors to Arrow
        raise ValueError(f"{path} is not a Parquet file, or a damaged one: {error}") from error


def mapping_rows(rows: Iterable[Any], name: str) -> Iterator[Row]:
    """Take the rows of a Python iterable; a source is `name:3`, counted from 1.

    Raises:
        ValueError: a row is not a mapping, or there is none.
    """
    number = 0
    for number, row in enumerate(rows, start=1):
        yield _row(row, f"{name}:{number}")
    if number == 0:
        raise ValueError(f"{name} has no rows.")


def parse_line(line: bytes, source: str) -> Row:
    """Parse one line of a JSONL file.

    Raises:
        ValueError: the line is empty, not UTF-8, not JSON or not an object.
    """
    if not line.strip():
        raise ValueError(f"{source}: the line is empty; give one JSON object a line.")
    return _row(parse_json(line, source), source)


def parse_json(content: bytes, source: str) -> Any:
    """Decode and parse JSON.

    Raises:
        ValueError: it is not UTF-8, or not JSON that we take (`ogrpo.files.parse_json`).
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{source} is not UTF-8 (byte {error.start}): save it as UTF-8") from error
    return files.parse_json(text, source)


def check_file(path: str | Path) -> None:
    """Raise a ValueError that says so where there is no such file."""
    if not Path(path).is_file():
        what = "is a folder; give a file" if Path(path).is_dir() else "is not there"
        raise ValueError(f"{path} {what}.")


def _bytes(path: str | Path) -> bytes:
    check_file(path)
    return Path(path).read_bytes()


def _row(value: Any, source: str) -> Row:
    if not isinstance(value, Mapping):
        raise ValueError(
            f"{source}: {type(value).__name__}; give a JSON object (a mapping) with a prompt."
        )
    return Row(value, source)


_READERS = {".jsonl": read_jsonl, ".json": read_json, ".parquet": read_parquet}
