"""GSM8K as a task; `ogrpo.tasks.gsm8k` reads its files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from ogrpo.tasks import gsm8k
from ogrpo.tasks.example import Example
from ogrpo.tasks.official import (
    ANSWER,
    MARKER_PROMPT,
    SOLUTION,
    TaskReader,
    fill,
    math_rewards,
    missing,
    one_of,
)
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

WANTED = (
    "Wanted: train.jsonl and test.jsonl, one JSON object a line with question and answer "
    "(github.com/openai/grade-school-math, folder grade_school_math/data). Give the path of their "
    "folder, or a name on the hub (openai/gsm8k)."
)


def read_gsm8k(
    path: str | Path | None,
    *,
    prompt: str = MARKER_PROMPT,
    split: Literal["test", "validation"] = "test",
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Read GSM8K; `split` says whether test.jsonl or every seventh of train.jsonl is held out.

    Raises:
        ValueError: files are missing (the message says which are wanted), or a line is wrong.
    """
    one_of("split", split, ("test", "validation"))
    if path is None:
        raise missing("gsm8k", path, WANTED)
    parts = gsm8k.load(path)
    if split == "validation":
        parts = gsm8k.cut_validation(parts.train)
    return Task.from_examples(
        "gsm8k",
        _examples(parts.train, prompt),
        heldout=_examples(parts.heldout, prompt),
        limit=limit,
        solutions=SOLUTION,
        protocol=GSM8K.protocol,
        **math_rewards(rewards, "marker"),
    )


def _examples(problems: Sequence[Problem], prompt: str) -> list[Example]:
    return [
        Example(
            fill(prompt, problem.question),
            {ANSWER: final_answer(problem), SOLUTION: problem.answer},
            problem.source,
        )
        for problem in problems
    ]


GSM8K = TaskReader(
    "gsm8k",
    read_gsm8k,
    WANTED,
    EvaluationProtocol("the 1,319 of test.jsonl", samples=1, temperature=0.0, max_tokens=512),
)
