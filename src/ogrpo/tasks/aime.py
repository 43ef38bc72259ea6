"""AIME 2024: 30 competition problems whose answers are whole numbers from 0 to 999.

Two data sets of the hub are common: HuggingFaceH4/aime_2024, Parquet with `id`, `problem`,
`solution`, `answer`, `url`, `year`; and Maxwell-Jia/AIME_2024, Parquet or JSONL with `ID`,
`Problem`, `Solution`, and `Answer` as a number. Column names are read without regard to case. Read
off a description of the latter and a notebook that loads it; those of the former are from memory.
"""

from pathlib import Path

from ogrpo.tasks.example import Example
from ogrpo.tasks.official import (
    ANSWER,
    BOXED_PROMPT,
    TaskReader,
    math_example,
    math_rewards,
    read_single,
    text_of,
)
from ogrpo.tasks.rows import Row
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

LARGEST = 999
WANTED = (
    "Wanted: one .parquet or .jsonl file with columns problem and answer "
    "(huggingface.co/datasets/HuggingFaceH4/aime_2024 or .../Maxwell-Jia/AIME_2024). Give its path "
    "or its folder's."
)


def read_aime_24(
    path: str | Path | None, *, prompt: str = BOXED_PROMPT, rewards: Rewards | None = None
) -> Task:
    """Read AIME 2024, which is only evaluated on.

    Raises:
        ValueError: the file is missing (the message says which is wanted), a line is wrong, or an
            answer is no whole number from 0 to 999.
    """
    rows = read_single("aime-24", path, ("*.parquet", "*.jsonl"), WANTED)
    return Task.from_examples(
        "aime-24",
        [],
        heldout=[_example(row, prompt) for row in rows],
        protocol=AIME_24.protocol,
        **math_rewards(rewards, "boxed"),
    )


def _example(row: Row, prompt: str) -> Example:
    row = Row({str(name).lower(): held for name, held in row.columns.items()}, row.source)
    answer = text_of(row, ANSWER).strip()
    if not answer.isdecimal() or int(answer) > LARGEST:
        raise ValueError(
            f"{row.source}: column 'answer' is {answer!r}; an answer of the AIME is a whole number "
            f"from 0 to {LARGEST}."
        )
    others = {name: held for name, held in row.columns.items() if name not in ("problem", ANSWER)}
    return math_example(row, text_of(row, "problem"), str(int(answer)), prompt, **others)


AIME_24 = TaskReader(
    "aime-24",
    read_aime_24,
    WANTED,
    EvaluationProtocol("all 30", samples=32, temperature=0.6, max_tokens=32768),
)
