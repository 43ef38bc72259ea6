"""A task: prompts with columns, the rewards that judge answers, and a held-out split."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Required, TypedDict, Unpack

from ogrpo.rewards.reward import Reward, RewardFn, as_rewards
from ogrpo.tasks.example import (
    Example,
    check_columns,
    check_golds,
    find_columns,
    prompt_digest,
    prompt_texts,
    to_examples,
)
from ogrpo.tasks.rows import Row, is_rows, mapping_rows, read_jsonl, read_parquet, read_rows

Rewards = Sequence[Reward | RewardFn]
HeldOut = str | Path | Iterable[Mapping[str, Any]] | float | int | None
"""A file of its own, rows, a share of the prompts, a number of prompts, or the default share."""
TRAIN_SPLIT, OTHER_SPLITS = "train", ("validation", "test")
DEFAULT_SHARE = 0.1
"""One prompt in ten is held out where nothing else is said."""
DEFAULT_MOST = 512
"""That share holds out at most so many."""


class TaskOptions(TypedDict, total=False):
    """The keyword arguments that readers of one's own data share; `rewards` is required."""

    rewards: Required[Rewards]
    """Functions with TRL's signature, or `Reward` objects."""
    weights: Sequence[float] | None
    """One for each reward; 1 each where left out."""
    success: str | None
    """The reward that says what is right; the only one that is 0 or 1 where left out."""
    prompt: str | None
    """The prompt's column; found by its name (`PROMPT_COLUMNS`) where left out."""
    solution: str | None
    """The column of worked solutions; `solution`, if there is one, where left out."""
    heldout: HeldOut
    """What is held out: a file, rows, a share, a number of prompts, or the default share."""
    name: str | None
    """The task's name; the file's where left out."""
    limit: int | None
    """How many training examples to use, the first ones, after the held-out ones are cut off."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """Settings that held-out answers are drawn with where no others are set."""

    split: str
    """The examples that are held out, in words."""
    samples: int
    """Completions of each prompt; Pass@1 is their mean."""
    temperature: float
    """0: the most likely token, greedily."""
    max_tokens: int


@dataclass(frozen=True)
class Task:
    """Examples with the rewards that judge them; `len` counts those to train on.

    Raises:
      ValueError: text and chat prompts are mixed, an example lacks a column that a reward asks
        for, no reward is named `success`, or there is no example at all.
    """

    name: str
    train: Sequence[Example]
    heldout: Sequence[Example]
    rewards: tuple[Reward, ...]
    solutions: str | None = None
    """The column of worked solutions, which a model made here imitates first."""
    evaluation_rewards: tuple[Reward, ...] | None = None
    """What judges held-out answers; None: `rewards`."""
    success: str | None = None
    """The name of the one of these that says right (1) or wrong (0), by which Pass@k counts; None:
    the only one that is 0 or 1 (`ogrpo.evaluation.success_reward`)."""
    protocol: EvaluationProtocol | None = None
    """How the task's authors evaluate it, where they say so."""
    left_out: tuple[tuple[str, int], ...] = ()
    """Why and how many examples were left out, to be shown."""

    def __post_init__(self) -> None:
        check_columns(self.train, self.rewards)
        check_columns(self.heldout, self.heldout_rewards)
        names = [reward.name for reward in self.heldout_rewards]
        if self.success is not None and self.success not in names:
            raise ValueError(
                f"task {self.name!r}: success is {self.success!r}, and held-out answers are judged "
                f"by {names}; name one of them."
            )
        examples = [*self.train, *self.heldout]
        if not examples:
            left_out = "".join(f" {count}: {reason}." for reason, count in self.left_out)
            raise ValueError(f"task {self.name!r} has no examples.{left_out}")
        for example in examples:
            if isinstance(example.prompt, str) == self.is_chat:
                raise ValueError(
                    f"{example.source}: the prompt is {'a text' if self.is_chat else 'messages'}, "
                    f"and that of {examples[0].source} is not; the prompts of a task are all of one"
                    " kind."
                )

    def __len__(self) -> int:
        return len(self.train)

    def __bool__(self) -> bool:
        return True  # one that is only evaluated on has no training examples and is a task too

    @property
    def heldout_rewards(self) -> tuple[Reward, ...]:
        """The rewards that judge held-out answers."""
        return self.evaluation_rewards or self.rewards

    @property
    def is_chat(self) -> bool:
        """Whether prompts are messages, so that rewards are given completions as messages."""
        return not isinstance((*self.train[:1], *self.heldout[:1])[0].prompt, str)

    def texts(self) -> Iterator[str]:
        """Yields the texts of training prompts and worked solutions, for a tokenizer of them."""
        for example in self.train:
            yield from prompt_texts(example.prompt)
            if self.solutions is not None and example.columns.get(self.solutions):
                yield example.columns[self.solutions]

    def evaluated_on(self, other: "Task") -> "Task":
        """Trains on this task and holds out the other's examples, judged and drawn as there."""
        parts = apart(self.train, other.heldout)
        return replace(
            self,
            train=parts.train,
            heldout=parts.heldout,
            evaluation_rewards=other.heldout_rewards,
            success=other.success,
            protocol=other.protocol,
            left_out=(*self.left_out, *other.left_out, *_counted(parts, 0)),
        )

    @classmethod
    def from_file(cls, path: str | Path, **options: Unpack[TaskOptions]) -> "Task":
        """Reads a task from a file by its ending (`read_rows`).

        Raises:
          ValueError: the file, a line of it or an argument is wrong; the message names the file
            and the line.
        """
        return _from_rows(read_rows(path), Path(path).stem, **options)

    @classmethod
    def from_jsonl(cls, path: str | Path, **options: Unpack[TaskOptions]) -> "Task":
        """Reads a task from a file of one JSON object a line; errors as of `from_file`."""
        return _from_rows(list(read_jsonl(path)), Path(path).stem, **options)

    @classmethod
    def from_parquet(cls, path: str | Path, **options: Unpack[TaskOptions]) -> "Task":
        """Reads a task from a Parquet file; errors as of `from_file`."""
        return _from_rows(list(read_parquet(path)), Path(path).stem, **options)

    @classmethod
    def from_iterable(
        cls, rows: Iterable[Mapping[str, Any]], **options: Unpack[TaskOptions]
    ) -> "Task":
        """Makes a task of mappings; an error names the row by its number, from 1."""
        name = options.get("name") or "rows"
        return _from_rows(list(mapping_rows(rows, name)), name, **options)

    @classmethod
    def from_dataset(cls, dataset: Any, **options: Unpack[TaskOptions]) -> "Task":
        """Makes a task of a `datasets.Dataset` or `DatasetDict` (pip install 'ogrpo[hub]').

        Of a `DatasetDict` the split `train` is trained on. Held out is the split that `heldout`
        names, or the only other one of `validation` and `test`; without another, a part of `train`.

        Raises:
          ValueError: as of `from_file`; there is no split `train`, or both of the others and no
            choice.
        """
        options = {"name": "dataset", **options}
        if isinstance(dataset, Mapping):
            heldout, names = options.get("heldout"), sorted(dataset)
            if TRAIN_SPLIT not in dataset:
                raise ValueError(f"the splits are {names}; one must be named {TRAIN_SPLIT!r}.")
            others = [split for split in OTHER_SPLITS if split in dataset]
            if heldout is None and len(others) > 1:
                raise ValueError(f"the splits are {names}; say which by heldout='validation'.")
            if heldout is None and others:
                heldout = others[0]
            if isinstance(heldout, str) and heldout in dataset:
                heldout = dataset[heldout]
            elif isinstance(heldout, str) and not is_rows(heldout):
                raise ValueError(
                    f"heldout is {heldout!r}, no file of rows and none of the splits {names}."
                )
            options["heldout"] = heldout
            dataset = dataset[TRAIN_SPLIT]
        return cls.from_iterable(dataset, **options)

    @classmethod
    def from_examples(
        cls,
        name: str,
        train: Sequence[Example],
        *,
        heldout: Sequence[Example] | float | int | None,
        rewards: Rewards,
        weights: Sequence[float] | None = None,
        limit: int | None = None,
        left_out: tuple[tuple[str, int], ...] = (),
        **fields: Any,
    ) -> "Task":
        """Makes a task of examples.

        Raises:
          ValueError: `limit` is less than 1, or nothing is left to train on.
        """
        if limit is not None and limit < 1:
            raise ValueError(f"limit is {limit}; give at least 1 training example.")
        if heldout is None or isinstance(heldout, float | int):
            parts = cut(train, heldout)
        else:
            parts = apart(train, heldout)
        used = parts.train if limit is None else parts.train[:limit]
        return cls(
            name=name,
            train=used,
            heldout=parts.heldout,
            rewards=as_rewards(rewards, weights),
            left_out=(*left_out, *_counted(parts, len(parts.train) - len(used))),
            **fields,
        )


