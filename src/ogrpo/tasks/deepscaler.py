r"""DeepScaleR-Preview (Luo et al., 2025): about 40,000 competition problems to train on.

The official file, `deepscaler.json` of huggingface.co/datasets/agentica-org/DeepScaleR-Preview-
Dataset, is a list of objects with `problem`, `answer` and `solution`; a solution is empty where
there is none. Read off the dataset card.
"""

from pathlib import Path

from ogrpo.tasks.columns import value
from ogrpo.tasks.example import Example
from ogrpo.tasks.official import (
    ANSWER,
    BOXED_PROMPT,
    SOLUTION,
    TaskReader,
    judged,
    math_example,
    math_rewards,
    read_single,
    text_of,
)
from ogrpo.tasks.rows import Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

WANTED = (
    "Wanted: deepscaler.json, a list of objects with problem, answer, solution "
    "(huggingface.co/datasets/agentica-org/DeepScaleR-Preview-Dataset). Give its path or its "
    "folder's."
)


def read_deepscaler(
    path: str | Path | None,
    *,
    prompt: str = BOXED_PROMPT,
    heldout: float | int | None = None,
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Read DeepScaleR-Preview; it has no test split of its own, so a part is cut off.

    Its authors evaluate on AIME-24 and MATH-500: `task.evaluated_on(read_task("aime-24", path))`.

    Raises:
        ValueError: the file is missing (the message says which is wanted), or a line is wrong.
    """
    rows = read_single("deepscaler", path, ("deepscaler*.json*", "deepscaler*.parquet"), WANTED)
    examples, left_out = judged([_example(row, prompt) for row in rows], rewards)
    return Task.from_examples(
        "deepscaler",
        examples,
        heldout=heldout,
        limit=limit,
        left_out=left_out,
        solutions=SOLUTION,
        protocol=DEEPSCALER.protocol,
        **math_rewards(rewards, "boxed"),
    )


def _example(row: Row, prompt: str) -> Example:
    solution = value(row, SOLUTION)
    if not isinstance(solution, str):
        raise ValueError(f"{row.source}: column 'solution' is {solution!r:.60}; give a text.")
    question, answer = text_of(row, "problem"), text_of(row, ANSWER)
    return math_example(row, question, answer, prompt, solution=solution)


DEEPSCALER = TaskReader(
    "deepscaler",
    read_deepscaler,
    WANTED,
    EvaluationProtocol("a part of the file", samples=16, temperature=0.6, max_tokens=32768),
)
