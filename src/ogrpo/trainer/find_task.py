"""The task that a config names: generated problems, a real task's files, or a file of one's own."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.load import load_reward
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.reward import Reward
from ogrpo.tasks import Example, Task, arithmetic
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.problems import Split as Parted
from ogrpo.tasks.registry import TASKS, read_task
from ogrpo.trainer.config import TrainConfig
from ogrpo.trainer.lessons import Lessons, careless_teacher
from ogrpo.trainer.state import stream_seed

FILES = (".jsonl", ".json", ".parquet")
MOST_HELDOUT = 2048
"""Problems that are made for each held-out split; an evaluation takes the first so many."""


class Lengths(NamedTuple):
    """Tokens of the longest prompt and completion."""

    prompt: int
    completion: int


GENERATED_LENGTHS = Lengths(prompt=32, completion=14)


@dataclass(frozen=True)
class Found:
    """A task with what its reader knows beside it."""

    task: Task
    lessons: Lessons | None = None
    lengths: Lengths | None = None


def find_task(config: TrainConfig) -> Found:
    """Reads the task that is trained on, and the one that is evaluated on where that is another.

    Raises:
      ValueError: there is no such task or file, or a line of it is wrong.
    """
    found = _find(config, config.task, config.data.path)
    wanted = config.evaluation
    if wanted.task is not None:
        other = _find(config, wanted.task, wanted.path).task
        found = Found(found.task.evaluated_on(other), found.lessons, found.lengths)
    return found


def _find(config: TrainConfig, name: str, path: str | None) -> Found:
    if name.endswith(FILES):
        return Found(own_task(config, name))
    if name == "gsm8k" and path is None:
        return generated(config)
    return Found(real_task(config, name, path))


def own_task(config: TrainConfig, path: str) -> Task:
    """A file of one's own: its answers are judged by math-verify unless rewards are given."""
    data = config.data
    options: dict[str, Any] = {
        "prompt": data.prompt_column,
        "solution": data.solution_column,
        "heldout": _heldout(data.heldout),
        "limit": data.limit,
    }
    return Task.from_file(path, rewards=rewards_of(config), weights=_weights(config), **options)


def _heldout(value: str | None) -> str | float | int | None:
    if value is None or value.endswith(FILES):
        return value
    try:
        return float(value) if "." in value else int(value)
    except ValueError as error:
        raise ValueError(
            f"data.heldout is {value!r}: give a file ({', '.join(FILES)}), a share such as 0.1, or"
            " a number of prompts"
        ) from error


def rewards_of(config: TrainConfig) -> list[Any]:
    """The rewards that the config names; by default its answers are compared by math-verify."""
    return [load_reward(name) for name in config.rewards] or [math_reward(config)]


def math_reward(config: TrainConfig) -> Reward:
    """The comparison of answers."""
    wanted = config.reward
    judge = MathReward(
        EXTRACTORS[wanted.extraction], seconds=wanted.seconds, processes=wanted.processes
    )
    return Reward("math", judge)


def _weights(config: TrainConfig) -> tuple[float, ...] | None:
    return config.reward.weights or None


def real_task(config: TrainConfig, name: str, path: str | None) -> Task:
    """A task of the literature, from its official files."""
    if name not in TASKS:
        read_task(name)  # says which there are
    known = inspect.signature(TASKS[name].read).parameters
    wanted: dict[str, Any] = {
        "prompt": config.data.prompt,
        "limit": config.data.limit,
        "split": config.evaluation.split,
        "rewards": rewards_of(config) if config.rewards else None,
    }
    options = {key: value for key, value in wanted.items() if key in known and value is not None}
    return read_task(name, path, **options)


def generated(config: TrainConfig) -> Found:
    """The main study's problems, and the teacher whose answers to others a decoder imitates.

    They depend on `data.seed` only, so that runs are judged on the same problems.
    """
    warm, first = config.warm_start.problems, config.data.train
    made = arithmetic.split(first + warm, MOST_HELDOUT, seed=config.data.seed)
    heldout = made.heldout if config.evaluation.split == "validation" else _test(config, made)
    train = made.train[:first][: config.data.limit]
    task = Task(
        name="arithmetic",
        train=_examples(train),
        heldout=_examples(heldout),
        rewards=(math_reward(config),),
    )
    return Found(task, careless_teacher(config, made.train[first:]), GENERATED_LENGTHS)


def _examples(problems: Sequence[Problem]) -> list[Example]:
    return [Example(p.question, {"answer": final_answer(p)}, p.source) for p in problems]


def _test(config: TrainConfig, others: Parted[WordProblem]) -> list[WordProblem]:
    # A stream of its own: were it a later part of the others', then with less training data it
    # would begin where settings were chosen with more.
    taken = {problem.question for part in others for problem in part}
    seed = stream_seed(config.data.seed, "test", 0)
    return arithmetic.generate(MOST_HELDOUT, seed, apart_from=taken)
