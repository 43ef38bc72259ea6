"""Whole runs of four steps, seconds long, whose parts may be made to fail."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

from rich.console import Console

from experiments.grid.train import program_of, sharing
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Checkpointing, Data, Evaluation, Judging, Model, Rollout, TrainConfig
from ogrpo.config.update import Optimizer
from ogrpo.loop import Parts
from ogrpo.policy import DecoderConfig
from ogrpo.report.run_dir import RunDir
from ogrpo.rewards.reward import COUNTS
from ogrpo.run import main
from ogrpo.run.session import Invocation
from ogrpo.setup.build import make_parts
from ogrpo.setup.prepare import Prepared
from ogrpo.setup.presets import main_study
from ogrpo.tasks import arithmetic
from tests.run.rewards import VARIED

CONFIG = main_study(
    rewards=(VARIED,),
    data=Data(train=16),
    model=Model(random="tiny"),
    rollout=Rollout(group_size=2, max_tokens=4),
    schedule=Schedule(steps=4, prompts=2, evaluate_every=2),
    optimizer=Optimizer(learning_rate=0.05, warmup=0),
    evaluation=Evaluation(prompts=2, gradient_variance=False, token_samples=0),
    checkpoint=Checkpointing(every=1, keep=3),
)
TYPED = Invocation("ogrpo train --run-dir here", "ogrpo train")
COSTS = ("seconds", "tokens/s", "collect/", "replay/unack", "replay/dropped")
"""What is measured, or counted since a process began, wrote a segment or set one aside."""
MADE_ONCE = patch.object(arithmetic, "split", cache(arithmetic.split))
"""The problems of these runs are the same: most of what preparing one of them takes."""
PROGRAMS: dict[str, Parts] = {}


def make_parts_again(
    config: TrainConfig, prepared: Prepared, decoder: DecoderConfig, *engine: Any, **more: Any
) -> Parts:
    """A run's parts with the programs of this process's earlier run that had the same ones."""
    parts = make_parts(config, prepared, decoder, *engine, **more)
    anew = {"run_dir": None, "resume": False, "resume_from": None, "resume_anyway": False}
    judged = {"rewards": (), "reward": Judging(), "track": ()}  # outside of all programs
    name = program_of(replace(config, **anew, **judged))
    return sharing(parts, PROGRAMS.setdefault(name, parts), embedded=not any(engine))


def go(folder: Path, config: TrainConfig = CONFIG, **changes: Any) -> str:
    """A whole run; returns what it said."""
    return go_with(folder, {}, config, **changes)


def go_with(folder: Path, faults: Mapping[str, Any], config=CONFIG, **changes: Any) -> str:
    """The same, with some of its parts replaced: `group.name` -> what makes it of the real one."""
    console = Console(file=StringIO(), width=200)

    def make(*arguments: Any, **more: Any) -> Parts:
        parts = make_parts_again(*arguments, **more)
        for place, made_of in faults.items():
            group, name = place.split(".")
            old = getattr(parts, group)
            parts = replace(parts, **{group: replace(old, **{name: made_of(getattr(old, name))})})
        return parts

    with patch.object(main, "make_parts", make), MADE_ONCE:
        main.run(replace(config, run_dir=folder, **changes), console, TYPED)
    return screen(console)


def looking(look: Callable[..., Any]):
    """Makes a function whose arguments `look` sees before each call."""

    def of(function):
        def seen(*arguments, **options):
            look(*arguments)
            return function(*arguments, **options)

        return seen

    return of


def failing(error: BaseException, at: int):
    """Makes functions that raise from their `at`-th call on, counted over all of them."""
    calls = itertools.count(1)

    def fail(*_):
        if next(calls) >= at:
            raise error

    return looking(fail)


def screen(console: Console) -> str:
    """Returns the text on the console."""
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def untimed(record: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """Returns a record without its costs, and without what has one of `more` in its name.

    Of the rewards their means stay, and how many completions each could not judge, and why.
    """
    costs = (*COSTS, *more)
    names = (name for name in record if not any(cost in name for cost in costs))
    return {name: record[name] for name in names if not is_count(name)}


def is_count(name: str) -> bool:
    """Whether a figure is one of what the processes of the rewards did."""
    return name.startswith("reward/") and name.rpartition("/")[2] in COUNTS


def left(folder: Path) -> tuple[list[dict[str, Any]], bytes]:
    """Returns a run's records, without what depends on time, and its last weights."""
    weights = next((folder / "model").glob("*.safetensors")).read_bytes()
    return [untimed(record) for record in RunDir(folder).read_metrics()], weights
