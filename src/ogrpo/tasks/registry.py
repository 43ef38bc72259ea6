"""The real tasks by name, for a command line and for experiments."""

import difflib
import inspect
from pathlib import Path
from typing import Any

from ogrpo.tasks.aime import AIME_24
from ogrpo.tasks.competition_math import MATH, MATH_500
from ogrpo.tasks.deepscaler import DEEPSCALER
from ogrpo.tasks.generated import ARITHMETIC
from ogrpo.tasks.grade_school_math import GSM8K
from ogrpo.tasks.guru import GURU_MATH
from ogrpo.tasks.official import TaskReader
from ogrpo.tasks.task import Task
from ogrpo.tasks.toolace import TOOLACE
from ogrpo.tasks.word_problems import WORD_PROBLEMS

TASKS: dict[str, TaskReader] = {
    reader.name: reader
    for reader in (
        *(ARITHMETIC, WORD_PROBLEMS, GSM8K, MATH, MATH_500, AIME_24, DEEPSCALER, GURU_MATH),
        TOOLACE,
    )
}


def read_task(name: str, path: str | Path | None = None, **options: Any) -> Task:
    """Read a task from its official files.

    Args:
        name: a key of `TASKS`.
        path: the folder or file that holds them; the message about missing ones says which.
        options: of the task's reader (`prompt`, `rewards`, `limit`, `heldout`, `split`, ...).

    Raises:
        ValueError: no such task or option (with the nearest name), files are missing (with what is
            wanted from where), or a line is wrong (with file and line).
    """
    if name not in TASKS:
        raise ValueError(f"no task {name!r}; there are {sorted(TASKS)}{_nearest(name, TASKS)}")
    reader = TASKS[name]
    known = [p for p in inspect.signature(reader.read).parameters if p != "path"]
    for option in options:
        if option not in known:
            raise ValueError(
                f"task {name!r} has no option {option!r}; there are {known}"
                f"{_nearest(option, known)}"
            )
    return reader.read(path, **options)


def _nearest(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, list(names), n=1)
    return f": did you mean {near[0]!r}?" if near else "."
