"""A record of each answer, written as one JSON object a line."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite, isnan, nan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogrpo.protocol import FinishReason
from ogrpo.tasks.example import Prompt


@dataclass(frozen=True)
class AnswerRecord:
    """One sampled answer to one problem, with its verdicts.

    Everything that a reward reads is here.
    """

    problem: int
    """The problem's place among those evaluated, from 0."""
    sample: int
    """The answer's place among the problem's answers, from 0."""
    source: str
    """`file:line` of the problem."""
    prompt: Prompt
    """A text, or chat messages."""
    columns: Mapping[str, Any]
    """The problem's other columns: the gold answer and whatever else rewards read."""
    text: str
    """The completion, decoded."""
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    """"stop" (it ended itself), "length" (cut off) or "abort"."""
    values: Mapping[str, float]
    """Each reward's value, by its name; NaN where it failed or did not apply."""
    reward: float
    """The rewards' weighted sum; NaN where one failed."""
    failed: bool
    """Whether a reward that counts raised, overran or gave no finite number."""

    @property
    def tokens(self) -> int:
        """Number of tokens, the end-of-sequence token included."""
        return len(self.token_ids)

    @property
    def truncated(self) -> bool:
        """Whether it did not end itself."""
        return self.finish_reason != "stop"


class AnswerFile(AbstractContextManager["AnswerFile"]):
    """Writes answers to a new file: each call's lines in one piece, handed to the system at once.

    What was written before a process dies is there afterwards; what one call wrote may be cut
    short by a full disk.

    Raises:
      ValueError: the file exists.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115
        except FileExistsError as error:
            raise ValueError(
                f"{self.path} exists: name another file for the answers, or move it away"
            ) from error
        self.count = 0
        """Answers written so far."""

    def write(self, answers: Iterable[AnswerRecord]) -> None:
        """Appends answers, one a line."""
        lines = [to_line(answer) for answer in answers]
        rest = memoryview(b"".join(lines))
        while rest:
            rest = rest[self._file.write(rest) :]
        self.count += len(lines)

    def close(self) -> None:
        """Syncs the file to the disk, and closes it."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self.close()


def to_line(answer: AnswerRecord) -> bytes:
    """Returns an answer as a line of JSON; NaN is written as null.

    Raises:
      ValueError: a column cannot be written as JSON.
    """
    where = f"{answer.source or f'problem {answer.problem}'}, sample {answer.sample}"
    fields = {
        "problem": answer.problem,
        "sample": answer.sample,
        "source": answer.source,
        "prompt": jsonable(answer.prompt, f"{where}: the prompt"),
        "columns": jsonable(answer.columns, f"{where}: column"),
        "text": answer.text,
        "tokens": answer.tokens,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        "rewards": {name: _null(value) for name, value in answer.values.items()},
        "reward": _null(answer.reward),
        "failed": answer.failed,
    }
    line = json.dumps(fields, ensure_ascii=False, allow_nan=False)
    try:
        return line.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair, which JSON can name and UTF-8 cannot hold
        return json.dumps(fields, allow_nan=False).encode() + b"\n"


def jsonable(value: Any, where: str) -> Any:
    """Returns a value as JSON holds it: numpy's numbers and arrays as Python's, tuples as lists.

    Raises:
      ValueError: it, or something in it, has no place in JSON; the message begins with `where`.
    """
    if isinstance(value, np.generic | np.ndarray):
        return jsonable(value.tolist(), where)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"{where} has the key {key!r:.60}; JSON's keys are texts")
        return {key: jsonable(item, f"{where} {key!r}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        return [jsonable(item, where) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and isfinite(value):
        return value
    raise ValueError(
        f"{where} is {value!r:.60} ({type(value).__name__}), which JSON cannot hold: make it a "
        "text, a finite number, or a list or mapping of these, or leave the column out"
    )


def by_problem(answers: Iterable[AnswerRecord]) -> Iterator[list[AnswerRecord]]:
    """Yields each problem's answers in the order of `sample`; the problems ascend."""
    groups: dict[int, list[AnswerRecord]] = {}
    for answer in sorted(answers, key=lambda a: (a.problem, a.sample)):
        groups.setdefault(answer.problem, []).append(answer)
    yield from groups.values()


def padded(rows: Sequence[Sequence[float]]) -> NDArray[np.float32]:
    """Returns rows of different lengths as one array, filled up with NaN."""
    most = max((len(row) for row in rows), default=0)
    filled = [[*row, *[nan] * (most - len(row))] for row in rows]
    return np.array(filled, np.float32).reshape(len(rows), most)


def _null(value: float) -> float | None:
    return None if isnan(value) else float(value)
