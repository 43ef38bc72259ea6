"""The real tasks by name, for a command line and for experiments."""

from pathlib import Path
from typing import Any

from ogrpo.rewards.math import MathReward
from ogrpo.system.terminal import nearest
from ogrpo.tasks import arithmetic
from ogrpo.tasks.competition_math import AIME_24, DEEPSCALER, MATH, MATH_500
from ogrpo.tasks.gsm8k import GSM8K
from ogrpo.tasks.official import SOLUTION, TaskReader, solved_example
from ogrpo.tasks.rows import FILES
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task
from ogrpo.tasks.word_problems import NO_FILES, WORD_PROBLEMS


def read_arithmetic(
    path: str | Path | None = None,
    *,
    train: int = 8000,
    heldout: int = 512,
    seed: int = 0,
    rewards: Rewards | None = None,
) -> Task:
    """Makes the problems: `arithmetic.split(train, heldout, seed)`, worked solutions included.

    Raises:
      ValueError: there is a path, or there are not that many problems.
    """
    if path is not None:
        raise ValueError(f"task 'arithmetic' reads no files, and the path is {path}. {NO_FILES}")
    if train < 1 or heldout < 1:
        raise ValueError(f"train is {train}, heldout {heldout}; give at least 1 of each.")
    problems = arithmetic.split(train, heldout, seed)
    first, second = (
        [
            solved_example(problem, source=f"arithmetic, seed {seed}, {name}:{number}")
            for number, problem in enumerate(part, start=1)
        ]
        for name, part in zip(("train", "held out"), problems, strict=True)
    )
    return ARITHMETIC.task(first, MathReward(), rewards, heldout=second, solutions=SOLUTION)


ARITHMETIC = TaskReader(
    "arithmetic",
    read_arithmetic,
    NO_FILES,
    EvaluationProtocol("problems of the same seed", samples=8, temperature=1.0, max_tokens=64),
)
TASKS: dict[str, TaskReader] = {
    reader.name: reader
    for reader in (ARITHMETIC, WORD_PROBLEMS, GSM8K, MATH, MATH_500, AIME_24, DEEPSCALER)
}


def read_task(name: str, path: str | Path | None = None, **options: Any) -> Task:
    """Reads a task from its official files.

    Args:
      name: a key of `TASKS`.
      path: the folder or file that holds them; the message about missing ones says which.
      options: of the task's reader (`prompt`, `rewards`, `limit`, `heldout`, `split`, ...).

    Raises:
      ValueError: no such task or option (with the nearest name), files are missing (with which
        are needed from where), or a line is wrong (with file and line).
    """
    if name not in TASKS:
        hint = nearest(name, TASKS, ": did you mean {!r}?") or "."
        files = f"{', '.join(FILES[:-1])} or {FILES[-1]}"
        raise ValueError(
            f"no task {name!r}; there are {sorted(TASKS)}, chains (as --task alone), and files that"
            f" end in {files}{hint}"
        )
    reader = TASKS[name]
    for option in options:
        if option not in reader.options:
            hint = nearest(option, reader.options, ": did you mean {!r}?") or "."
            raise ValueError(
                f"task {name!r} has no option {option!r}; there are {reader.options}{hint}"
            )
    return reader.read(path, **options)
