"""Readers of official files share this: the files' names, prompts, and judges of the answers."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ogrpo.rewards.math import MathReward, find_bad_golds
from ogrpo.tasks.example import ANSWER_COLUMN, SOLUTION_COLUMN, Example, to_prompt, value
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.rows import Row, parse_json, read_rows
from ogrpo.tasks.task import EvaluationProtocol, Rewards, Task

BOXED_PROMPT = "{question}\nReason step by step, and put the final answer in \\boxed{}."
MARKER_PROMPT = (
    "{question}\nThink step by step, and end with a line that holds #### and the number alone."
)
ANSWER, SOLUTION = ANSWER_COLUMN, SOLUTION_COLUMN


@dataclass(frozen=True)
class TaskReader:
    """A task of the literature: a function that reads its official files, and its evaluation."""

    name: str
    read: Callable[..., Task]
    """Takes the path, and the reader's own options by keyword; raises ValueError where files are
    missing (the message says which are needed) or a line is wrong."""
    files: str
    """Says which files are read, in which format, from which public source: ends an error."""
    protocol: EvaluationProtocol

    @property
    def options(self) -> list[str]:
        """Names of the reader's own options."""
        return [name for name in inspect.signature(self.read).parameters if name != "path"]

    def missing(self, path: str | Path | None) -> ValueError:
        """Returns an error: which files the task needs, in which format and from where."""
        if path is None:
            return ValueError(f"task {self.name!r} needs a path. {self.files}")
        what = "does not hold them" if Path(path).expanduser().is_dir() else "does not exist"
        return ValueError(f"task {self.name!r}: {path} {what}. {self.files}")

    def read_split(self, path: str | Path | None, split: str) -> list[Row]:
        """Reads one split of a folder: `split.jsonl`, `.json` or `.parquet`, Parquet files
        `split-*.parquet` at any depth, or a folder `split` of one JSON object a file.

        Raises:
          ValueError: there is none of these, or a file is wrong.
        """
        folder = Path(path or "").expanduser()
        if path is None or not folder.is_dir():
            raise self.missing(path)
        for ending in (".jsonl", ".json", ".parquet"):
            if (folder / f"{split}{ending}").is_file():
                return read_rows(folder / f"{split}{ending}")
        if parts := sorted(folder.rglob(f"{split}-*.parquet")):
            return [row for part in parts for row in read_rows(part)]
        objects = sorted(
            (folder / split).rglob("*.json"),
            key=lambda file: (
                str(file.parent),
                int(file.stem) if file.stem.isdecimal() else -1,
                file.stem,
            ),
        )
        if not objects:
            raise self.missing(path)
        rows = [Row(parse_json(file.read_bytes(), str(file)), str(file)) for file in objects]
        for content, file in rows:
            if not isinstance(content, dict):
                raise ValueError(f"{file}: {type(content).__name__}; give a JSON object.")
        return rows

    def read_single(self, path: str | Path | None, *patterns: str) -> list[Row]:
        """Reads the one file of a folder, at any depth, that fits a pattern; or the file at `path`.

        Raises:
          ValueError: none fits, or several do, or the file is wrong.
        """
        if path is None:
            raise self.missing(path)
        folder = Path(path).expanduser()
        if folder.is_file():
            return read_rows(folder)
        files = [file for pattern in patterns for file in sorted(folder.rglob(pattern))]
        if not files:
            raise self.missing(path)
        if len(files) > 1:
            names = ", ".join(map(str, files[:4]))
            raise ValueError(
                f"task {self.name!r}: {path} holds several files: {names}. Give one as path."
            )
        return read_rows(files[0])

    def task(
        self,
        train: Sequence[Example],
        judge: MathReward,
        rewards: Rewards | None,
        *,
        heldout: Sequence[Example] | float | int | None = None,
        left_out: tuple[tuple[str, int], ...] = (),
        **fields: Any,
    ) -> Task:
        """Makes the task of examples: judged by `judge`, unless there are rewards of one's own.

        Examples whose gold answer math-verify cannot judge are left out and counted: an official
        file cannot be mended. One's own can, so there the same is an error. Rewards of one's own
        judge as they like, so that nothing is left out for them.
        """
        parts = [train, heldout if isinstance(heldout, Sequence) else ()]
        if rewards is None:
            examples = [example for part in parts for example in part]
            golds = [example.columns[ANSWER] for example in examples]
            bad = {id(examples[n]) for n in find_bad_golds(golds)}
            for n, part in enumerate(parts):
                parts[n] = [example for example in part if id(example) not in bad]
                if faulty := [example for example in part if id(example) in bad]:
                    label = "examples whose gold answer math-verify cannot judge, left out"
                    left_out += ((f"{label} ({faulty[0].source} the first)", len(faulty)),)
        return Task.from_examples(
            self.name,
            parts[0],
            heldout=parts[1] if isinstance(heldout, Sequence) else heldout,
            rewards=[judge] if rewards is None else rewards,
            left_out=left_out,
            protocol=self.protocol,
            **fields,
        )


def text_of(row: Row, name: str) -> str:
    """Returns a column's text, a whole number as its digits.

    Raises:
      ValueError: the column is missing, empty, or holds something else.
    """
    text = value(row, name)
    if isinstance(text, int) and not isinstance(text, bool):
        return str(text)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{row.source}: column {name!r} is {text!r:.60}; give a text.")
    return text


def fill(template: str, question: str) -> str:
    """Puts a question into a prompt's template.

    Raises:
      ValueError: the template has no place for it.
    """
    if "{question}" not in template:
        raise ValueError(f"prompt {template!r} has no {{question}} in it.")
    return template.replace("{question}", question)


def math_example(row: Row, question: str, answer: str, prompt: str, /, **columns: Any) -> Example:
    """Makes an example of a question with its gold answer and further columns."""
    filled = to_prompt(fill(prompt, question), "prompt", row.source)
    return Example(filled, {ANSWER: answer, **columns}, row.source)


def solved_example(
    problem: Problem, prompt: str = "{question}", /, source: str = "", **columns: Any
) -> Example:
    """Makes an example of a worked problem, with further columns."""
    question = fill(prompt, problem.question)
    worked = {ANSWER: final_answer(problem), SOLUTION: problem.answer}
    return Example(question, {**worked, **columns}, source or problem.source)


def one_of(name: str, choice: str, choices: Sequence[str]) -> None:
    """Raises a ValueError if an option is none of its choices."""
    if choice not in choices:
        raise ValueError(f"{name} is {choice!r}; choose one of {list(choices)}.")
