"""ToolACE (Liu et al., arXiv:2409.00920): which functions to call, with which arguments.

The official file, `data.json` of huggingface.co/datasets/Team-ACE/ToolACE, is a list of objects
with `system`, the instruction with the functions in JSON, and `conversations`, a list of `from`
(`user`, `assistant` or `tool`) and `value`. A turn of the assistant that calls functions reads
`[Market Trends API(trend_type="MARKET_INDEXES", country="us")]`. Read off the dataset card and off
scripts that read the file.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ogrpo.rewards.call_reader import read_calls
from ogrpo.rewards.reward import as_rewards
from ogrpo.rewards.tool_calls import ToolCalls
from ogrpo.tasks.columns import value
from ogrpo.tasks.example import Example, prompt_digest, to_prompt
from ogrpo.tasks.official import ANSWER, TaskReader, read_single, text_of
from ogrpo.tasks.rows import Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

WANTED = (
    "Wanted: data.json, a list of objects with system and conversations "
    "(huggingface.co/datasets/Team-ACE/ToolACE). Give its path or its folder's."
)
CALLS = "turns of the assistant that call functions"
WORDS = "turns of the assistant in words, left out"
UNREADABLE = "turns of the assistant whose calls cannot be read, left out"
SPEAKERS = ("user", "assistant", "tool")


def read_toolace(
    path: str | Path | None,
    *,
    heldout: float | int | None = None,
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Read ToolACE: an example for each turn that calls functions, asked after all before it.

    The answer is that turn's text; calls are compared as values. Turns that answer in words are
    left out and counted. A part is held out by conversations, so that `heldout` as a number counts
    those; turns of one conversation stay together.

    Raises:
        ValueError: the file is missing (the message says which is wanted), or an entry is wrong.
    """
    rows = read_single("toolace", path, ("data.json",), WANTED)
    examples, counts = [], Counter[str]()
    for example in (turn for row in rows for turn in _turns(row)):
        kind = _kind(example.columns[ANSWER])
        counts[kind] += 1
        if kind == CALLS:
            examples.append(example)
    return Task.from_examples(
        "toolace",
        examples,
        heldout=heldout,
        limit=limit,
        digest=_by_opening,
        left_out=tuple((kind, counts[kind]) for kind in (WORDS, UNREADABLE) if counts[kind]),
        protocol=TOOLACE.protocol,
        **_rewards(rewards),
    )


def _turns(row: Row) -> Iterator[Example]:
    messages = [{"role": "system", "content": text_of(row, "system")}]
    for number, turn in enumerate(_conversation(row), start=1):
        where = Row(turn, f"{row.source}, turn {number}")
        role, content = text_of(where, "from"), text_of(where, "value")
        if role not in SPEAKERS:
            raise ValueError(f"{where.source}: 'from' is {role!r}; one of {SPEAKERS} is known.")
        if role == "assistant" and messages[-1]["role"] in ("user", "tool"):
            prompt = to_prompt(list(messages), "conversations", where.source)
            yield Example(prompt, {ANSWER: content}, where.source)
        messages.append({"role": role, "content": content})


def _conversation(row: Row) -> list[Mapping[str, Any]]:
    turns = value(row, "conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(
            f"{row.source}: column 'conversations' is {turns!r:.60}; give a list of objects with "
            "from and value."
        )
    return turns


def _kind(answer: str) -> str:
    """Tell what a turn of the assistant is."""
    try:
        return CALLS if read_calls(answer) else WORDS
    except ValueError:
        text = answer.strip()
        return UNREADABLE if text.startswith("[") and text.endswith(")]") else WORDS


def _by_opening(example: Example) -> bytes:
    assert not isinstance(example.prompt, str)
    return prompt_digest(example.prompt[:2])


def _rewards(rewards: Rewards | None) -> dict[str, Any]:
    if rewards is not None:
        return {"rewards": rewards}
    reward = ToolCalls()
    return {"rewards": [reward], "evaluation_rewards": as_rewards([reward.counting_apart()])}


TOOLACE = TaskReader(
    "toolace",
    read_toolace,
    WANTED,
    EvaluationProtocol("a tenth of the conversations", samples=1, temperature=0.0, max_tokens=1024),
)
