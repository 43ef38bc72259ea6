"""The task that a config names: generated problems, a real task's files, or a file of one's own."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ogrpo.config.train import TrainConfig
from ogrpo.config.values import INERT, check_conditions
from ogrpo.loop.parts import stream_seed
from ogrpo.rewards.extract import EXTRACTORS, Extractor
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.reward import Reward, as_rewards, load_reward
from ogrpo.setup.lessons import Lessons, careless_teacher
from ogrpo.tasks import Example, Task, arithmetic
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.example import SOLUTION_COLUMN
from ogrpo.tasks.official import fill
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.problems import Split as Parted
from ogrpo.tasks.registry import TASKS, read_task
from ogrpo.tasks.rows import FILES, is_rows

GENERATED = "arithmetic"
"""The problems that are made here, without files."""
MOST_HELDOUT = 2048
"""Problems that are made for each held-out split; an evaluation takes the first so many."""


class TaskLengths(NamedTuple):
    """Tokens of the longest prompt and completion."""

    prompt: int
    completion: int


GENERATED_LENGTHS = TaskLengths(prompt=32, completion=14)


@dataclass(frozen=True)
class Found:
    """A task with what its reader knows beside it."""

    task: Task
    lessons: Lessons | None = None
    lengths: TaskLengths | None = None


def find_task(config: TrainConfig, given: Task | None = None) -> Found:
    """Reads the task that is trained on, and the one that is evaluated on where that is another.

    Args:
      config: names the tasks.
      given: in place of the one that `config.task` names.

    Raises:
      ValueError: there is no such task or file, a line of it is wrong, or an option about rewards
        has none to act on.
    """
    found = _find(config) if given is None else Found(asked(config, given))
    if config.evaluation.task is not None:
        other = found.task.evaluated_on(evaluation_task(config, config.evaluation.task))
        found = replace(found, task=other)
    check_judging(config, found.task, given is not None)
    return replace(found, task=replace(found.task, success=config.by or found.task.success))


def is_generated(config: TrainConfig) -> bool:
    """Whether the problems that are trained on are made here."""
    return config.task == GENERATED or (config.task == "gsm8k" and config.data.path is None)


def _find(config: TrainConfig) -> Found:
    data, elsewhere = config.data, config.evaluation.task is not None
    if is_rows(config.task):
        part = 0 if elsewhere else _heldout(data.heldout)
        return Found(own_task(config, config.task, heldout=part, limit=data.limit))
    if is_generated(config):
        return generated(config)
    split = None if elsewhere else config.evaluation.split
    part = 0 if elsewhere else _heldout(data.heldout)
    options = {"limit": data.limit, "split": split, "heldout": part}
    options |= {"train": data.train, "seed": data.seed}  # of those that are made here
    return Found(real_task(config, config.task, data.path, options))


def evaluation_task(config: TrainConfig, name: str) -> Task:
    """Another task to evaluate on: of a file all lines, of an official one what it holds out."""
    if not is_rows(name):
        split = {"split": config.evaluation.split}
        return real_task(config, name, config.evaluation.path, split)
    whole = own_task(config, name, heldout=0, limit=None)
    return replace(whole, train=(), heldout=whole.train)


def own_task(
    config: TrainConfig, path: str, *, heldout: str | float | int | None, limit: int | None
) -> Task:
    """A file of one's own: its answers are judged by math-verify unless rewards are given."""
    task = Task.from_file(
        path,
        rewards=rewards_of(config),
        prompt=config.data.prompt_column,
        solution=config.data.solution_column,
        heldout=heldout,
        limit=limit,
    )
    return asked(config, task)


def _heldout(value: str | None) -> str | float | int | None:
    if value is None or is_rows(value):
        return value
    try:
        return float(value) if "." in value else int(value)
    except ValueError as error:
        raise ValueError(
            f"data.heldout is {value!r}: give a file ({', '.join(FILES)}), a share such as 0.1, or"
            " a number of prompts"
        ) from error


def rewards_of(config: TrainConfig) -> tuple[Reward, ...]:
    """The rewards that the config names; by default its answers are compared by math-verify."""
    if not config.rewards:
        return (math_reward(config, EXTRACTORS["marker"]),)
    return as_rewards([load_reward(name) for name in config.rewards], config.reward.weights or None)


