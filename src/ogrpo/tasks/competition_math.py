r"""Competition problems whose answers stand in `\boxed{}`: four data sets, read off their cards.

MATH (Hendrycks et al., arXiv:2103.03874): the official archive (github.com/hendrycks/math) holds a
file for each problem, `train/<subject>/<n>.json` and `test/<subject>/<n>.json`, with `problem`,
`level`, `type` and a `solution` that ends in `\boxed{answer}`. The data sets on the hub hold the
same columns in Parquet or JSONL, mostly with a column `answer`.

MATH-500 (Lightman et al., arXiv:2305.20050): one file, `test.jsonl`, with `problem`, `solution`,
`answer`, `subject`, `level` and `unique_id`.

AIME 2024: 30 problems whose answers are whole numbers from 0 to 999. HuggingFaceH4/aime_2024 has
`id`, `problem`, `solution`, `answer`, `url`, `year`; Maxwell-Jia/AIME_2024 has `ID`, `Problem`,
`Solution`, and `Answer` as a number. Column names are read without regard to case.

DeepScaleR-Preview (Luo et al., 2025): about 40,000 problems to train on, a list of objects with
`problem`, `answer` and `solution`, which is empty where there is none.
"""

import re
from pathlib import Path
from typing import Literal

from ogrpo.rewards.extract import boxed_answer
from ogrpo.rewards.math import MathReward
from ogrpo.tasks.example import Example, value
from ogrpo.tasks.official import (
    ANSWER,
    BOXED_PROMPT,
    SOLUTION,
    TaskReader,
    math_example,
    one_of,
    text_of,
)
from ogrpo.tasks.rows import FILES, Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

LARGEST_AIME = 999
_BOX = re.compile(r"\\(?:boxed|fbox)\s*")


