"""The task that a config names: generated problems, a real task's files, or a file of one's own.

Its options are those of data, model, rewards and evaluation, some of which act on some tasks alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ogrpo.config.method import algorithm
from ogrpo.config.train import TrainConfig, WarmStart
from ogrpo.core.algorithms import STEPS
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.loop.parts import stream_seed
from ogrpo.policy.config import DecoderConfig, small, tiny
from ogrpo.protocol import IntArray
from ogrpo.rewards.extract import EXTRACTORS, Extractor
from ogrpo.rewards.math import MathReward
from ogrpo.rewards.reward import Reward, as_rewards, load_reward
from ogrpo.setup.imitation import Demonstrations, careless_teacher, chain_teacher
from ogrpo.system.values import INERT, Conditions, check_conditions, require
from ogrpo.tasks import Example, Task, arithmetic, chains
from ogrpo.tasks.official import fill, solved_example
from ogrpo.tasks.problems import Problem
from ogrpo.tasks.registry import TASKS, read_task
from ogrpo.tasks.rows import FILES, is_rows

GENERATED, CHAINS = "arithmetic", "chains"
"""The problems that are made here, without files."""
MOST_HELDOUT = 2048
"""Problems that are made for each held-out split; an evaluation takes the first so many."""
LOADED_RATE, MADE_RATE = 1e-6, 1e-3
"""Default learning rates of a model that is loaded, and of one that is made here."""
USUAL_LENGTH = 256
"""Tokens of a completion, where no worked solution says how long one is."""


class TaskLengths(NamedTuple):
    """Tokens of the longest prompt and completion."""

    prompt: int
    completion: int


GENERATED_LENGTHS = TaskLengths(prompt=32, completion=14)
CHAIN_LENGTHS = TaskLengths(prompt=32, completion=28)


@dataclass(frozen=True)
class LoadedTask:
    """A task with the demonstrations and lengths that its reader knows."""

    task: Task
    demos: Demonstrations | None = None
    lengths: TaskLengths | None = None
    shape_fn: Callable[[int], DecoderConfig] = tiny
    """From the size of a vocabulary to the shape of a decoder that is made here."""


def find_task(config: TrainConfig, task: Task | None = None) -> LoadedTask:
    """Reads the task that is trained on, and the one that is evaluated on where that is another.

    Args:
      task: in place of the one that `config.task` names.

    Raises:
      ValueError: there is no such task or file, a line of it is wrong, nothing is held out, or an
        option about rewards has none to act on.
    """
    data, other = config.data, config.evaluation.task
    heldout = 0 if other is not None else _parse_heldout(data.heldout)
    if task is not None:
        loaded = LoadedTask(with_prompts(config, task))
    elif is_rows(config.task):
        options = {"solution": data.solution_column, "heldout": heldout, "limit": data.limit}
        loaded = LoadedTask(file_task(config, config.task, **options))
    elif config.task == CHAINS:
        loaded = chain_task(config)
    elif is_generated(config):
        loaded = generated_task(config)
    else:
        split = None if other is not None else config.evaluation.split
        options = {"limit": data.limit, "split": split, "heldout": heldout}
        options |= {"train": data.train, "seed": data.seed}  # of those that are made here
        loaded = LoadedTask(official_task(config, config.task, data.path, **options))
    if other is not None:  # all lines of a file, or an official one's held-out part
        if is_rows(other):
            whole = file_task(config, other, heldout=0)
            elsewhere = replace(whole, train=(), heldout=whole.train)
        else:
            split = config.evaluation.split
            elsewhere = official_task(config, other, config.evaluation.path, split=split)
        loaded = replace(loaded, task=loaded.task.evaluated_on(elsewhere))
    require(
        bool(loaded.task.heldout),
        f"task {loaded.task.name!r} has no held-out problems, by which a model is judged: give some"
        " by --data.heldout (in Python heldout=...)",
    )
    _check_judging(config, loaded.task, brought=task is not None)
    return replace(loaded, task=replace(loaded.task, success=config.by or loaded.task.success))


def is_generated(config: TrainConfig) -> bool:
    """Whether the problems that are trained on are made here."""
    named = config.task in (GENERATED, CHAINS)
    return named or (config.task == "gsm8k" and config.data.path is None)


def file_task(config: TrainConfig, path: str, **options: Any) -> Task:
    """Reads a file of one's own; without rewards its answers are judged by math-verify.

    Args:
      config: names the column of prompts and the rewards.
      **options: further ones of `Task.from_file`.
    """
    prompt, rewards = config.data.prompt_column, rewards_of(config)
    task = Task.from_file(path, rewards=rewards, prompt=prompt, **options)
    return with_prompts(config, task)


def _parse_heldout(value: str | None) -> str | float | int | None:
    """Reads `data.heldout`: a file, a share or a number of prompts."""
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
    """Returns the rewards that the config names; by default math-verify's comparison."""
    if not config.rewards:
        return (math_reward(config, EXTRACTORS["marker"]),)
    return as_rewards([load_reward(name) for name in config.rewards], config.reward.weights or None)


