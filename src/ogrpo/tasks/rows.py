"""Rows of files and objects: a mapping of columns each, with the place where it was read."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ogrpo.system import files

_STATE = "state.json"
_SPLITS = "dataset_dict.json"  # names the splits of a folder of `DatasetDict.save_to_disk`


class Row(NamedTuple):
    """The columns of one line, and `file:line`."""

    columns: Mapping[str, Any]
    source: str


def read_rows(path: str | Path) -> list[Row]:
    """Read a file or a folder.

    A file ends in .jsonl, .json (a list of objects), .csv or .parquet; a folder is what
    `datasets.Dataset.save_to_disk` left.

    Raises:
        ValueError: the file is missing, has another ending, is empty, or a line of it is wrong;
            the message names the file and the line.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return list(_read_saved(path))
    if path.suffix not in _READERS:
        raise ValueError(
            f"{path}: give a file that ends in one of {sorted(_READERS)}, or a folder that "
            "datasets.Dataset.save_to_disk left."
        )
    return list(_READERS[path.suffix](path))


def is_rows(name: str) -> bool:
    """Return whether a name is that of a file or folder that `Task.from_file` takes."""
    path = Path(name).expanduser()
    saved = bool(name) and any((path / file).is_file() for file in (_STATE, _SPLITS))
    return path.suffix in _READERS or saved


def saved_splits(folder: Path) -> list[str]:
    """Return the names of the splits in a folder of `datasets.DatasetDict.save_to_disk`, if any.

    Raises:
        ValueError: the file that names them is broken.
    """
    file = folder / _SPLITS
    if not file.is_file():
        return []
    content = parse_json(_bytes(file), str(file))
    names = content.get("splits") if isinstance(content, dict) else None
    if not isinstance(names, list) or not all(
        isinstance(n, str) and n == Path(n).name for n in names
    ):
        raise ValueError(f"{file} does not name the splits: save the dataset again.")
    return names


def _read_saved(folder: Path) -> Iterator[Row]:
    """Read a folder of `datasets.Dataset.save_to_disk`; a source is `folder:row 3`."""
    if splits := saved_splits(folder):
        raise ValueError(
            f"{folder} holds the splits {splits}: name one, such as {folder / splits[0]}."
        )
    file = folder / _STATE
    if not file.is_file():
        raise ValueError(
            f"{folder} is a folder without {_STATE}: give a file, or a folder that "
            "datasets.Dataset.save_to_disk left."
        )
    content = parse_json(_bytes(file), str(file))
    try:
        names = [str(entry["filename"]) for entry in content["_data_files"]]
    except (TypeError, KeyError) as error:
        raise ValueError(f"{file} names no data files: save the dataset again.") from error

    def rows() -> Iterator[Any]:
        for name in names:
            if name != Path(name).name:
                raise ValueError(f"{file} names {name!r}, which is not in this folder.")
            _check_file(folder / name)
            try:
                with pa.OSFile(str(folder / name)) as source, pa.ipc.open_stream(source) as stream:
                    for batch in stream:
                        yield from batch.to_pylist()
            except (pa.ArrowException, OSError) as error:
                raise ValueError(
                    f"{folder / name} is no Arrow file, or a damaged one: {error}"
                ) from error

    return mapping_rows(rows(), str(folder), "row ")


def _read_csv(path: Path) -> Iterator[Row]:
    """Read comma-separated values with a line of names, in UTF-8; every cell is a text."""
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


def _read_json(path: Path) -> Iterator[Row]:
    """Read a JSON file that holds a list of objects; a source is `file:entry 3`."""
    content = parse_json(_bytes(path), str(path))
    if not isinstance(content, list) or not content:
        raise ValueError(f"{path}: {content!r:.60}; give a list of JSON objects, at least one.")
    return mapping_rows(content, str(path), "entry ")


def read_parquet(path: str | Path) -> Iterator[Row]:
    """Read a Parquet file, batch by batch; a source is `file:row 3`, counted from 1.

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
    """Yield the rows of an iterable; a source is `name:3`, or `name:<unit>3`, counted from 1.

    Raises:
        ValueError: a row is not a mapping, or there is none.
    """
    number = 0
    for number, row in enumerate(rows, start=1):
        yield _row(row, f"{name}:{unit}{number}")
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