def read_math(
    path: str | Path | None,
    *,
    prompt: str = BOXED_PROMPT,
    split: Literal["test", "validation"] = "test",
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Reads MATH; `split` says whether the official test or a part of train is held out."""
    one_of("split", split, ("test", "validation"))
    train = [_solved(row, prompt) for row in MATH.read_split(path, "train")]
    heldout = None
    if split == "test":
        heldout = [_solved(row, prompt) for row in MATH.read_split(path, "test")]
    judge = MathReward(boxed_answer)
    return MATH.task(train, judge, rewards, heldout=heldout, limit=limit, solutions=SOLUTION)


def read_math_500(
    path: str | Path | None, *, prompt: str = BOXED_PROMPT, rewards: Rewards | None = None
) -> Task:
    """Reads MATH-500, which is only evaluated on."""
    rows = MATH_500.read_single(path, "test.jsonl", "test*.parquet")
    heldout = [_solved(row, prompt) for row in rows]
    return MATH_500.task([], MathReward(boxed_answer), rewards, heldout=heldout)


def _solved(row: Row, prompt: str) -> Example:
    question, solution = text_of(row, "problem"), text_of(row, SOLUTION)
    has_answer = ANSWER in row.columns
    answer = text_of(row, ANSWER) if has_answer else boxed_content(solution, row.source)
    taken = ("problem", ANSWER, SOLUTION)
    others = {name: held for name, held in row.columns.items() if name not in taken}
    return math_example(row, question, answer, prompt, solution=solution, **others)


def boxed_content(solution: str, source: str) -> str:
    r"""Returns the content of the last box of a worked solution.

    >>> boxed_content(r"so $x = \boxed{\frac{1}{2}}$.", "1.json")
    '\\frac{1}{2}'
    >>> boxed_content(r"so $\boxed 7$ apples", "2.json")
    '7'

    Raises:
      ValueError: there is no box, it is not closed, or it is empty.
    """
    boxes = _BOX.split(solution)[1:]
    rest = boxes[-1] if boxes else ""
    content = _in_braces(rest) if rest.startswith("{") else rest.split("$")[0]
    if not content.strip():
        raise ValueError(
            f"{source}: column 'solution' has no answer in \\boxed{{}}; it ends in "
            f"{solution[-60:]!r}."
        )
    return content.strip()


def _in_braces(text: str) -> str:
    """Returns what stands in the first pair of braces, or nothing if they are not closed."""
    depth, escaped = 0, False
    for n, character in enumerate(text):
        if escaped or character == "\\":
            escaped = not escaped
            continue
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:n]
    return ""


def read_aime_24(
    path: str | Path | None, *, prompt: str = BOXED_PROMPT, rewards: Rewards | None = None
) -> Task:
    """Reads AIME 2024, which is only evaluated on."""
    heldout = []
    for columns, source in AIME_24.read_single(path, "*.parquet", "*.jsonl"):
        row = Row({str(name).lower(): held for name, held in columns.items()}, source)
        answer = text_of(row, ANSWER).strip()
        if not answer.isdecimal() or int(answer) > LARGEST_AIME:
            raise ValueError(
                f"{source}: column 'answer' is {answer!r}; an answer of the AIME is a whole number "
                f"from 0 to {LARGEST_AIME}."
            )
        others = {n: held for n, held in row.columns.items() if n not in ("problem", ANSWER)}
        question = text_of(row, "problem")
        heldout.append(math_example(row, question, str(int(answer)), prompt, **others))
    return AIME_24.task([], MathReward(boxed_answer), rewards, heldout=heldout)


def read_deepscaler(
    path: str | Path | None,
    *,
    prompt: str = BOXED_PROMPT,
    heldout: float | int | None = None,
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Reads DeepScaleR-Preview; it has no test split, so a part is cut off.

    Its authors evaluate on AIME-24 and MATH-500: `task.evaluated_on(read_task("aime-24", path))`.
    """
    patterns, examples = [f"deepscaler*{ending}" for ending in FILES], []
    for row in DEEPSCALER.read_single(path, *patterns):
        solution = value(row, SOLUTION)
        if not isinstance(solution, str):
            raise ValueError(f"{row.source}: column 'solution' is {solution!r:.60}; give a text.")
        question, answer = text_of(row, "problem"), text_of(row, ANSWER)
        examples.append(math_example(row, question, answer, prompt, solution=solution))
    judge = MathReward(boxed_answer)
    return DEEPSCALER.task(
        examples, judge, rewards, heldout=heldout, limit=limit, solutions=SOLUTION
    )


MATH = TaskReader(
    "math",
    read_math,
    "Needed: the official folders train/<subject>/<n>.json and test/<subject>/<n>.json "
    "(github.com/hendrycks/math), or train and test as .jsonl or .parquet with columns problem, "
    "solution, level, and answer or a solution that ends in \\boxed{} "
    "(huggingface.co/datasets/EleutherAI/hendrycks_math). Give the path of the folder.",
    EvaluationProtocol("the 5,000 of test", samples=1, temperature=0.0, max_tokens=2048),
)
MATH_500 = TaskReader(
    "math-500",
    read_math_500,
    "Needed: test.jsonl, one JSON object a line with problem, solution, answer, subject, level, "
    "unique_id (huggingface.co/datasets/HuggingFaceH4/MATH-500). Give its path or its folder's.",
    EvaluationProtocol("all 500", samples=16, temperature=0.6, max_tokens=32768),
)
AIME_24 = TaskReader(
    "aime-24",
    read_aime_24,
    "Needed: one .parquet or .jsonl file with columns problem and answer "
    "(huggingface.co/datasets/HuggingFaceH4/aime_2024 or .../Maxwell-Jia/AIME_2024). Give its path "
    "or its folder's.",
    EvaluationProtocol("all 30", samples=32, temperature=0.6, max_tokens=32768),
)
DEEPSCALER = TaskReader(
    "deepscaler",
    read_deepscaler,
    "Needed: deepscaler.json, a list of objects with problem, answer, solution "
    "(huggingface.co/datasets/agentica-org/DeepScaleR-Preview-Dataset). Give its path or its "
    "folder's.",
    EvaluationProtocol("a part of the file", samples=16, temperature=0.6, max_tokens=32768),
)
