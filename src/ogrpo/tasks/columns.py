"""From rows to examples: which column is the prompt, which the solution, and what rewards need."""

import difflib
import inspect
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ogrpo.rewards.reward import Reward
from ogrpo.tasks.example import Example, to_prompt
from ogrpo.tasks.rows import Row

PROMPT_COLUMNS = ("prompt", "question", "messages", "problem")
"""Names that a prompt column is found by."""
ANSWER_COLUMN = "answer"
"""Where the gold answer stands that our own rewards read."""
SOLUTION_COLUMN = "solution"
RESERVED = ("prompts", "completions", "completion_ids", "finish_reasons")
"""What a reward function is given beside the columns."""


class ColumnNames(NamedTuple):
    """The names of the prompt column and of the column of worked solutions."""

    prompt: str
    solution: str | None


def find_columns(row: Row, prompt: str | None, solution: str | None) -> ColumnNames:
    """Find the columns that were not named, in the first row.

    Raises:
        ValueError: no column, or more than one, has a prompt's name; or a named one is not there.
    """
    if prompt is None:
        found = [name for name in PROMPT_COLUMNS if name in row.columns]
        if len(found) != 1:
            has = f"has both {found[0]!r} and {found[1]!r}" if found else "has no prompt column"
            raise ValueError(
                f"{row.source}: {has}; there are {sorted(row.columns)}: say which holds the "
                f"prompt by prompt=..., or name one of them as one of {PROMPT_COLUMNS}."
            )
        prompt = found[0]
    if solution is None:
        solution = SOLUTION_COLUMN if SOLUTION_COLUMN in row.columns else None
    else:
        value(row, solution)
    return ColumnNames(prompt, solution)


def value(row: Row, name: str) -> Any:
    """Return what a row has in a column.

    Raises:
        ValueError: the row has no such column; the message tells those that it has, and the one
            whose name is nearest.
    """
    if name in row.columns:
        return row.columns[name]
    near = difflib.get_close_matches(name, [str(column) for column in row.columns], n=1)
    hint = f": did you mean {near[0]!r}?" if near else "."
    raise ValueError(f"{row.source}: no column {name!r}; there are {sorted(row.columns)}{hint}")


def to_examples(rows: Sequence[Row], columns: ColumnNames) -> list[Example]:
    """Make examples of rows; a column that only some rows have is None in the others.

    Raises:
        ValueError: a row lacks the prompt column, its prompt is none, its solution is no text, or
            a column has a name that rewards are given something else under.
    """
    names = dict.fromkeys(name for row in rows for name in row.columns)
    names.pop(columns.prompt, None)
    taken = [name for name in RESERVED if name in names]
    if taken:
        source = next(row.source for row in rows if taken[0] in row.columns)
        raise ValueError(
            f"{source}: a column is named {taken[0]!r}, under which rewards are given something "
            f"else ({', '.join(RESERVED)}): rename the column."
        )
    return [_example(row, columns, names) for row in rows]


def check_columns(examples: Sequence[Example], rewards: Iterable[Reward]) -> None:
    """Check that each example has what the rewards' parameters without a default ask for.

    Raises:
        ValueError: a column is missing, or None; the message names the reward and the line.
    """
    for reward in rewards:
        for name in _asked(reward):
            for example in examples:
                if example.columns.get(name) is None:
                    raise ValueError(
                        f"{example.source}: reward {reward.name!r} asks for column {name!r}, which "
                        f"this line does not have; there are {_present(example)}: add it, or give "
                        "the parameter a default."
                    )


def check_golds(examples: Sequence[Example], rewards: Iterable[Reward]) -> None:
    """Let the rewards that can check gold answers beforehand (`check_golds`) check the examples'.

    Raises:
        ValueError: an answer can never be judged; the message names its line.
    """
    for reward in rewards:
        check = getattr(reward.function, "check_golds", None)
        if check is not None:
            check([e.columns[ANSWER_COLUMN] for e in examples], [e.source for e in examples])


def _present(example: Example) -> list[str]:
    return sorted(name for name, held in example.columns.items() if held is not None)


def _example(row: Row, columns: ColumnNames, names: Iterable[str]) -> Example:
    prompt = to_prompt(value(row, columns.prompt), columns.prompt, row.source)
    others = {name: row.columns.get(name) for name in names}
    if columns.solution is not None:
        solution = others.get(columns.solution)
        if solution is not None and not isinstance(solution, str):
            raise ValueError(
                f"{row.source}: column {columns.solution!r} is {solution!r:.60}; give the worked "
                "solution as a text."
            )
    return Example(prompt, others, row.source)


def _asked(reward: Reward) -> list[str]:
    try:
        parameters = inspect.signature(reward.function).parameters.values()
    except (TypeError, ValueError):  # a function in C tells nothing of itself
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [
        p.name
        for p in parameters
        if p.kind in named and p.default is p.empty and p.name not in RESERVED
    ]
