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

from ogrpo.rewards.tool_calls import ToolCalls, read_calls
from ogrpo.tasks.example import Example, prompt_digest, to_prompt, value
from ogrpo.tasks.official import ANSWER, TaskReader, text_of
from ogrpo.tasks.rows import Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

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
    """Read ToolACE: an example for each turn that calls functions, whose prompt is all before it.

    The answer is that turn's text; calls are compared as values. Turns that answer in words are
    left out and counted. A part is held out by conversations, so that `heldout` as a number counts
    those; turns of one conversation stay together.

    Raises:
        ValueError: the file is missing (the message says which is needed), or an entry is wrong.
    """
    examples, counts = [], Counter[str]()
    for row in TOOLACE.read_single(path, "data.json"):
        for example in _turns(row):
            kind = _kind(example.columns[ANSWER])
            counts[kind] += 1
            examples += [example] * (kind == CALLS)
    return TOOLACE.task(
        examples,
        ToolCalls(),
        rewards,
        heldout=heldout,
        limit=limit,
        left_out=tuple((kind, counts[kind]) for kind in (WORDS, UNREADABLE) if counts[kind]),
        digest=lambda example: prompt_digest(example.prompt[:2]),
    )


def _turns(row: Row) -> Iterator[Example]:
    """Yield an example for each turn of the assistant that answers a user or a tool."""
    messages = [{"role": "system", "content": text_of(row, "system")}]
    turns = value(row, "conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise ValueError(
            f"{row.source}: column 'conversations' is {turns!r:.60}; give a list of objects with "
            "from and value."
        )
    for number, turn in enumerate(turns, start=1):
        where = Row(turn, f"{row.source}, turn {number}")
        role, content = text_of(where, "from"), text_of(where, "value")
        if role not in SPEAKERS:
            raise ValueError(f"{where.source}: 'from' is {role!r}; one of {SPEAKERS} is known.")
        if role == "assistant" and messages[-1]["role"] in ("user", "tool"):
            prompt = to_prompt(list(messages), "conversations", where.source)
            yield Example(prompt, {ANSWER: content}, where.source)
        messages.append({"role": role, "content": content})


def _kind(answer: str) -> str:
    """Return whether a turn of the assistant is calls, words, or calls that cannot be read."""
    try:
        return CALLS if read_calls(answer) else WORDS
    except ValueError:
        text = answer.strip()
        return UNREADABLE if text.startswith("[") and text.endswith(")]") else WORDS


TOOLACE = TaskReader(
    "toolace",
    read_toolace,
    "Needed: data.json, a list of objects with system and conversations "
    "(huggingface.co/datasets/Team-ACE/ToolACE). Give its path or its folder's.",
    EvaluationProtocol("a tenth of the conversations", samples=1, temperature=0.0, max_tokens=1024),
)
