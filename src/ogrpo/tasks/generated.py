"""The generated arithmetic problems of the main study (`ogrpo.tasks.arithmetic`) as a task."""

from collections.abc import Sequence
from pathlib import Path

from ogrpo.tasks import arithmetic
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.example import Example
from ogrpo.tasks.official import ANSWER, SOLUTION, TaskReader, math_rewards
from ogrpo.tasks.problems import final_answer
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

WANTED = "The problems are made from a seed: leave the path out."


def read_arithmetic(
    path: str | Path | None = None,
    *,
    train: int = 8000,
    heldout: int = 512,
    seed: int = 0,
    rewards: Rewards | None = None,
) -> Task:
    """Make the problems: `arithmetic.split(train, heldout, seed)`, worked solutions included.

    Raises:
        ValueError: a path is given, or there are not that many problems.
    """
    if path is not None:
        raise ValueError(f"task 'arithmetic' reads no files, and the path is {path}. {WANTED}")
    if train < 1 or heldout < 1:
        raise ValueError(f"train is {train}, heldout {heldout}; give at least 1 of each.")
    made = arithmetic.split(train, heldout, seed)
    return Task.from_examples(
        "arithmetic",
        _examples(made.train, f"arithmetic, seed {seed}, train"),
        heldout=_examples(made.heldout, f"arithmetic, seed {seed}, held out"),
        solutions=SOLUTION,
        protocol=ARITHMETIC.protocol,
        **math_rewards(rewards, "marker"),
    )


def _examples(problems: Sequence[WordProblem], name: str) -> list[Example]:
    return [
        Example(p.question, {ANSWER: final_answer(p), SOLUTION: p.answer}, f"{name}:{number}")
        for number, p in enumerate(problems, start=1)
    ]


ARITHMETIC = TaskReader(
    "arithmetic",
    read_arithmetic,
    WANTED,
    EvaluationProtocol("problems of the same seed", samples=8, temperature=1.0, max_tokens=64),
)
