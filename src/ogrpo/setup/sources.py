"""Refuses options that have nothing to act on where task, data and weights come from."""

import inspect

from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig, WarmStart
from ogrpo.config.update import only_with, require
from ogrpo.core.algorithms import STEPS
from ogrpo.setup.find_task import is_generated
from ogrpo.tasks import Task
from ogrpo.tasks.registry import TASKS
from ogrpo.tasks.rows import is_rows


def check_sources(config: TrainConfig, given: Task | None = None) -> None:
    """Refuses options of data, model, rewards and evaluation that would change nothing.

    Args:
      config: what is asked for.
      given: a task in place of the one that the config names.

    Raises:
      ValueError: names the option, and what it needs.
    """
    _check_data(config, given)
    _check_rewards(config, given)
    _check_evaluation(config, given)
    _check_weights(config, given)


def _takes(task: str, option: str) -> bool:
    """Whether the official reader of a task has an option; an unknown task is told later."""
    return task not in TASKS or option in inspect.signature(TASKS[task].read).parameters


def _check_data(config: TrainConfig, given: Task | None) -> None:
    data, named = config.data, given is None
    file, generated = named and is_rows(config.task), named and is_generated(config)
    official = named and not file and not generated
    path = official or (generated and config.task == "gsm8k")
    only_with(data, "data", "path", path, "it is where a named task's files are (docs/tasks.md)")
    made = generated or (official and _takes(config.task, "seed"))
    only_with(data, "data", "train seed", made, "the problems are not generated here")
    read = named and (generated or file or _takes(config.task, "limit"))
    only_with(data, "data", "limit", read, "the task has no training problems to choose from")
    columns = file or is_rows(config.evaluation.task or "")
    remedy = "give --task a file whose columns they are"
    only_with(data, "data", "prompt_column solution_column", columns, remedy)
    elsewhere = config.evaluation.task is not None
    cut = file or (official and _takes(config.task, "heldout"))
    remedy = "the task is evaluated on prompts of its own"
    only_with(data, "data", "heldout", cut and not elsewhere, remedy)
    text = not generated or config.model.path is not None
    only_with(data, "data", "prompt", text, "generated problems have one prompt format")
    asks = not official or _takes(config.task, "prompt")
    only_with(data, "data", "prompt", asks, f"{config.task} has prompts of its own")


def _check_rewards(config: TrainConfig, given: Task | None) -> None:
    made_here = given is None and is_generated(config)
    require(
        STEPS not in algorithm(config).reads or made_here,
        f"{algorithm(config).title({})} reads rewards of steps, which the task has none of: the"
        " lines of problems that are made here are judged (--task arithmetic)",
    )
    require(
        given is None or not config.rewards,
        f"rewards is {config.rewards}, which changes nothing here: the task brings its own",
    )
    weights, count = config.reward.weights, len(config.rewards)
    require(
        not weights or len(weights) == count,
        f"reward.weights has {len(weights)} weights for {count} rewards: give one for each of"
        " --rewards",
    )


def _check_evaluation(config: TrainConfig, given: Task | None) -> None:
    wanted = config.evaluation
    named = wanted.task is not None and not is_rows(wanted.task)
    remedy = "it is where the files of --evaluation.task are, a task by its name"
    only_with(wanted, "evaluation", "path", named, remedy)
    only_with(wanted, "evaluation", "engine", bool(config.rollout.url), "give --rollout.url")
    if wanted.task is None:
        generated = given is None and is_generated(config)
        splits = generated or (given is None and _has_splits(config.task))
    else:
        splits = _has_splits(wanted.task)
    remedy = "what is evaluated on has no such split; give --data.heldout or --evaluation.task"
    only_with(wanted, "evaluation", "split", splits, remedy)


def _has_splits(task: str) -> bool:
    return not is_rows(task) and _takes(task, "split")


def _check_weights(config: TrainConfig, given: Task | None) -> None:
    generated = given is None and is_generated(config)
    made_here = config.model.path is None and config.model.random == "none"
    pretrained = config.model.path is not None
    remedy = "it is for given weights: one that is made here imitates anyway (--model.path)"
    only_with(config.warm_start, "warm-start", "solutions", pretrained, remedy)
    imitates = made_here or config.warm_start.solutions
    remedy = "the model's weights are given, and --warm-start.solutions is not"
    only_with(config.warm_start, "warm-start", "steps batch learning_rate cache", imitates, remedy)
    remedy = "given weights alone have checkpoints of their imitation (--warm-start.solutions)"
    only_with(config.warm_start, "warm-start", "save_every", imitates and pretrained, remedy)
    remedy = "the task's own worked solutions are imitated"
    taught = made_here and generated
    only_with(config.warm_start, "warm-start", "problems demonstrations", taught, remedy)
    teacher = config.warm_start.teacher
    require(
        taught or teacher == WarmStart().teacher,
        f"warm-start.teacher is {teacher}, which changes nothing here: a teacher shows generated"
        " problems alone, to a model without a path",
    )
    made = config.model.path is None and not generated
    remedy = "a tokenizer is trained on the task's text where no model is given, of generated"
    only_with(config.model, "model", "tokenizer_size", made, f"{remedy} problems none")
