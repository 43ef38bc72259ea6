"""Examples: a prompt with the columns that rewards read, made of a row of a file."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from ogrpo.rewards.reward import ARGUMENTS, Reward
from ogrpo.system.terminal import nearest
from ogrpo.tasks.rows import Row

Message = Mapping[str, Any]
Prompt = str | tuple[Message, ...]
"""A text, or chat messages of which the last is the user's or a tool's."""

PROMPT_COLUMNS = ("prompt", "question", "messages", "problem")
"""Names of a prompt column where none is named."""
ANSWER_COLUMN = "answer"
"""The gold answers that our own rewards read."""
SOLUTION_COLUMN = "solution"

_LAST_ROLES = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its columns, and where it was read."""

    prompt: Prompt
    columns: Mapping[str, Any]
    """All other columns, handed to the rewards by name."""
    source: str = field(default="", compare=False)
    """`file:line`, for messages."""


def find_columns(
    rows: Sequence[Row], prompt: str | None, solution: str | None
) -> tuple[str, str | None]:
    """Returns the columns of prompts and solutions; what is None is looked up in the rows.

    Raises:
      ValueError: no column, or more than one, has a prompt's name; or a named one is not there.
    """
    row = rows[0]
    if prompt is None:
        names = [name for name in PROMPT_COLUMNS if name in row.columns]
        if len(names) != 1:
            has = f"has both {names[0]!r} and {names[1]!r}" if names else "has no prompt column"
            other = "" if names else f", or name it as one of {PROMPT_COLUMNS}"
            raise ValueError(
                f"{row.source}: {has}; there are {sorted(row.columns)}: say which holds the "
                f"prompt by prompt=... (--data.prompt-column){other}."
            )
        prompt = names[0]
    there = any((solution or SOLUTION_COLUMN) in each.columns for each in rows)
    if solution is not None and not there:
        value(row, solution)
    return prompt, solution or (SOLUTION_COLUMN if there else None)


def value(row: Row, name: str) -> Any:
    """Returns the value of a row in a column.

    Raises:
      ValueError: the row has no such column; the message names those that it has, and the one
        whose name is nearest.
    """
    if name in row.columns:
        return row.columns[name]
    hint = nearest(name, row.columns, ": did you mean {!r}?") or "."
    raise ValueError(f"{row.source}: no column {name!r}; there are {sorted(row.columns)}{hint}")


def to_examples(
    rows: Sequence[Row], prompt_column: str, solution_column: str | None
) -> list[Example]:
    """Makes examples of rows; a column that only some rows have is None in the others.

    Raises:
      ValueError: a row lacks the prompt column, its prompt is none, its solution is no text, or
        a column has the name of another argument of rewards.
    """
    names = dict.fromkeys(name for row in rows for name in row.columns)
    names.pop(prompt_column, None)
    if taken := [name for name in ARGUMENTS if name in names]:
        source = next(row.source for row in rows if taken[0] in row.columns)
        raise ValueError(
            f"{source}: a column is named {taken[0]!r}, under which rewards are given something "
            f"else ({', '.join(ARGUMENTS)}): rename the column."
        )
    examples = []
    for row in rows:
        prompt = to_prompt(value(row, prompt_column), prompt_column, row.source)
        others = {name: row.columns.get(name) for name in names}
        solution = others.get(solution_column or "")
        if solution_column is not None and not isinstance(solution, str | None):
            raise ValueError(
                f"{row.source}: column {solution_column!r} is {solution!r:.60}; give the worked "
                "solution as a text."
            )
        examples.append(Example(prompt, others, row.source))
    return examples


def check_columns(examples: Sequence[Example], rewards: Iterable[Reward]) -> None:
    """Checks that each example has the columns that the rewards' functions need.

    Raises:
      ValueError: a column is missing, or None; the message names the reward and the line.
    """
    for reward in rewards:
        for name in reward.parameters.required:
            for example in examples if name not in ARGUMENTS else ():
                if example.columns.get(name) is None:
                    present = sorted(k for k, held in example.columns.items() if held is not None)
                    raise ValueError(
                        f"{example.source}: reward {reward.name!r} asks for column {name!r}, which "
                        f"this line does not have; there are {present}: add it, or give the "
                        "parameter a default."
                    )


def check_golds(examples: Sequence[Example], rewards: Iterable[Reward]) -> None:
    """Lets the rewards that can check gold answers beforehand (`check_golds`) check the examples'.

    Raises:
      ValueError: an answer can never be judged; the message names its line.
    """
    for reward in rewards:
        check = getattr(reward.function, "check_golds", None)
        if check is not None:
            check([e.columns[ANSWER_COLUMN] for e in examples], [e.source for e in examples])


def to_prompt(prompt: Any, name: str, source: str) -> Prompt:
    """Checks the value of a prompt column: a text, or a list of messages with role and content.

    Keys of a message that hold None are left out, as Parquet fills them in.

    Raises:
      ValueError: the value is something else, is empty, holds half a surrogate pair, or the last
        message is neither the user's nor a tool's; the message names `source` and `name`.
    """
    where = f"{source}: column {name!r}"
    if isinstance(prompt, str):
        return _text(prompt, where)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
        raise ValueError(
            f"{where} is {prompt!r:.60} ({type(prompt).__name__}); give a text, or a list of "
            "messages {'role': ..., 'content': ...}."
        )
    if not prompt:
        raise ValueError(f"{where} has no message; give at least the user's.")
    messages = tuple(_message(m, f"{where}, message {n}") for n, m in enumerate(prompt, start=1))
    last = messages[-1]["role"]
    if last not in _LAST_ROLES:
        raise ValueError(
            f"{where}: the last message is of role {last!r}; a prompt ends with one of "
            f"{_LAST_ROLES}: put the answer, if it is one, into a column of its own."
        )
    _text(messages[-1]["content"], f"{where}, message {len(messages)}, 'content'")
    return messages


def _text(text: str, where: str) -> str:
    if not text.strip():
        raise ValueError(f"{where} is empty; give a text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where} holds half a surrogate pair at character {error.start}, which no file can "
            "hold as UTF-8: write the whole character."
        ) from error
    return text


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"{where} is {message!r:.60}; give {{'role': ..., 'content': ...}}.")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{where} has role {role!r:.60}; give 'system', 'user', 'assistant', ....")
    if content is None and role == "assistant" and message.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"{where} has content {content!r:.60}; give a text.")
    present = {key: item for key, item in message.items() if item is not None}
    return {**present, "content": _text(content, where) if content.strip() else content}


def prompt_texts(prompt: Prompt) -> Iterator[str]:
    """Yields the texts of a prompt: itself, or the content of each of its messages."""
    if isinstance(prompt, str):
        yield prompt
    else:
        yield from (m["content"] for m in prompt if m.get("content"))


def prompt_digest(prompt: Prompt) -> bytes:
    """Returns 16 bytes that two prompts share if they differ in white space at most.

    >>> prompt_digest("How  many ?\\n") == prompt_digest("How many ?")
    True
    """
    if isinstance(prompt, str):
        text = " ".join(prompt.split())
    else:
        messages = [{**m, "content": " ".join(m["content"].split())} for m in prompt]
        text = json.dumps(messages, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).digest()