def math_reward(config: TrainConfig, extract: Extractor) -> Reward:
    """Returns the comparison of answers; the config may say another place to extract them from."""
    judging = config.reward
    if judging.extraction is not None:
        extract = EXTRACTORS[judging.extraction]
    function = MathReward(extract, seconds=judging.seconds, processes=judging.processes)
    return Reward("math", function)


def with_prompts(config: TrainConfig, task: Task) -> Task:
    """Returns the task with its prompts put as `data.prompt` says.

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

    def filled(examples: Sequence[Example]) -> list[Example]:
        return [replace(each, prompt=fill(template, str(each.prompt))) for each in examples]

    return replace(task, train=filled(task.train), heldout=filled(task.heldout))


def official_task(config: TrainConfig, name: str, path: str | None, **options: Any) -> Task:
    """Reads a task of the literature from its official files.

    Args:
      config: brings the prompt and the rewards.
      **options: of the readers, each of which takes some of them; None is left out.
    """
    rewards = rewards_of(config) if config.rewards else None
    options = {"prompt": config.data.prompt, "rewards": rewards, **options}
    options = {key: x for key, x in options.items() if x is not None and takes(name, key)}
    task = read_task(name, path, **options)
    if config.rewards:
        return task
    judged = tuple(
        math_reward(config, reward.function.extract)
        if isinstance(reward.function, MathReward)
        else reward
        for reward in task.rewards
    )
    return replace(task, rewards=judged, evaluation_rewards=None)


def takes(task: str, option: str) -> bool:
    """Whether the official reader of a task has an option; `read_task` refuses an unknown task."""
    return task not in TASKS or option in TASKS[task].options


def generated_task(config: TrainConfig) -> LoadedTask:
    """Makes the main study's problems, and demonstrations of the teacher that a decoder imitates.

    Those of the test come of `data.seed`, so that runs are judged on the same; those of validation
    follow the first `data.train` + `warm_start.problems`, and are others where these are.
    """
    data, warm = config.data, config.warm_start.problems
    made = arithmetic.split(data.train + warm, MOST_HELDOUT, seed=data.seed)
    heldout = made.heldout
    if config.evaluation.split != "validation":
        # A stream of its own: were it a later part of the others', then with less training data it
        # would begin where settings were chosen with more.
        others = {problem.question for part in made for problem in part}
        seed = stream_seed(data.seed, "test", 0)
        heldout = arithmetic.generate(MOST_HELDOUT, seed, apart_from=others)
    train, imitated = made.train[: data.train], made.train[data.train :]
    task = Task(
        name=GENERATED,
        train=_examples(train[: data.limit]),
        heldout=_examples(heldout),
        rewards=rewards_of(config),
    )
    teacher = careless_teacher(config, imitated)
    return LoadedTask(with_prompts(config, task), teacher, GENERATED_LENGTHS)


def chain_task(config: TrainConfig) -> LoadedTask:
    """Makes chains of steps, of a kind each, and the demonstrations of their teacher.

    Validation, test, training and demonstrations come from streams of `data.seed` of their own.
    """
    data = config.data
    seeds = {name: stream_seed(data.seed, name, 0) for name in ("validation", "test", "lessons")}
    heldout = chains.generate(config.evaluation.prompts, seeds[config.evaluation.split])
    apart = {problem.question for problem in heldout}
    train = chains.generate(min(data.train, data.limit or data.train), data.seed, apart_from=apart)
    task = Task(
        name=CHAINS, train=_examples(train), heldout=_examples(heldout), rewards=rewards_of(config)
    )
    demos = chain_teacher(config, seeds["lessons"])
    return LoadedTask(with_prompts(config, task), demos, CHAIN_LENGTHS, small)


def _examples(problems: Sequence[Problem]) -> list[Example]:
    kinds = ({"kind": p.kind} if isinstance(p, chains.Chain) else {} for p in problems)
    return [solved_example(p, **kind) for p, kind in zip(problems, kinds, strict=True)]


def with_numbers(config: TrainConfig, lengths: TaskLengths, rate: float) -> TrainConfig:
    """Returns the config with these lengths and this learning rate where it has none."""
    data, rollout, optimizer = config.data, config.rollout, config.optimizer
    return replace(
        config,
        data=replace(data, prompt_length=data.prompt_length or lengths.prompt),
        rollout=replace(rollout, max_tokens=rollout.max_tokens or lengths.completion),
        optimizer=replace(optimizer, learning_rate=optimizer.learning_rate or rate),
    )


def settle(
    config: TrainConfig, loaded: LoadedTask, tokenizer: TextTokenizer, prompts: Sequence[IntArray]
) -> TrainConfig:
    """Returns the config with the lengths and the learning rate that it leaves open."""
    lengths, column = loaded.lengths, loaded.task.solutions
    if lengths is None:
        texts = [x.columns[column] for x in loaded.task.train if column and x.columns.get(column)]
        solutions = (len(tokenizer.encode(text, add_eos=True)) for text in texts)
        lengths = TaskLengths(max(map(len, prompts)), max(solutions, default=USUAL_LENGTH))
    return with_numbers(config, lengths, LOADED_RATE if config.model.path else MADE_RATE)


def _check_judging(config: TrainConfig, task: Task, *, brought: bool) -> None:
    """Refuses options about rewards that none of the task's rewards reads."""
    rewards = [*task.rewards, *(task.evaluation_rewards or ())]
    by_math = any(isinstance(reward.function, MathReward) for reward in rewards)
    compared = by_math and not brought and not config.rewards
    killable = not all(reward.bounded for reward in rewards)
    no_answers = "no answers are compared by the trainer's math-verify"
    bounded = "the rewards bound their own time and memory"
    table = (
        ("reward.extraction reward.seconds", lambda _: compared, no_answers),
        ("reward.call-seconds reward.memory-gib", lambda _: killable, bounded),
    )
    check_conditions(config, table, clause=INERT)


