"""The run directory: what a run leaves behind, and how it is picked up again.

config.json       the run's options
metrics.jsonl     one object a line, one line a step; null for NaN and infinity, whose names are in
                  `nonfinite`
checkpoints/      the newest two (`ogrpo.learner.checkpoint`)
initial/          the first weights in the same format, where external servers start from them, or
                  where adapters stand beside them
experience/       every group that was collected, as Parquet (docs/replay.md)
model/            the final weights as safetensors, with config.json and tokenizer
adapter/          with --lora.rank: the adapters alone, as PEFT stores them
tokens.jsonl      sampled completions token by token, one object for each step that was evaluated
certificates.jsonl  weights and draws of each period that is certified to improve (ogrpo certify)
report.html       the page of the run
report.json       what the page shows beside the records: answers, counts, the command
metrics.aside.jsonl  records that --resume-from went back behind
.ogrpo.lock       who writes here (`ogrpo.system.lock`)
"""

import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ogrpo.system import lock
from ogrpo.system.files import Record, drop_drafts, is_draft, read_object, replacing, write_json

Value = TypeVar("Value")
MEND_LINE = "mend or delete the line, or put back a copy of the file"


class Rewound(NamedTuple):
    """Counts of what a rewinding dropped, and what stays."""

    records: int
    broken: int
    """Lines that were no records."""
    last: int
    """Step of the last record that stays; -1 of none."""


class MetricsWriter(AbstractContextManager["MetricsWriter"]):
    """Appends one JSON object a line, which the system has when `write` returns."""

    def __init__(self, path: Path | str) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def __exit__(self, *_: object) -> None:
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


def read_as(path: Path, parse: Callable[[Record], Value], what: str) -> list[Value]:
    """Reads what each line of a file holds, by a function that raises where a record holds none.

    Raises:
      ValueError: a line is not `what`; names it and says why.
    """
    values = []
    for n, record in enumerate(read_records(path), start=1):
        try:
            values.append(parse(record))
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            reason = f"{type(error).__name__}: {error}"
            text = f"{path}, line {n}, is no {what} ({reason}): {MEND_LINE}"
            raise ValueError(text) from error
    return values


def rewind(path: Path, step: int, aside: Path | None, *, dry: bool) -> Rewound:
    """Drops the records after `step`, and lines behind it that are none.

    Args:
      path: the file; it may be absent.
      step: the last that stays.
      aside: a file that gets what is dropped; None where it will be written again.
      dry: only checks that it can be done.

    Raises:
      ValueError: a line that has to stay is no record; names it. Nothing is changed.
    """
    kept: list[Record] = []
    dropped: list[bytes] = []
    broken: list[ValueError] = []
    for n, line in enumerate(_lines(path), start=1):
        try:
            record = _object(line, path, n)
            step_of = record.get("step")  # records of other studies need none
            if not isinstance(step_of, int) or isinstance(step_of, bool):
                raise ValueError(f"{path}, line {n}, is no record of a step: {MEND_LINE}")
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
    last = kept[-1]["step"] if kept else -1
    if broken and last < step:
        raise broken[0]
    outcome = Rewound(len(dropped) - len(broken), len(broken), last)
    if dry:
        return outcome
    if aside is not None and dropped:
        with aside.open("ab") as file:
            file.write(b"".join(dropped))
            file.flush()
            os.fsync(file.fileno())
    with replacing(path) as file:
        file.write("".join(map(_line, kept)))
    return outcome


def _lines(path: Path) -> list[bytes]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [line + b"\n" for line in lines[:-1]]


def _object(line: bytes, path: Path, n: int) -> Record:
    try:
        record = json.loads(line)  # older files have NaN, which `parse_json` refuses
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {n}, is not JSON ({error}): {MEND_LINE}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {n}, is no record: {MEND_LINE}")
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


PASSED_OVER = ("initial", "tensorboard", "wandb", lock.NAME)
"""Names that may lie in the folder of a new run."""


class RunDirError(ValueError):
    """A run directory that cannot be used, with the remedy in its message."""


