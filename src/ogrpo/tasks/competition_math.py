r"""MATH and MATH-500 (Hendrycks et al., arXiv:2103.03874; Lightman et al., arXiv:2305.20050).

The official archive of MATH (github.com/hendrycks/math) holds a file for each problem,
`train/<subject>/<n>.json` and `test/<subject>/<n>.json`, with `problem`, `level`, `type` and a
`solution` that ends in `\boxed{answer}`. The data sets on the hub hold the same columns in Parquet
or JSONL, mostly with a column `answer`. MATH-500 is one file, `test.jsonl`, with `problem`,
`solution`, `answer`, `subject`, `level` and `unique_id`. Read off the loaders and dataset cards of
those projects.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ogrpo.tasks.example import Example
from ogrpo.tasks.official import (
    ANSWER,
    BOXED_PROMPT,
    SOLUTION,
    TaskReader,
    judged,
    math_example,
    math_rewards,
    one_of,
    read_single,
    read_split,
    text_of,
)
from ogrpo.tasks.rows import Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

_COMMANDS = ("\\boxed", "\\fbox")
MATH_WANTED = (
    "Wanted: the official folders train/<subject>/<n>.json and test/<subject>/<n>.json "
    "(github.com/hendrycks/math), or train and test as .jsonl or .parquet with columns problem, "
    "solution, level, and answer or a solution that ends in \\boxed{} "
    "(huggingface.co/datasets/EleutherAI/hendrycks_math). Give the path of the folder."
)
MATH_500_WANTED = (
    "Wanted: test.jsonl, one JSON object a line with problem, solution, answer, subject, level, "
    "unique_id (huggingface.co/datasets/HuggingFaceH4/MATH-500). Give its path or its folder's."
)


def read_math(
    path: str | Path | None,
    *,
    prompt: str = BOXED_PROMPT,
    split: Literal["test", "validation"] = "test",
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Read MATH; `split` says whether the official test or a part of train is held out.

    Raises:
        ValueError: files are missing (the message says which are wanted), or a line is wrong.
    """
    one_of("split", split, ("test", "validation"))
    train, left_out = judged(
        _examples(read_split("math", path, "train", MATH_WANTED), prompt), rewards
    )
    heldout = None
    if split == "test":
        rows = read_split("math", path, "test", MATH_WANTED)
        heldout, others = judged(_examples(rows, prompt), rewards)
        left_out += others
    return Task.from_examples(
        "math",
        train,
        heldout=heldout,
        limit=limit,
        left_out=left_out,
        solutions=SOLUTION,
        protocol=MATH.protocol,
        **math_rewards(rewards, "boxed"),
    )


def read_math_500(
    path: str | Path | None, *, prompt: str = BOXED_PROMPT, rewards: Rewards | None = None
) -> Task:
    """Read MATH-500, which is only evaluated on.

    Raises:
        ValueError: the file is missing (the message says which is wanted), or a line is wrong.
    """
    rows = read_single("math-500", path, ("test.jsonl", "test*.parquet"), MATH_500_WANTED)
    heldout, left_out = judged(_examples(rows, prompt), rewards)
    return Task.from_examples(
        "math-500",
        [],
        heldout=heldout,
        left_out=left_out,
        protocol=MATH_500.protocol,
        **math_rewards(rewards, "boxed"),
    )


def boxed_content(solution: str, source: str) -> str:
    r"""Return what stands in the last box of a worked solution.

    >>> boxed_content(r"so $x = \boxed{\frac{1}{2}}$.", "1.json")
    '\\frac{1}{2}'
    >>> boxed_content(r"so $\boxed 7$ apples", "2.json")
    '7'

    Raises:
        ValueError: there is no box, it is not closed, or it is empty.
    """
    start = max(solution.rfind(command) for command in _COMMANDS)
    rest = solution[start:] if start >= 0 else ""
    for command in _COMMANDS:
        rest = rest.removeprefix(command)
    rest = rest.lstrip()
    content = _in_braces(rest) if rest.startswith("{") else rest.split("$")[0]
    if content is None or not content.strip():
        raise ValueError(
            f"{source}: column 'solution' has no answer in \\boxed{{}}; it ends in "
            f"{solution[-60:]!r}."
        )
    return content.strip()


def _examples(rows: Sequence[Row], prompt: str) -> list[Example]:
    return [_example(row, prompt) for row in rows]


def _example(row: Row, prompt: str) -> Example:
    question, solution = text_of(row, "problem"), text_of(row, SOLUTION)
    given = ANSWER in row.columns
    answer = text_of(row, ANSWER) if given else boxed_content(solution, row.source)
    taken = ("problem", ANSWER, SOLUTION)
    others = {name: held for name, held in row.columns.items() if name not in taken}
    return math_example(row, question, answer, prompt, solution=solution, **others)


def _in_braces(text: str) -> str | None:
    depth, escaped = 0, False
    for n, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        else:
            depth += {"{": 1, "}": -1}.get(character, 0)
            if depth == 0:
                return text[1:n]
    return None


MATH = TaskReader(
    "math",
    read_math,
    MATH_WANTED,
    EvaluationProtocol("the 5,000 of test", samples=1, temperature=0.0, max_tokens=2048),
)
MATH_500 = TaskReader(
    "math-500",
    read_math_500,
    MATH_500_WANTED,
    EvaluationProtocol("all 500", samples=16, temperature=0.6, max_tokens=32768),
)
