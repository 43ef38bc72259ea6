"""Off-policy GRPO in JAX. This package re-exports the core; the rest is imported where it is used.

>>> from ogrpo import OBJECTIVES, TokenBatch, sequence_mean

Names are loaded at first use, so that rollouts, rewards and data need no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ogrpo.core import (
        advantages,
        aggregate,
        bounds,
        certificates,
        clipping,
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
    from ogrpo.core.objectives import OBJECTIVES, TokenBatch, token_loss

__all__ = [
    "OBJECTIVES",
    "TokenBatch",
    "Total",
    "advantages",
    "aggregate",
    "bounds",
    "certificates",
    "clipping",
    "diagnostics",
    "divergences",
    "estimators",
    "fixed_length_mean",
    "gates",
    "group_mean",
    "mean",
    "objectives",
    "ratios",
    "sequence_mean",
    "sequence_sum_mean",
    "surrogates",
    "token_loss",
    "token_mean",
    "traces",
    "trust_region",
    "weights",
]

_HOMES = {"OBJECTIVES": "objectives", "TokenBatch": "objectives", "token_loss": "objectives"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == name.lower() and not name.endswith(("mean", "loss")):
        return importlib.import_module(f"ogrpo.core.{name}")
    home = importlib.import_module(f"ogrpo.core.{_HOMES.get(name, 'aggregate')}")
    return getattr(home, name)