class RunDir:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.aside = path / "metrics.aside.jsonl"
        self.checkpoints = path / "checkpoints"
        self.initial = path / "initial"
        self.experience = path / "experience"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.tokens = path / "tokens.jsonl"
        self.certificates = path / "certificates.jsonl"
        self.report = path / "report.html"
        self.page_data = path / "report.json"

    @staticmethod
    def create(path: Path) -> "RunDir":
        """A new run in an empty or absent folder, in which nothing is written yet.

        First weights and trackers' folders may be there, left by a run that found no server, and
        drafts of files, left by one that was killed before it had begun.
        """
        if any(c < " " or "\ud800" <= c <= "\udfff" for c in str(path)):
            raise RunDirError(f"run directory {str(path)!r} cannot be printed: choose another name")
        try:
            path.mkdir(parents=True, exist_ok=True)
            entries = (entry for entry in path.iterdir() if entry.name not in PASSED_OVER)
            occupied = next((entry for entry in entries if not is_draft(entry.name)), None)
        except OSError as error:
            raise RunDirError(
                f"run directory {path} cannot be used ({error.strerror}): choose another --run-dir"
            ) from error
        if occupied is not None:
            raise RunDirError(
                f"run directory {path} is not empty (it has {occupied.name}): "
                "choose another --run-dir, or pass --resume to go on with the run that is there"
            )
        _check_writable(path)
        return RunDir(path)

    @staticmethod
    def read(path: Path) -> "RunDir":
        """Returns the folder of a run, to be looked at.

        Raises:
          RunDirError: there is no such folder, or no run in it.
        """
        if not path.is_dir():
            raise RunDirError(f"there is no folder {path}: name the folder of a run")
        run = RunDir(path)
        if not run.config.is_file():
            raise RunDirError(f"{path} is no run's folder: it has no config.json")
        if "task" not in run.read_config():  # a model's folder has a config.json, too
            raise RunDirError(f"{path} is no run's folder: its config.json names no task")
        return run

    @staticmethod
    def reopen(path: Path) -> "RunDir":
        """The run that is there."""
        run = RunDir(path)
        if not run.config.is_file():
            raise RunDirError(
                f"nothing to resume in {path} (no config.json): check --run-dir, "
                "or leave out --resume to start a new run"
            )
        return run

    @contextmanager
    def held(self, command: str) -> Iterator[str | None]:
        """The folder, this process's alone within the block.

        Gives a line to show where the file system knows no locks, and then goes on without: two
        runs in one folder are a mistake, and no locks are no fault of the user's. What a killed
        process had not written to its end is deleted, where the lock says that it is gone.

        Raises:
          RunDirError: another process has it, or it cannot be written to.
        """
        _check_writable(self.path)
        try:
            with lock.held(self.path, command):
                drop_drafts(self.path, self.initial, self.model, self.adapter)
                yield None
        except lock.FolderInUse as error:
            raise RunDirError(str(error)) from error
        except lock.NoLocks as error:
            yield (
                f"{self.path} lies on a file system without locks ({error.strerror}):"
                " let no other run write there"
            )

    def write_config(self, config: dict[str, Any]) -> None:
        """Puts down what the run was asked for."""
        write_json(self.config, config)

    def read_config(self) -> dict[str, Any]:
        """The configuration that the run was started with.

        Raises:
          RunDirError: the file cannot be read, or is no object of JSON.
        """
        try:
            return read_object(self.config)
        except (OSError, ValueError) as error:
            raise RunDirError(f"the run's options cannot be read: {error}; {MENDING}") from error

    def read_metrics(self) -> list[Record]:
        """All records; a last line cut off by a crash is left out.

        Raises:
          ValueError: another line is no record; names it.
        """
        return read_records(self.metrics)

    def rewind(
        self, step: int, *, beside: int | None = None, keep: bool = False, dry: bool = False
    ) -> Rewound:
        """Drops the records after `step`, which the resumed run will write again.

        Args:
          step: the last that stays.
          beside: the last of the token samples and certificates that stays; default: `step`.
          keep: adds those that go to `metrics.aside.jsonl`, and the others to files named alike.
          dry: only checks that it can be done.
        """
        for file in (self.tokens, self.certificates):
            if file.exists():
                aside = file.with_suffix(".aside.jsonl") if keep else None
                rewind(file, step if beside is None else beside, aside, dry=dry)
        return rewind(self.metrics, step, self.aside if keep else None, dry=dry)


MENDING = "mend it, or put back a copy of it (report.html lists its options), or start another run"


def _check_writable(path: Path) -> None:
    if not os.access(path, os.W_OK):
        raise RunDirError(f"run directory {path} is not writable: choose another --run-dir")
