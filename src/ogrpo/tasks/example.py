"""One line of a task: a prompt, and the columns that its rewards read."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

Message = Mapping[str, Any]
Prompt = str | tuple[Message, ...]
"""A text, or chat messages of which the last is the user's or a tool's."""

_LAST_ROLES = ("user", "tool")


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its columns, and where it was read."""

    prompt: Prompt
    columns: Mapping[str, Any]
    """All other columns, handed to the rewards by name."""
    source: str = field(default="", compare=False)
    """`file:line`, for messages."""


def to_prompt(value: Any, name: str, source: str) -> Prompt:
    """Check the value of a prompt column: a text, or a list of messages with role and content.

    Keys of a message that hold None are left out, as Parquet fills them in.

    Raises:
        ValueError: the value is something else, is empty, holds half a surrogate pair, or the last
            message is neither the user's nor a tool's; the message names `source` and `name`.
    """
    if isinstance(value, str):
        return _text(value, f"{source}: column {name!r}")
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return _messages(value, f"{source}: column {name!r}")
    raise ValueError(
        f"{source}: column {name!r} is {value!r:.60} ({type(value).__name__}); give a text, or a "
        "list of messages {'role': ..., 'content': ...}."
    )


def prompt_texts(prompt: Prompt) -> Iterator[str]:
    """Yield the texts of a prompt: itself, or the content of each of its messages."""
    if isinstance(prompt, str):
        yield prompt
    else:
        yield from (m["content"] for m in prompt if m.get("content"))


def prompt_digest(prompt: Prompt) -> bytes:
    """Return 16 bytes that two prompts share if they differ in white space at most.

    >>> prompt_digest("How  many ?\\n") == prompt_digest("How many ?")
    True
    """
    if isinstance(prompt, str):
        text = _squeeze(prompt)
    else:
        messages = [{**m, "content": _squeeze(m["content"])} for m in prompt]
        text = json.dumps(messages, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).digest()


def _squeeze(text: str) -> str:
    return " ".join(text.split())


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


def _messages(value: Sequence[Any], where: str) -> tuple[Message, ...]:
    if not value:
        raise ValueError(f"{where} has no message; give at least the user's.")
    messages = tuple(_message(m, f"{where}, message {n}") for n, m in enumerate(value, start=1))
    last = messages[-1]["role"]
    if last not in _LAST_ROLES:
        raise ValueError(
            f"{where}: the last message is of role {last!r}; a prompt ends with one of "
            f"{_LAST_ROLES}: put the answer, if it is one, into a column of its own."
        )
    _text(messages[-1]["content"], f"{where}, message {len(messages)}, 'content'")
    return messages


def _message(value: Any, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {value!r:.60}; give {{'role': ..., 'content': ...}}.")
    role, content = value.get("role"), value.get("content")
    if not isinstance(role, str) or not role:
        raise ValueError(f"{where} has role {role!r:.60}; give 'system', 'user', 'assistant', ....")
    if content is None and role == "assistant" and value.get("tool_calls"):
        content = ""
    if not isinstance(content, str):
        raise ValueError(f"{where} has content {content!r:.60}; give a text.")
    kept = {key: item for key, item in value.items() if item is not None}
    return {**kept, "content": _text(content, where) if content.strip() else content}
