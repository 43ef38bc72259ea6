r"""Guru-Math: the 54,000 mathematical problems of Guru (Cheng et al., arXiv:2506.14965).

The official file, `train/math__combined_54.4k.parquet` of huggingface.co/datasets/LLM360/
guru-RL-92k, has `prompt`, a list with the user's message, which already ends in "Please output the
final answer within \boxed{}."; `reward_model` with `ground_truth`; `data_source`, which begins with
`math__`; and pass rates of two models. Read off the project's preprocessing and the scripts that
read the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ogrpo.tasks.columns import value
from ogrpo.tasks.example import Example
from ogrpo.tasks.official import (
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
    "Wanted: math__combined_54.4k.parquet with columns data_source, prompt, reward_model "
    "(huggingface.co/datasets/LLM360/guru-RL-92k, folder train). Give its path or its folder's."
)
KEPT = ("data_source", "qwen2.5_7b_pass_rate", "qwen3_30b_pass_rate")
"""Columns that are handed to rewards beside the answer, where the file has them."""


def read_guru_math(
    path: str | Path | None,
    *,
    prompt: str = "{question}",
    heldout: float | int | None = None,
    rewards: Rewards | None = None,
    limit: int | None = None,
) -> Task:
    """Read Guru-Math; it has no test split of its own, so a part is cut off.

    The user's message becomes a prompt of text, so that a tokenizer without a chat template reads
    it too. Rows of Guru's other domains are left out and counted.

    Raises:
        ValueError: the file is missing (the message says which is wanted), or a row is wrong.
    """
    rows = read_single("guru-math", path, ("math__combined*.parquet",), WANTED)
    of_math = [row for row in rows if text_of(row, "data_source").startswith("math__")]
    examples, left_out = judged([_example(row, prompt) for row in of_math], rewards)
    if len(of_math) < len(rows):
        others = ("rows of other domains than mathematics, left out", len(rows) - len(of_math))
        left_out = (others, *left_out)
    return Task.from_examples(
        "guru-math",
        examples,
        heldout=heldout,
        limit=limit,
        left_out=left_out,
        protocol=GURU_MATH.protocol,
        **math_rewards(rewards, "boxed"),
    )


def _example(row: Row, prompt: str) -> Example:
    model = value(row, "reward_model")
    if not isinstance(model, Mapping):
        raise ValueError(f"{row.source}: column 'reward_model' is {model!r:.60}; give an object.")
    truth = text_of(Row(model, f"{row.source}, 'reward_model'"), "ground_truth")
    others = {name: row.columns[name] for name in KEPT if name in row.columns}
    return math_example(row, _question(row), truth, prompt, **others)


def _question(row: Row) -> str:
    messages: Any = value(row, "prompt")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], Mapping):
        message = Row(messages[0], f"{row.source}, 'prompt'")
        if value(message, "role") == "user":
            return text_of(message, "content")
    raise ValueError(f"{row.source}: column 'prompt' is {messages!r:.60}; give one user's message.")


GURU_MATH = TaskReader(
    "guru-math",
    read_guru_math,
    WANTED,
    EvaluationProtocol("a part of the file", samples=4, temperature=1.0, max_tokens=32768),
)
