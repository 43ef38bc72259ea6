"""`ogrpo eval`: how often a model is right on a task's held-out problems.

ogrpo eval --model.path DIR --task math-500 --data.path DIR --samples 16 --output answers.jsonl
ogrpo eval --task math-500 --data.path DIR --rescore answers.jsonl
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import tyro
from rich.console import Console

from ogrpo.cli.config_file import HELP, as_file, read_file, split, with_values
from ogrpo.cli.evaluate import EvalOptions, check_files, collect_answers, tell, tell_rescored
from ogrpo.config.rollout import Servers, check_servers
from ogrpo.config.train import Data, Evaluation, Judging, Model, Rollout, TrainConfig
from ogrpo.config.values import INERT, check, check_conditions
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.evaluation.evaluate import sample_and_judge
from ogrpo.evaluation.metrics import answer_readers
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.protocol import Engine, IntArray, Sampling
from ogrpo.report.run_dir import RunDir
from ogrpo.serving.bridge import embedded_engine
from ogrpo.setup.cache import keep_compiled_programs
from ogrpo.setup.find_task import TaskLengths, find_task
from ogrpo.setup.model import DTYPES, with_folder
from ogrpo.setup.prepare import chat_variables, make_pool, make_tokenizer
from ogrpo.setup.servers import connect
from ogrpo.setup.settle import with_numbers
from ogrpo.tasks import Example, Task
from ogrpo.tasks.encode import encode_example

PROGRAM = "ogrpo eval"
Encode = Callable[[Example], IntArray]


@dataclass(frozen=True)
class EvalConfig(EvalOptions):
    """What is evaluated, on what, by whom."""

    task: str = "gsm8k"
    """The name of a task (docs/tasks.md), or a file of your own, whose held-out part is taken."""
    rewards: tuple[str, ...] = ()
    """Functions that judge answers, as FILE.py:NAME or MODULE:NAME; default: the task's own."""
    problems: int | None = None
    """Use only the first so many held-out problems."""
    split: Literal["validation", "test"] = "test"
    """Which held-out problems, where the task has both."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    reward: Judging = field(default_factory=Judging)
    servers: Servers = field(default_factory=Servers)

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self)
        check_servers(self.servers, "servers.")
        if self.problems is not None and self.problems < 1:
            raise ValueError(f"--problems is {self.problems}; give at least 1")
        remedy = "held-out answers are judged as they are; leave it out"
        check_conditions(self, (("reward.flip", lambda _: False, remedy),), clause=INERT)
        if self.model.path is None and self.rescore is None:
            raise ValueError(
                "evaluation needs a model: give --model.path, a Hugging Face folder or a known name"
            )


def main(options: Sequence[str]) -> int:
    """Evaluates, or judges again; returns the exit code."""
    return evaluate(parse(options), Console())


def parse(options: Sequence[str]) -> EvalConfig:
    """The config that the options ask for."""
    typed = split(options)
    base = EvalConfig(model=Model(path=Path("DIR")))
    if typed.file is not None:
        base = with_values(base, read_file(typed.file), typed.file)
    config = tyro.cli(
        EvalConfig,
        prog=PROGRAM,
        args=typed.options,
        default=base,
        description=f"How often a model is right on held-out problems.\n\n{HELP}",
        config=(tyro.conf.FlagCreatePairsOff,),
    )
    if typed.prints:
        print(as_file(config), end="")
        raise SystemExit(0)
    given = config.model.path != Path("DIR")
    return config if given else replace(config, model=replace(config.model, path=None))


def evaluate(config: EvalConfig, console: Console) -> int:
    """Samples, judges and tells; with `rescore` nothing is sampled."""
    keep_compiled_programs()
    check_files(config)
    config = replace(config, model=with_folder(config.model, console))
    task = heldout_task(config)
    with closing(make_pool(as_train(config), task.rewards)) as pool:
        readers = answer_readers(task.rewards)
        config = replace(config, by=task.success)
        if config.rescore is not None:
            tell_rescored(config, pool.score, console=console, answers_of=readers)
            return 0
        sampling = config.sampling(task.protocol)
        tokenizer = make_tokenizer(as_train(config), task)
        encode = partial(
            encode_example,
            tokenizer=tokenizer,
            system=config.data.system,
            chat_variables=chat_variables(as_train(config)),
        )
        with ExitStack() as stack:
            engine = make_engine(config, task, tokenizer, encode, sampling, console, stack)
            answers = sample_and_judge(
                engine,
                task.heldout,
                encode=encode,
                decode=tokenizer.decode,
                sampling=sampling,
                score=pool.score,
                seed=config.seed,
                batch=config.batch,
                concurrent=config.concurrent,
                judges=config.judges,
            )
            total = len(task.heldout) * sampling.group_size
            found = collect_answers(answers, config, total=total, console=console)
    settings = {"task": task.name, "model": str(config.model.path), **vars(sampling)}
    title = f"{task.name}, {len(task.heldout)} problems, {config.model.path}"
    tell(found, config, title=title, settings=settings, console=console, answers_of=readers)
    return 0


def as_train(config: EvalConfig) -> TrainConfig:
    """The same wishes where a trainer reads them."""
    return TrainConfig(
        task=config.task,
        rewards=config.rewards,
        data=config.data,
        model=config.model,
        reward=config.reward,
        rollout=Rollout(**vars(config.servers)),
        evaluation=Evaluation(split=config.split),
    )


def heldout_task(config: EvalConfig) -> Task:
    """The task with what judges held-out answers, and the problems that are asked.

    Raises:
      ValueError: nothing is held out, or no reward is named `by`.
    """
    task = find_task(as_train(config)).task
    if not task.heldout:
        raise ValueError(f"task {task.name!r} has no held-out problems: give --data.heldout")
    return replace(
        task,
        heldout=task.heldout[: config.problems],
        rewards=task.heldout_rewards,
        success=config.by or task.success,
    )


def make_engine(
    config: EvalConfig,
    task: Task,
    tokenizer: TextTokenizer,
    encode: Encode,
    sampling: Sampling,
    console: Console,
    stack: ExitStack,
) -> Engine:
    """What draws the answers, with the model's weights."""
    assert config.model.path is not None
    decoder, params = load_pretrained(config.model.path, DTYPES[config.model.dtype])
    longest = max(len(encode(example)) for example in task.heldout)
    check_positions(decoder, longest, sampling.max_tokens)
    if config.servers.url:
        lengths = TaskLengths(longest, sampling.max_tokens)
        wanted = with_numbers(as_train(config), lengths, rate=1.0)
        run = RunDir(config.model.path)
        engine: Engine = stack.enter_context(
            connect(wanted, run, decoder, params, tokenizer, console)
        )
    else:
        engine = embedded(config, decoder, tokenizer.eos_id, longest, len(task.heldout))
    engine.publish(params, 0)
    return engine


def embedded(
    config: EvalConfig, decoder: DecoderConfig, eos_id: int, longest: int, problems: int
) -> Engine:
    """The sampler of this process."""
    return embedded_engine(
        decoder,
        eos_id=eos_id,
        batch_size=min(config.batch, problems),
        prompt_length=longest,
        place_fn=jnp.asarray,
    )


def check_positions(decoder: DecoderConfig, longest: int, max_tokens: int) -> None:
    """Refuses answers that the model has no positions for."""
    if longest + max_tokens > decoder.max_positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens and answers up to {max_tokens}, but the model"
            f" has {decoder.max_positions} positions: give a smaller --max-tokens"
        )


__all__ = ["EvalConfig", "Params", "evaluate", "main", "parse"]