class Sources(NamedTuple):
    """The sources of a run, its problems and its weights, which conditions are of."""

    config: TrainConfig
    named: bool
    """Whether the config names the task; otherwise it is a `Task` of Python's."""
    file: bool
    """Whether the task is a file of rows."""
    generated: bool
    """Whether the problems are made here."""
    official: bool
    """Whether the task is one of the literature, read from its files."""
    elsewhere: str | None
    """The task that is evaluated on, where that is another."""
    has_splits: bool
    """Whether what is evaluated on has a validation and a test part."""
    pretrained: bool
    """Whether the weights are read from a folder or a file."""

    def takes(self, option: str) -> bool:
        """Whether the reader of the official task has an option."""
        return self.official and takes(self.config.task, option)


EFFECTIVE_IF: Conditions = (
    ("data.path", lambda s: s.official, "it is where a named task's files are (docs/tasks.md)"),
    (
        "data.train data.seed",
        lambda s: s.generated or s.takes("seed"),
        "the problems are not generated here",
    ),
    (
        "data.limit",
        lambda s: s.generated or s.file or s.takes("limit"),
        "the task has no training problems to choose from",
    ),
    (
        "data.prompt-column",
        lambda s: s.file or is_rows(s.elsewhere or ""),
        "give --task or --evaluation.task a file whose column it is",
    ),
    ("data.solution-column", lambda s: s.file, "give --task a file whose column it is"),
    (
        "data.heldout",
        lambda s: (s.file or s.takes("heldout")) and s.elsewhere is None,
        "the task is evaluated on prompts of its own",
    ),
    (
        "data.prompt",
        lambda s: not s.generated or s.pretrained,
        "generated problems have one prompt format",
    ),
    (
        "data.prompt",
        lambda s: not s.official or s.takes("prompt"),
        "{c.task} has prompts of its own",
    ),
    ("rewards", lambda s: s.named, "the task brings its own"),
    (
        "evaluation.path",
        lambda s: s.elsewhere is not None and not is_rows(s.elsewhere),
        "it is where the files of --evaluation.task are, a task by its name",
    ),
    ("evaluation.engine", lambda s: s.config.rollout.url, "give --rollout.url"),
    (
        "evaluation.split",
        lambda s: s.has_splits,
        "what is evaluated on has no such split; give --data.heldout or --evaluation.task",
    ),
    (
        "warm-start.solutions",
        lambda s: s.pretrained,
        "it is for given weights: one that is made here imitates anyway (--model.path)",
    ),
    (
        "warm-start.solutions",
        lambda s: not s.generated,
        "generated problems have a careless teacher and no worked solutions",
    ),
    (
        "warm-start.steps warm-start.batch warm-start.learning-rate warm-start.cache"
        " warm-start.retrain warm-start.seed",
        lambda s: s.config.imitates,
        "the model's weights are given, and --warm-start.solutions is not; what a preset has:"
        f" --warm-start.steps {WarmStart.steps} --warm-start.batch {WarmStart.batch}"
        " --warm-start.learning-rate None",
    ),
    (
        "warm-start.save-every",
        lambda s: s.config.imitates and s.pretrained,
        "given weights alone have checkpoints of their imitation (--warm-start.solutions)",
    ),
    (
        "warm-start.problems warm-start.demonstrations",
        lambda s: s.config.made_here and s.generated,
        "the task's own worked solutions are imitated",
    ),
    (
        "model.tokenizer-size",
        lambda s: not s.pretrained and not s.generated,
        "a tokenizer is trained on the task's text where no model is given, of generated problems"
        " none",
    ),
)
"""Options that act on some sources alone."""


