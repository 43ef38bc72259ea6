"""What the readers of official files share: finding the files, filling prompts, judging answers."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.golds import find_bad_golds
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.reward import as_rewards
from ogrpo.tasks.columns import ANSWER_COLUMN, SOLUTION_COLUMN, value
from ogrpo.tasks.example import Example, to_prompt
from ogrpo.tasks.rows import Row, parse_json, read_rows
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

BOXED_PROMPT = "{question}\nReason step by step, and put the final answer in \\boxed{}."
MARKER_PROMPT = (
    "{question}\nThink step by step, and end with a line that holds #### and the number alone."
)
ANSWER, SOLUTION = ANSWER_COLUMN, SOLUTION_COLUMN
LeftOut = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class TaskReader:
    """How a task is read from its official files, and how it is evaluated."""

    name: str
    read: Callable[..., Task]
    """Takes the path, and the reader's own options by keyword."""
    wanted: str
    """Which files, in which format, from which public source."""
    protocol: EvaluationProtocol


def missing(name: str, path: str | Path | None, wanted: str) -> ValueError:
    """Return the error that says which files a task wants, in which format and from where."""
    if path is None:
        return ValueError(f"task {name!r} needs a path. {wanted}")
    at = Path(path).expanduser()
    what = "does not hold them" if at.is_dir() else "does not exist"
    return ValueError(f"task {name!r}: {path} {what}. {wanted}")


def read_split(name: str, path: str | Path | None, split: str, wanted: str) -> list[Row]:
    """Read one split of a folder: `split.jsonl`, `.json` or `.parquet`, Parquet files
    `split-*.parquet` at any depth, or a folder `split` of one JSON object a file.

    Raises:
        ValueError: there is none of these, or a file is wrong.
    """
    folder = None if path is None else Path(path).expanduser()
    if folder is None or not folder.is_dir():
        raise missing(name, path, wanted)
    for ending in (".jsonl", ".json", ".parquet"):
        if (folder / f"{split}{ending}").is_file():
            return read_rows(folder / f"{split}{ending}")
    if parts := sorted(folder.rglob(f"{split}-*.parquet")):
        return [row for part in parts for row in read_rows(part)]
    if objects := sorted((folder / split).rglob("*.json"), key=_by_number):
        return [_read_object(file) for file in objects]
    raise missing(name, path, wanted)


def read_single(
    name: str, path: str | Path | None, patterns: Sequence[str], wanted: str
) -> list[Row]:
    """Read the one file of a folder, at any depth, that fits a pattern; or the file at `path`.

    Raises:
        ValueError: none fits, or several do, or the file is wrong.
    """
    at = None if path is None else Path(path).expanduser()
    if at is not None and at.is_file():
        return read_rows(at)
    found = [] if at is None else [f for pattern in patterns for f in sorted(at.rglob(pattern))]
    if not found:
        raise missing(name, path, wanted)
    if len(found) > 1:
        names = ", ".join(str(file) for file in found[:4])
        raise ValueError(f"task {name!r}: {path} holds several files: {names}. Give one as path.")
    return read_rows(found[0])


def text_of(row: Row, name: str) -> str:
    """Return a column's text, a whole number as its digits.

    Raises:
        ValueError: the column is missing, empty, or holds something else.
    """
    held = value(row, name)
    if isinstance(held, int) and not isinstance(held, bool):
        return str(held)
    if not isinstance(held, str) or not held.strip():
        raise ValueError(f"{row.source}: column {name!r} is {held!r:.60}; give a text.")
    return held


def fill(template: str, question: str) -> str:
    """Put a question into a prompt's template.

    Raises:
        ValueError: the template has no place for it.
    """
    if "{question}" not in template:
        raise ValueError(f"prompt {template!r} has no {{question}} in it.")
    return template.replace("{question}", question)


def math_example(row: Row, question: str, answer: str, prompt: str, **columns: Any) -> Example:
    """Make an example of a question with its gold answer, and whatever columns are given."""
    filled = to_prompt(fill(prompt, question), "prompt", row.source)
    return Example(filled, {ANSWER: answer, **columns}, row.source)


def judged(examples: Sequence[Example], rewards: Rewards | None) -> tuple[list[Example], LeftOut]:
    """Leave out, and count, the examples whose gold answer math-verify cannot judge.

    An official file cannot be mended; one's own can, so there the same is an error. Rewards of
    one's own judge as they like, so that nothing is left out for them.
    """
    if rewards is not None:
        return list(examples), ()
    bad = find_bad_golds([example.columns[ANSWER] for example in examples])
    kept = [example for n, example in enumerate(examples) if n not in bad]
    if not bad:
        return kept, ()
    first = examples[min(bad)].source
    label = f"examples whose gold answer math-verify cannot judge, left out ({first} the first)"
    return kept, ((label, len(bad)),)


def math_rewards(rewards: Rewards | None, extraction: str) -> dict[str, Any]:
    """Return the fields `rewards` and `evaluation_rewards`: those given, or math-verify's."""
    if rewards is not None:
        return {"rewards": rewards}
    reward = MathReward(EXTRACTORS[extraction])
    return {"rewards": [reward], "evaluation_rewards": as_rewards([reward.counting_apart()])}


def one_of(name: str, given: str, choices: Iterable[str]) -> None:
    """Raise a ValueError if an option is none of its choices."""
    if given not in (choices := list(choices)):
        raise ValueError(f"{name} is {given!r}; choose one of {choices}.")


def _read_object(file: Path) -> Row:
    content = parse_json(file.read_bytes(), str(file))
    if not isinstance(content, dict):
        raise ValueError(f"{file}: {type(content).__name__}; give a JSON object.")
    return Row(content, str(file))


def _by_number(file: Path) -> tuple[str, int, str]:
    number = int(file.stem) if file.stem.isdecimal() else -1
    return str(file.parent), number, file.stem
