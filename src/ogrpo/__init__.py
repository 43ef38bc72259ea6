"""Off-policy GRPO in JAX. A public name is loaded when it is first used, and nothing before.

>>> from ogrpo import ALGORITHMS, TokenBatch, sequence_mean

The algebra needs JAX and NumPy; what trains (`Trainer`, `Task`, ...) needs `ogrpo[train]`. A worker
that samples or prepares data imports `ogrpo.data`, `ogrpo.rewards` and `ogrpo.rollout`, which
load no JAX, be it installed or not.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ogrpo.config.rollout import Rollout as Rollout
    from ogrpo.config.schedule import Reuse as Reuse
    from ogrpo.config.schedule import Schedule as Schedule
    from ogrpo.config.train import Certification as Certification
    from ogrpo.config.train import Checkpointing as Checkpointing
    from ogrpo.config.train import Data as Data
    from ogrpo.config.train import Evaluation as Evaluation
    from ogrpo.config.train import Judging as Judging
    from ogrpo.config.train import Model as Model
    from ogrpo.config.train import Replay as Replay
    from ogrpo.config.train import TrainConfig as TrainConfig
    from ogrpo.config.train import WarmStart as WarmStart
    from ogrpo.config.update import Kernels as Kernels
    from ogrpo.config.update import Knobs as Knobs
    from ogrpo.config.update import Lora as Lora
    from ogrpo.config.update import Mesh as Mesh
    from ogrpo.config.update import Optimizer as Optimizer
    from ogrpo.config.update import Override as Override
    from ogrpo.config.update import Processes as Processes
    from ogrpo.config.update import Region as Region
    from ogrpo.core import (
        advantages,
        aggregate,
        algorithms,
        bounds,
        certificates,
        corrections,
        diagnostics,
        divergences,
        estimators,
        gates,
        objectives,
        ratios,
        surrogates,
        traces,
        trust_region,
        weights,
    )
    from ogrpo.core.aggregate import (
        Total,
        fixed_length_mean,
        group_mean,
        mean,
        sequence_mean,
        sequence_sum_mean,
        token_mean,
    )
    from ogrpo.core.algorithms import ADVANTAGES, ALGORITHMS, REDUCTIONS, Algorithm, with_parts
    from ogrpo.core.objectives import OBJECTIVES, TokenBatch, token_loss
    from ogrpo.core.ratios import mean_log_ratio
    from ogrpo.core.surrogates import clipped_surrogate
    from ogrpo.rewards.reward import Reward as Reward
    from ogrpo.run.api import Trainer as Trainer
    from ogrpo.run.api import TrainResult as TrainResult
    from ogrpo.tasks import Task as Task

__all__ = [  # noqa: RUF022 - in groups
    # Methods: whole algorithms by name, and what one is made of.
    "ALGORITHMS",
    "Algorithm",
    "algorithms",
    "with_parts",
    "OBJECTIVES",
    "objectives",
    "TokenBatch",
    "token_loss",
    "ADVANTAGES",
    "REDUCTIONS",
    # Blocks: functions of token tensors that a loss is composed of.
    "advantages",
    "aggregate",
    "clipped_surrogate",
    "corrections",
    "divergences",
    "fixed_length_mean",
    "gates",
    "group_mean",
    "mean",
    "mean_log_ratio",
    "ratios",
    "sequence_mean",
    "sequence_sum_mean",
    "surrogates",
    "token_mean",
    "Total",
    "traces",
    "trust_region",
    "weights",
    # Theory: what a loss does, exactly, with bounds and certificates.
    "bounds",
    "certificates",
    "diagnostics",
    "estimators",
]

_ALGEBRA = {
    "aggregate": (
        *("Total", "fixed_length_mean", "group_mean", "mean"),
        *("sequence_mean", "sequence_sum_mean", "token_mean"),
    ),
    "algorithms": ("ADVANTAGES", "ALGORITHMS", "REDUCTIONS", "Algorithm", "with_parts"),
    "objectives": ("OBJECTIVES", "TokenBatch", "token_loss"),
    "ratios": ("mean_log_ratio",),
    "surrogates": ("clipped_surrogate",),
}
"""Modules of `ogrpo.core`, and the names of theirs that this package offers; a public name that is
not here is a module of `ogrpo.core` itself."""

_TRAINING = {
    name: f"ogrpo.{module}"
    for module, names in {
        "config.rollout": ("Rollout",),
        "config.schedule": ("Reuse", "Schedule"),
        "config.train": (
            *("Certification", "Checkpointing", "Data", "Evaluation", "Judging", "Model", "Replay"),
            *("TrainConfig", "WarmStart"),
        ),
        "config.update": (
            *("Kernels", "Knobs", "Lora", "Mesh", "Optimizer", "Override", "Processes", "Region"),
        ),
        "rewards.reward": ("Reward",),
        "run.api": ("TrainResult", "Trainer"),
        "tasks": ("Task",),
    }.items()
    for name in names
}
"""Names and their modules, which need `ogrpo[train]`. They stay out of `__all__`, so that
`from ogrpo import *` loads no trainer."""


# PEP 562, as scientific-python's `lazy_loader` does it, which would be a third dependency of the
# algebra. Out of a type checker's sight: with it there, any misspelt name would have a type.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _TRAINING and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ogrpo.system.extras import needs

        needs(f"ogrpo.{name}", "train" if name in _TRAINING else "")
        if name in _TRAINING:
            value = getattr(importlib.import_module(_TRAINING[name]), name)
        else:
            module = next((module for module, names in _ALGEBRA.items() if name in names), name)
            value = importlib.import_module(f"ogrpo.core.{module}")
            value = value if module == name else getattr(value, name)
        globals()[name] = value  # found there the next time
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_TRAINING})
