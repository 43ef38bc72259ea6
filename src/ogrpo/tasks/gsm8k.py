"""GSM8K (Cobbe et al., "Training Verifiers to Solve Math Word Problems", arXiv:2110.14168).

The official files hold one JSON object a line, `question` and `answer`; the answer is worked out in
words, with calculator marks `<<48/2=24>>`, and ends in `#### 72`.
"""

import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ogrpo.tasks.problems import AnyProblem, Problem, Split, final_answer
from ogrpo.tasks.rows import read_jsonl

TRAIN_FILE, TEST_FILE = "train.jsonl", "test.jsonl"
FIELDS = ("question", "answer")
VALIDATION_EVERY = 7
"""One training problem in so many is cut off for validation: 1,068 of the official 7,473."""

_CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")
_HOW_TO_GET_IT = (
    f"Put the official {TRAIN_FILE} and {TEST_FILE} (github.com/openai/grade-school-math, folder "
    "grade_school_math/data) into a folder and give its path."
)


def load(path_or_name: str | Path, *, calculator_marks: bool = False) -> Split[Problem]:
    """Read GSM8K from a folder, or by its name on the Hugging Face hub (`openai/gsm8k`).

    The official test split is held out. Calculator marks are taken out unless asked for. A hub name
    needs the `datasets` library, and network or its cache.

    Raises:
        ValueError: a file or the library is missing, the hub cannot be reached, or a line is not a
            problem; the message says which, and which files to put where.
    """
    if Path(path_or_name).expanduser().is_dir():
        split = _from_folder(Path(path_or_name).expanduser())
    elif _is_hub_name(str(path_or_name)):
        split = _from_hub(str(path_or_name))
    else:
        raise ValueError(f"{path_or_name} is not a folder. {_HOW_TO_GET_IT}")
    return split if calculator_marks else Split(*(list(map(_without_marks, s)) for s in split))


def cut_validation(train: Sequence[AnyProblem]) -> Split[AnyProblem]:
    """Part training problems into those still trained on and those that settings are chosen on.

    Every seventh is held out, whatever the seed and however many of them are evaluated. One that
    asks a held-out question once more is not trained on either.

    Raises:
        ValueError: nothing is left to train on.
    """
    heldout = list(train[::VALIDATION_EVERY])
    asked = {problem.question for problem in heldout}
    rest = [problem for problem in train if problem.question not in asked]
    if not rest:
        raise ValueError(
            f"no problem is left to train on: one in {VALIDATION_EVERY} of the {len(train)} in "
            f"{TRAIN_FILE} is for validation. Add more, or evaluate on the test split."
        )
    return Split(train=rest, heldout=heldout)


def read_problems(file: Path) -> list[Problem]:
    """Read one JSONL file.

    Raises:
        ValueError: the file is missing or has no lines, or a line is empty, is not valid JSON or
            lacks a field or its answer's `####`; the message names file, line and field.
    """
    if not file.is_file():
        raise ValueError(f"{file} is missing. {_HOW_TO_GET_IT}")
    return [_to_problem(row.columns, row.source) for row in read_jsonl(file)]


def strip_calculator_marks(answer: str) -> str:
    """Take out the calculator marks.

    >>> strip_calculator_marks("Natalia sold 48/2 = <<48/2=24>>24 clips.")
    'Natalia sold 48/2 = 24 clips.'
    """
    return _CALCULATOR_MARK.sub("", answer)


def _from_folder(folder: Path) -> Split[Problem]:
    return Split(
        train=read_problems(folder / TRAIN_FILE), heldout=read_problems(folder / TEST_FILE)
    )


def _from_hub(name: str) -> Split[Problem]:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise ValueError(
            f"{name} is not a folder, and reading it from the hub needs the `datasets` library "
            f"(pip install 'ogrpo[hub]'). {_HOW_TO_GET_IT}"
        ) from error
    try:
        splits = datasets.load_dataset(name, "main")
    except OSError as error:  # no network, no such data set, nothing in the cache
        raise ValueError(f"cannot read {name} from the hub: {error}. {_HOW_TO_GET_IT}") from error
    return Split(
        train=_from_rows(splits["train"], f"{name}:train"),
        heldout=_from_rows(splits["test"], f"{name}:test"),
    )


def _from_rows(rows: Iterable[Mapping[str, Any]], where: str) -> list[Problem]:
    return [_to_problem(row, f"{where}:{number}") for number, row in enumerate(rows, start=1)]


def _is_hub_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name) is not None


def _to_problem(row: Mapping[str, Any], source: str) -> Problem:
    for name in FIELDS:
        if name not in row:
            raise ValueError(f"{source}: field '{name}' is missing; found {sorted(row)}.")
        if not isinstance(row[name], str) or not row[name].strip():
            raise ValueError(f"{source}: field '{name}' is {row[name]!r}; give a text.")
    problem = Problem(row["question"], row["answer"], source=source)
    final_answer(problem)  # found out now, with the line at hand, and not in the middle of a run
    return problem


def _without_marks(problem: Problem) -> Problem:
    return Problem(problem.question, strip_calculator_marks(problem.answer), source=problem.source)
