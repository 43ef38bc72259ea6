"""The replay buffer that a config asks for, in the run's folder."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ogrpo.config.train import Replay, TrainConfig
from ogrpo.data.replay import (
    BufferLimits,
    Fifo,
    Layout,
    Prioritised,
    ReplayBuffer,
    Sampler,
    Stratified,
    Table,
    advantage,
    novelty,
    positives,
    recency,
    uniform,
)

EMPTY = {
    "ids": [],
    "uses": [],
    "next_id": 0,
    "cursor": 0,
    "version": 0,
    "capacity": 64,
    "counts": {},
    "segments": {},
}
"""The state of a buffer that nothing was put into: segments of a run begun before are set aside."""


def samplers(wanted: Replay) -> dict[str, Callable[[Table], Sampler]]:
    """Ways to draw groups, by name."""
    weighted = {
        "fresh": partial(recency, half_life=wanted.half_life),
        "unused": partial(novelty, exponent=1.0),
        "advantage": partial(advantage, exponent=1.0, floor=0.0),
        "positives": positives,
    }
    return {
        "fifo": Fifo,
        "uniform": partial(uniform, replace=False),
        "stratified": partial(Stratified, replace=False),
        **{
            name: partial(Prioritised, weight=weight, replace=False)
            for name, weight in weighted.items()
        },
    }


def capacity(config: TrainConfig) -> int:
    """Groups held at most: as asked, or a batch, or all that the warm-up buys."""
    return config.replay.groups or config.schedule.prompts * max(config.schedule.warmup, 1)


def make_buffer(
    config: TrainConfig, vocab_size: int, folder: Path | None, state: dict[str, Any] | None
) -> ReplayBuffer:
    """A new buffer, or the one that a checkpoint describes; without a folder, in memory alone."""
    wanted = config.replay
    layout = Layout(config.rollout.group_size, vocab_size, np.dtype(wanted.log_prob_dtype).type)
    limits = BufferLimits(
        groups=capacity(config), staleness=wanted.max_staleness, uses=wanted.max_uses
    )
    return ReplayBuffer.open(
        folder,
        layout,
        limits,
        samplers(wanted)[wanted.sampler],
        state=state or EMPTY,
        refuse_zero_variance=wanted.refuse_zero_variance,
    )