def _from_rows(
    rows: list[Row],
    default_name: str,
    *,
    rewards: Rewards,
    weights: Sequence[float] | None = None,
    success: str | None = None,
    prompt: str | None = None,
    solution: str | None = None,
    heldout: HeldOut = None,
    name: str | None = None,
    limit: int | None = None,
) -> Task:
    columns = find_columns(rows, prompt, solution)
    name = name or default_name
    if heldout is None or isinstance(heldout, float | int):
        part = heldout
    elif isinstance(heldout, str | Path):
        part = to_examples(read_rows(heldout), *columns)
    else:
        part = to_examples(list(mapping_rows(heldout, f"{name}, held out")), *columns)
    task = Task.from_examples(
        name,
        to_examples(rows, *columns),
        heldout=part,
        rewards=rewards,
        weights=weights,
        limit=limit,
        success=success,
        solutions=columns[1],
    )
    check_golds([*task.train, *task.heldout], task.rewards)
    return task


class SplitExamples(NamedTuple):
    """Examples to train on, those held out, and how many left training for repeating the latter."""

    train: list[Example]
    heldout: list[Example]
    repeats: int


def cut(examples: Sequence[Example], amount: float | int | None) -> SplitExamples:
    """Holds out the prompts with the smallest digests: a share, a number, or (None) the default.

    It needs no seed, does not depend on the order of the lines, and a line added moves few across.
    Held-out examples stand in the order of their digests, so that the first so many of them are a
    random sample. A prompt that comes again is held out once; the others of it leave training.

    Args:
      amount: a share in (0, 1), or a number of distinct prompts; None: a tenth, at most 512.

    Raises:
      ValueError: nothing would be left to train on, or `amount` is no share and no number.
    """
    digests = [prompt_digest(example.prompt) for example in examples]
    distinct = sorted(set(digests))
    if amount is None:
        number = min(max(1, round(DEFAULT_SHARE * len(distinct))), DEFAULT_MOST)
    elif isinstance(amount, float) and 0.0 < amount < 1.0:
        number = max(1, round(amount * len(distinct)))
    elif isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        number = amount
    else:
        raise ValueError(f"heldout is {amount!r}; give a share between 0 and 1, or a whole number.")
    if number >= len(distinct):
        raise ValueError(
            f"no example is left to train on: {number} of {len(distinct)} distinct prompts would "
            "be held out; add lines, or hold out fewer."
        )
    smallest = set(distinct[:number])
    train = [e for e, d in zip(examples, digests, strict=True) if d not in smallest]
    held = [(d, e) for e, d in zip(examples, digests, strict=True) if d in smallest]
    unique: dict[bytes, Example] = {}
    for digest, example in sorted(held, key=lambda pair: pair[0]):
        unique.setdefault(digest, example)
    return SplitExamples(train, list(unique.values()), len(held) - len(unique))


def apart(train: Sequence[Example], heldout: Sequence[Example]) -> SplitExamples:
    """Takes out of training what asks a held-out prompt.

    Raises:
      ValueError: nothing is left to train on.
    """
    prompts = {prompt_digest(example.prompt) for example in heldout}
    rest = [example for example in train if prompt_digest(example.prompt) not in prompts]
    if train and not rest:
        raise ValueError(
            f"no example is left to train on: all {len(train)} ask a held-out prompt "
            f"({train[0].source} the first)."
        )
    return SplitExamples(rest, list(heldout), len(train) - len(rest))


def _counted(parts: SplitExamples, beyond_limit: int) -> tuple[tuple[str, int], ...]:
    counts = (
        ("training examples that ask a held-out prompt, left out", parts.repeats),
        ("training examples beyond the limit, left out", beyond_limit),
    )
    return tuple((label, count) for label, count in counts if count)
