"""Runs of two or three steps whose numbers are compared, an option at a time."""

import dataclasses
import math
import typing
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ogrpo.config.method import check
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Evaluation, Rollout, TrainConfig, WarmStart
from ogrpo.config.update import Optimizer
from ogrpo.loop import start, train
from ogrpo.setup.find_task import check_sources
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.run.rewards import ODD
from tests.run.small_run import make_parts_again

Setting = dict[str, Any]
BASE = main_study(
    rewards=(ODD,),
    data=Data(train=64),
    warm_start=WarmStart(steps=2, batch=4, problems=16, demonstrations=1, cache=False),
    rollout=Rollout(group_size=4),
    schedule=Schedule(steps=2, prompts=4, evaluate_every=2),
    optimizer=Optimizer(learning_rate=0.05, warmup=0),
    evaluation=Evaluation(prompts=4, gradient_variance=False, token_samples=0),
)
STALE = {"schedule.sync_interval": 10}
"""The second batch is drawn from weights that an update has left."""
FILES = Path(__file__).with_name("files")
SUMS, DIFFERENCES, CHAT = (str(FILES / f"{name}.jsonl") for name in ("sums", "differences", "chat"))
FILE = {
    "task": SUMS,
    "data.train": Data().train,
    "data.prompt_length": 96,
    "warm_start.problems": WarmStart().problems,
    "warm_start.demonstrations": WarmStart().demonstrations,
}
KL = {**STALE, "knobs.beta": 0.5}
EXTRA = {"schedule.steps": 3, "schedule.replay": 2, "replay.groups": 8, "replay.sampler": "uniform"}
"""Two draws a step from a buffer of two batches."""


def annotated(part: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the options of a config and their annotations."""
    hints = typing.get_type_hints(type(part), include_extras=True)
    for field in dataclasses.fields(part):
        if dataclasses.is_dataclass(inner := getattr(part, field.name)):
            yield from annotated(inner, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hints[field.name]


def with_options(config: Any, setting: Setting) -> Any:
    """A config with other values; those that need each other arrive together."""
    values, tables = {}, {}
    for path, value in setting.items():
        table, dot, name = path.partition(".")
        place, name = (tables.setdefault(table, {}), name) if dot else (values, table)
        place[name] = value
    parts = {name: with_options(getattr(config, name), part) for name, part in tables.items()}
    return replace(config, **values, **parts)


Stage = dict[str, float] | tuple[np.ndarray, ...]
COST = ("seconds", "tokens", "flops", "collect", "replay/bytes", "padding", "shapes", "reward/")
"""Metrics that do not say what was learned."""


def stages(config: TrainConfig) -> Iterator[Stage]:
    """Yields what tells runs apart, the cheapest first.

    That is the problems and what is imitated, the first weights, the figures of each record, and
    the last weights.
    """
    check_sources(config)
    check(config)
    with closing(prepare(config)) as prepared:
        config, prompts = prepared.config, prepared.prompts
        demos = prepared.demos.groups(prepared.tokenizer) if prepared.demos else ()
        imitated = (c.token_ids for group in demos for c in group.completions)
        yield (*map(np.asarray, (*prompts.train, *prompts.heldout, *imitated)),)
        decoder, params = make_model(prepared, Console(quiet=True))
        yield (*map(np.asarray, jax.tree.leaves(params)),)
        parts = make_parts_again(config, prepared, decoder)
        state = start(parts.learner.init(params), parts)
        for turn in train(state, parts):
            state, record = turn
            numbers = {k: x for k, x in record.items() if isinstance(x, float | int)}
            yield {k: x for k, x in numbers.items() if math.isfinite(x) and not k.startswith(COST)}
    leaves = jax.tree.leaves(state.train.whole())
    yield tuple(np.asarray(leaf, np.float32) for leaf in leaves)


@cache
def begun(config: TrainConfig) -> tuple[Stage, ...]:
    """The stages of a run that take no step."""
    with closing(stages(config)) as run:
        return tuple(islice(run, 2))


@cache
def ended(config: TrainConfig) -> tuple[Stage, ...]:
    return tuple(stages(config))


def replayed(config: TrainConfig) -> Iterator[Stage]:
    """Yields the stages of a run that others are held against: its steps where they are needed."""
    yield from begun(config)
    yield from ended(config)[2:]


def differ(one, other) -> bool:
    """Whether two tuples of arrays and plain values differ, tuples within them too."""
    if isinstance(one, tuple):
        return len(one) != len(other) or any(map(differ, one, other))
    return not np.array_equal(one, other) if isinstance(one, np.ndarray) else one != other


def base_of(setting: Setting) -> TrainConfig:
    return with_options(BASE, setting)
