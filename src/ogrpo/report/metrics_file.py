"""metrics.jsonl: one object a line, one line a step, appended whole or not at all."""

import json
import math
import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from ogrpo.system.files import replacing

Record = dict[str, Any]
MENDING = "mend or delete the line, or put back a copy of the file"


class Rewound(NamedTuple):
    """Counts of what a rewinding dropped."""

    records: int
    broken: int
    """Lines that were no records."""


class MetricsWriter:
    """Appends one JSON object a line."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def write(self, record: Record) -> None:
        """Appends a record; on an error, such as a full disk, the file is as it was."""
        data, before = _line(record).encode(), os.fstat(self._file).st_size
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            os.ftruncate(self._file, before)
            error.filename = str(self._path)
            raise

    def sync(self) -> None:
        """Returns when all records are on disk."""
        os.fsync(self._file)


def read_records(path: Path) -> list[Record]:
    """All records of a file; a last line cut off by a crash is left out.

    Raises:
      ValueError: another line is no object; names it.
    """
    return [_object(line, path, n) for n, line in enumerate(_lines(path), start=1)]


def rewind(path: Path, step: int, aside: Path | None) -> Rewound:
    """Drops the records after `step`, and lines behind it that are none.

    Args:
      path: the file; it may be absent.
      step: the last that stays.
      aside: a file that gets what is dropped; None where it will be written again.

    Raises:
      ValueError: a line that has to stay is no record; names it. Nothing is changed.
    """
    kept, dropped, broken = _parted(path, step)
    if aside is not None and dropped:
        with aside.open("ab") as file:
            file.write(b"".join(dropped))
            file.flush()
            os.fsync(file.fileno())
    with replacing(path) as file:
        file.write("".join(map(_line, kept)))
    return Rewound(len(dropped) - broken, broken)


def _parted(path: Path, step: int) -> tuple[list[Record], list[bytes], int]:
    """The records up to `step`, the other lines as they are, and how many of these are none."""
    kept: list[Record] = []
    dropped: list[bytes] = []
    broken: list[ValueError] = []
    for n, line in enumerate(_lines(path), start=1):
        try:
            record = _record(line, path, n)
        except ValueError as error:
            broken.append(error)
            dropped.append(line)
            continue
        if record["step"] > step:
            dropped.append(line)
        elif broken:
            raise broken[0]  # it stands before what is to stay
        else:
            kept.append(record)
    if broken and (kept[-1]["step"] if kept else -1) < step:
        raise broken[0]
    return kept, dropped, len(broken)


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [line + b"\n" for line in lines[:-1]]


def _object(line: bytes, path: Path, n: int) -> Record:
    try:
        record = json.loads(line)  # older files have NaN, which `parse_json` refuses
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {n}, is not JSON ({error}): {MENDING}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {n}, is no record: {MENDING}")
    return record


def _record(line: bytes, path: Path, n: int) -> Record:
    """A record of the loop, which has a step; those of other studies need none."""
    record = _object(line, path, n)
    if not isinstance(record.get("step"), int) or isinstance(record["step"], bool):
        raise ValueError(f"{path}, line {n}, is no record of a step: {MENDING}")
    return record


def plain(record: Record) -> Record:
    """Returns a record for JSON, which has no NaN or infinity: None for these, names listed."""
    names = dict.fromkeys(record.get("nonfinite", ()))
    values = {name: _finite(value, name, names) for name, value in record.items()}
    return {**values, "nonfinite": [*names]}


def _line(record: Record) -> str:
    return json.dumps(plain(record), allow_nan=False) + "\n"


def _finite(value: Any, name: str, nonfinite: dict[str, None]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        nonfinite[name] = None
        return None
    if isinstance(value, dict):
        return {key: _finite(inner, f"{name}/{key}", nonfinite) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner, name, nonfinite) for inner in value]
    return value