def check_sources(config: TrainConfig, task: Task | None = None) -> None:
    """Holds options of data, model, rewards and evaluation to what they have to act on.

    Args:
      task: in place of the one that the config names.

    Raises:
      ValueError: names the option, and what it needs.
    """
    named, elsewhere = task is None, config.evaluation.task
    file, generated = named and is_rows(config.task), named and is_generated(config)
    judged = elsewhere or config.task
    sources = Sources(
        config=config,
        named=named,
        file=file,
        generated=generated,
        official=named and not file and not generated,
        elsewhere=elsewhere,
        has_splits=generated
        if elsewhere is None and (generated or not named)
        else not is_rows(judged) and takes(judged, "split"),
        pretrained=config.model.path is not None,
    )
    require(
        STEPS not in algorithm(config).reads or (sources.generated and config.task != "chains"),
        f"{algorithm(config).title({})} reads rewards of steps, which the task has none of: the"
        " lines of problems that are made here are judged (--task arithmetic)",
    )
    check_conditions(config, EFFECTIVE_IF, clause=INERT, subject=sources)
    weights, count = config.reward.weights, len(config.rewards)
    require(
        not weights or len(weights) == count,
        f"reward.weights has {len(weights)} weights for {count} rewards: give one for each of"
        " --rewards",
    )
