"""The updates that `memory_presets` compiles; imported once the platform is set."""

from typing import NamedTuple

import numpy as np

from benchmarks.memory_cut_update import analyse_run
from ogrpo.batch import Batch, tokens_only
from ogrpo.planning.memory import train_budget
from ogrpo.planning.presets import DEVICES, plan_of
from ogrpo.trainer.config import TrainConfig
from ogrpo.trainer.presets import PRESETS

__all__ = ["DEVICES", "measure"]
BETWEEN = ("gradients", "computing copy and its gradient", "activations", "working")
"""Rows of the plan that live while an update runs."""


class Planned(NamedTuple):
    """Bytes on the preset's one training device."""

    capacity: int
    total: int
    """Of XLA's plan, and the state beside it."""
    temporary: int
    planned: int
    """By `ogrpo plan`."""

    @property
    def fits(self) -> bool:
        return self.total <= self.capacity


def full_batch(config: TrainConfig) -> Batch[np.ndarray]:
    """Every prompt and completion as long as it may be."""
    prompts, group = config.schedule.prompts, config.rollout.group_size
    prompt, length = config.data.prompt_length, config.rollout.max_tokens
    assert prompt is not None  # presets of real models settle both
    assert length is not None
    batch = tokens_only(
        prompt_ids=np.zeros((prompts, prompt), np.int32),
        prompt_mask=np.ones((prompts, prompt), bool),
        completion_ids=np.zeros((prompts, group, length), np.int32),
        completion_mask=np.ones((prompts, group, length), bool),
    )
    rewards = np.arange(prompts * group, dtype=np.float32).reshape(prompts, group) % 2
    scored = np.zeros((prompts, group, length), np.float32)
    return batch._replace(
        rewards=rewards,
        behavior_log_probs=scored,
        ref_log_probs=scored if config.knobs.beta else None,
        policy_versions=np.zeros((prompts, group), np.int32),
    )


def measure(name: str) -> Planned:
    """Compiles a preset's update."""
    config, plan = PRESETS[name](), plan_of(name)
    temporary = analyse_run(config, plan.model.decoder(), full_batch(config)).temporary
    budget = train_budget(plan)
    beside = sum(size for row, size in budget.rows.items() if row not in BETWEEN)
    return Planned(budget.capacity, beside + temporary, temporary, budget.total)
