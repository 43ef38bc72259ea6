"""The run directory: what a run leaves behind, and how it is picked up again.

config.json       what was asked for
metrics.jsonl     one object a line, one line a step; null for NaN and infinity, whose names are in
                  `nonfinite`
checkpoints/      Orbax, the newest two
initial/          the first weights in the same format, where external servers start from them, or
                  where adapters stand beside them
experience/       every group that was bought, as Parquet (docs/replay.md)
model/            the final weights as safetensors, with config.json and tokenizer
adapter/          with --lora.rank: the adapters alone, as PEFT stores them
plots/*.png, report.html
report.json       what the page shows beside the records: answers, counts, the command
"""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO


class RunDirError(ValueError):
    """A run directory that cannot be used, with the remedy in its message."""


class RunDir:
    """Paths of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.checkpoints = path / "checkpoints"
        self.initial = path / "initial"
        self.experience = path / "experience"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.plots = path / "plots"
        self.report = path / "report.html"
        self.told = path / "report.json"

    @staticmethod
    def create(path: Path) -> "RunDir":
        """A new run in an empty or absent folder, in which nothing is written yet.

        First weights may be there, left by a run that found no server.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            found = (entry for entry in path.iterdir() if entry.name != "initial")
            occupied = next(found, None)
        except OSError as error:
            raise RunDirError(
                f"run directory {path} cannot be used ({error.strerror}): choose another --run-dir"
            ) from error
        if occupied is not None:
            raise RunDirError(
                f"run directory {path} is not empty (it has {occupied.name}): "
                "choose another --run-dir, or pass --resume to go on with the run that is there"
            )
        if not os.access(path, os.W_OK):
            raise RunDirError(f"run directory {path} is not writable: choose another --run-dir")
        return RunDir(path)

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

    def write_config(self, config: dict[str, Any]) -> None:
        """Puts down what the run was asked for."""
        self.config.write_text(json.dumps(config, indent=2) + "\n")

    def read_config(self) -> dict[str, Any]:
        """The configuration that the run was started with."""
        return json.loads(self.config.read_text())

    def read_metrics(self) -> list[dict[str, Any]]:
        """All records; a last line cut off by a crash is left out."""
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rewind(self, step: int) -> None:
        """Drops the records after `step`, which the resumed run will write again."""
        kept = [record for record in self.read_metrics() if record["step"] <= step]
        scratch = self.metrics.with_suffix(".tmp")
        scratch.write_text("".join(map(_line, kept)))
        scratch.replace(self.metrics)

    @contextmanager
    def metrics_writer(self) -> Iterator["MetricsWriter"]:
        """Appends records, each on disk before the next step begins."""
        with self.metrics.open("a") as file:
            yield MetricsWriter(file)


class MetricsWriter:
    """Appends one JSON object a line."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, record: dict[str, Any]) -> None:
        """Appends and flushes."""
        self._file.write(_line(record))
        self._file.flush()


def _line(record: dict[str, Any]) -> str:
    """A line of JSON, which knows neither NaN nor infinity: null for these, their names listed."""
    found = dict.fromkeys(record.get("nonfinite", ()))
    values = {name: _finite(value, name, found) for name, value in record.items()}
    return json.dumps({**values, "nonfinite": [*found]}, allow_nan=False) + "\n"


def _finite(value: Any, name: str, found: dict[str, None]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        found[name] = None
        return None
    if isinstance(value, dict):
        return {key: _finite(inner, f"{name}/{key}", found) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner, name, found) for inner in value]
    return value