def math_reward(config: TrainConfig, extract: Extractor) -> Reward:
    """The comparison of answers, which `extract` finds unless the config says where they stand."""
    wanted = config.reward
    chosen = extract if wanted.extraction is None else EXTRACTORS[wanted.extraction]
    return Reward("math", MathReward(chosen, seconds=wanted.seconds, processes=wanted.processes))


def check_judging(config: TrainConfig, task: Task, given: bool) -> None:
    """Refuses options about rewards that none of the task's rewards reads."""
    rewards = [*task.rewards, *(task.evaluation_rewards or ())]
    compared = any(isinstance(reward.function, MathReward) for reward in rewards)
    own = given or bool(config.rewards)
    killable = not all(reward.bounded for reward in rewards)
    table = (
        (
            "reward.extraction reward.seconds",
            lambda _: compared and not own,
            "no answers are compared by the trainer's math-verify",
        ),
        (
            "reward.call-seconds reward.memory-gib",
            lambda _: killable,
            "the rewards bound their own time and memory",
        ),
    )
    check_conditions(config, table, clause=INERT)


def asked(config: TrainConfig, task: Task) -> Task:
    """The task with its prompts put as `data.prompt` says.

    Raises:
      ValueError: the prompts are messages, or the template has no place for them.
    """
    template = config.data.prompt
    if template is None:
        return task
    if task.is_chat:
        raise ValueError(
            f"data.prompt is {template!r}, which puts prompts of text, and those of {task.name!r}"
            " are messages: leave it out, or give --data.system"
        )
    parts = ([_put(template, example) for example in part] for part in (task.train, task.heldout))
    train, heldout = parts
    return replace(task, train=train, heldout=heldout)


def _put(template: str, example: Example) -> Example:
    return replace(example, prompt=fill(template, str(example.prompt)))


def real_task(config: TrainConfig, name: str, path: str | None, options: Mapping[str, Any]) -> Task:
    """A task of the literature, from its official files.

    Args:
      config: brings the prompt and the rewards.
      name: of the task.
      path: where its files are.
      options: those of the readers, which take some of them; None is not given.
    """
    if name not in TASKS:
        read_task(name)  # says which there are
    own = rewards_of(config) if config.rewards else None
    wanted = {"prompt": config.data.prompt, "rewards": own, **options}
    known = inspect.signature(TASKS[name].read).parameters
    taken = {key: value for key, value in wanted.items() if key in known and value is not None}
    task = read_task(name, path, **taken)
    return task if config.rewards else _judged_as_asked(config, task)


def _judged_as_asked(config: TrainConfig, task: Task) -> Task:
    rewards = tuple(
        math_reward(config, reward.function.extract)
        if isinstance(reward.function, MathReward)
        else reward
        for reward in task.rewards
    )
    return replace(task, rewards=rewards, evaluation_rewards=None)


def generated(config: TrainConfig) -> Found:
    """The main study's problems, and the teacher whose answers to others a decoder imitates.

    They depend on `data.seed` only, so that runs are judged on the same problems.
    """
    warm, first = config.warm_start.problems, config.data.train
    made = arithmetic.split(first + warm, MOST_HELDOUT, seed=config.data.seed)
    heldout = made.heldout if config.evaluation.split == "validation" else _test(config, made)
    train = made.train[:first][: config.data.limit]
    task = Task(
        name=GENERATED,
        train=_examples(train),
        heldout=_examples(heldout),
        rewards=rewards_of(config),
    )
    lessons = careless_teacher(config, made.train[first:])
    return Found(asked(config, task), lessons, GENERATED_LENGTHS)


def _examples(problems: Sequence[Problem]) -> list[Example]:
    return [
        Example(p.question, {"answer": final_answer(p), SOLUTION_COLUMN: p.answer}, p.source)
        for p in problems
    ]


def _test(config: TrainConfig, others: Parted[WordProblem]) -> list[WordProblem]:
    # A stream of its own: were it a later part of the others', then with less training data it
    # would begin where settings were chosen with more.
    taken = {problem.question for part in others for problem in part}
    seed = stream_seed(config.data.seed, "test", 0)
    return arithmetic.generate(MOST_HELDOUT, seed, apart_from=taken)
