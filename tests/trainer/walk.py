"""Runs of two or three steps whose numbers are compared, an option at a time."""

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
from rich.console import Console

from ogrpo.trainer import Schedule, start, train
from ogrpo.trainer.build import find_devices, first_region, make_parts
from ogrpo.trainer.config import Data, Evaluation, Rollout, TrainConfig, WarmStart
from ogrpo.trainer.config_update import Optimizer
from ogrpo.trainer.method import check
from ogrpo.trainer.model import make_model
from ogrpo.trainer.prepare import prepare
from ogrpo.trainer.presets import main_study

Setting = dict[str, Any]
BASE = main_study(
    data=Data(train=64),
    warm_start=WarmStart(steps=2, batch=4, problems=16, demonstrations=1, cache=False),
    rollout=Rollout(group_size=4),
    schedule=Schedule(steps=2, prompts=4, evaluate_every=2),
    optimizer=Optimizer(learning_rate=0.05, warmup=0),
    evaluation=Evaluation(prompts=4, gradient_variance=False),
)
STALE = {"schedule.v": 10}
"""The second batch is drawn from weights that an update has left."""
KL = {**STALE, "knobs.beta": 0.5}
EXTRA = {"schedule.steps": 3, "schedule.replay": 2, "replay.groups": 8, "replay.sampler": "uniform"}
"""Two draws a step from a buffer of two batches."""
ADAPTIVE = {**EXTRA, **STALE, "reuse.adaptive": True}


def paths(part: Any, prefix: str = "") -> list[str]:
    found = []
    for field in dataclasses.fields(part):
        value, name = getattr(part, field.name), prefix + field.name
        nested = dataclasses.is_dataclass(value)
        found += paths(value, f"{name}.") if nested else [name]
    return found


def grouped(setting: Setting) -> dict[str, Any]:
    """A tree of changes, so that options that need each other arrive together."""
    tree: dict[str, Any] = {}
    for path, value in setting.items():
        *outer, name = path.split(".")
        place = tree
        for part in outer:
            place = place.setdefault(part, {})
        place[name] = value
    return tree


def with_options(config: Any, tree: dict[str, Any]) -> Any:
    parts = {
        name: with_options(getattr(config, name), value) if isinstance(value, dict) else value
        for name, value in tree.items()
    }
    return replace(config, **parts)


def right(text, finish, gold):
    """An untrained decoder never is: an answer that varies, and that some groups share."""
    return float(text.count("1") % 2)


@cache
def ended(config: TrainConfig) -> tuple[dict[str, float], tuple[np.ndarray, ...]]:
    """The figures of all records of a run, and the weights that it ends with."""
    check(config)
    prepared, problems = prepare(config)
    decoder, params = make_model(config, prepared.tokenizer, problems, Console(quiet=True))
    task = replace(prepared.task, reward=right, evaluation_reward=None)
    parts = make_parts(config, replace(prepared, task=task), decoder)
    first = replace(find_devices(config, decoder).init(params), region=first_region(config))
    figures, state = {}, start(first, parts)
    for turn in train(state, parts, config.schedule):
        state, record = turn
        figures |= {f"{record['step']} {n}": v for n, v in record.items() if counts(n, v)}
    prepared.reward.close()
    leaves = jax.tree.leaves(state.train.whole())
    return figures, tuple(np.asarray(leaf, np.float32) for leaf in leaves)


def counts(name: str, value: Any) -> bool:
    """Whether a metric says what was learned, and not what it cost or how long it took."""
    about_cost = ("seconds", "tokens", "flops", "collect", "replay/bytes", "padding", "shapes")
    return isinstance(value, float | int) and not name.startswith(about_cost)


def differ(one, other) -> bool:
    (figures, weights), (others, other_weights) = one, other
    same_shapes = [a.shape for a in weights] == [b.shape for b in other_weights]
    same = same_shapes and all(
        np.array_equal(a, b) for a, b in zip(weights, other_weights, strict=True)
    )
    return not same or figures != others


def base_of(setting: Setting) -> TrainConfig:
    return with_options(BASE, grouped(setting))
