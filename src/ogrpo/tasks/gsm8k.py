"""GSM8K (Cobbe et al., "Training Verifiers to Solve Math Word Problems", arXiv:2110.14168).

The official files hold one JSON object a line, `question` and `answer`; the answer is worked out in
words, with calculator marks `<<48/2=24>>`, and ends in `#### 72`.
"""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ogrpo.rewards.math import MathReward
from ogrpo.tasks.official import (
    MARKER_PROMPT,
    SOLUTION,
    TaskReader,
    one_of,
    solved_example,
    text_of,
)
from ogrpo.tasks.problems import Problem, Split, final_answer
from ogrpo.tasks.rows import Row, mapping_rows, read_jsonl
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

TRAIN_FILE, TEST_FILE = "train.jsonl", "test.jsonl"
VALIDATION_EVERY = 7
"""One training problem in so many is cut off for validation: 1,068 of the official 7,473."""

_CALCULATOR_MARK = re.compile(r"<<[^<>]*>>")
_FILES = (
    f"Put the official {TRAIN_FILE} and {TEST_FILE} (github.com/openai/grade-school-math, folder "
    "grade_school_math/data) into a folder and give its path, or a name on the hub (openai/gsm8k)."
)


def read_gsm8k(
    path: str | Path | None,
    *,
    prompt: str = MARKER_PROMPT,
    split: Literal["test", "validation"] = "test",
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Reads GSM8K; `split` says whether test.jsonl or every seventh of train.jsonl is held out."""
    one_of("split", split, ("test", "validation"))
    if path is None:
        raise GSM8K.missing(path)
    problems = load(path)
    if split == "validation":
        problems = cut_validation(problems.train)
    train, heldout = ([solved_example(each, prompt) for each in part] for part in problems)
    judge = MathReward()
    return GSM8K.task(train, judge, rewards, heldout=heldout, limit=limit, solutions=SOLUTION)


def load(path_or_name: str | Path) -> Split[Problem]:
    """Reads GSM8K from a folder, or by its name on the Hugging Face hub (`openai/gsm8k`).

    The official test split is held out. Calculator marks are taken out. A hub name needs the
    `datasets` library, and network or its cache.

    Raises:
      ValueError: a file or the library is missing, the hub cannot be reached, or a line is not a
        problem; the message says which, and which files to put where.
    """
    folder, name = Path(path_or_name).expanduser(), str(path_or_name)
    if folder.is_dir():
        for file in (TRAIN_FILE, TEST_FILE):
            if not (folder / file).is_file():
                raise ValueError(f"{folder / file} is missing. {_FILES}")
        parts = [read_jsonl(folder / file) for file in (TRAIN_FILE, TEST_FILE)]
    elif re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", name):
        try:
            splits = importlib.import_module("datasets").load_dataset(name, "main")
        except ImportError as error:
            raise ValueError(
                f"{name} is not a folder, and reading it from the hub needs the `datasets` library "
                f"(pip install 'ogrpo[hub]'). {_FILES}"
            ) from error
        except OSError as error:  # no network, no such data set, nothing in the cache
            raise ValueError(f"cannot read {name} from the hub: {error}. {_FILES}") from error
        parts = [mapping_rows(splits[part], f"{name}:{part}") for part in ("train", "test")]
    else:
        raise ValueError(f"{path_or_name} is not a folder. {_FILES}")
    train, heldout = ([_problem(row) for row in part] for part in parts)
    return Split(train, heldout)


def _problem(row: Row) -> Problem:
    answer = _CALCULATOR_MARK.sub("", text_of(row, "answer"))
    problem = Problem(text_of(row, "question"), answer, source=row.source)
    final_answer(problem)  # an error now, with the line at hand, and not in a run
    return problem


def cut_validation(train: Sequence[Problem]) -> Split[Problem]:
    """Parts training problems into those still trained on and those that settings are chosen on.

    Every seventh is held out, whatever the seed and however many of them are evaluated. One that
    asks a held-out question once more is not trained on either.

    Raises:
      ValueError: nothing is left to train on.
    """
    heldout = list(train[::VALIDATION_EVERY])
    questions = {problem.question for problem in heldout}
    rest = [problem for problem in train if problem.question not in questions]
    if not rest:
        raise ValueError(
            f"no problem is left to train on: one in {VALIDATION_EVERY} of the {len(train)} in "
            f"{TRAIN_FILE} is for validation. Add more, or evaluate on the test split."
        )
    return Split(train=rest, heldout=heldout)


GSM8K = TaskReader(
    "gsm8k",
    read_gsm8k,
    _FILES,
    EvaluationProtocol("the 1,319 of test.jsonl", samples=1, temperature=0.0, max_tokens=512),
)
