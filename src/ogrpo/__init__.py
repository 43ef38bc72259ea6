"""Off-policy GRPO in JAX. This package re-exports the core; the rest is imported where it is used.

>>> from ogrpo import ALGORITHMS, TokenBatch, sequence_mean

Names are loaded at first use, so that rollouts, rewards and data need no JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ogrpo.core import (
        advantages,
        aggregate,
        algorithms,
        bounds,
        certificates,
        clipping,
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
    from ogrpo.core.algorithms import ALGORITHMS, Algorithm, with_parts
    from ogrpo.core.objectives import OBJECTIVES, TokenBatch, token_loss

__all__ = [
    "ALGORITHMS",
    "OBJECTIVES",
    "Algorithm",
    "TokenBatch",
    "Total",
    "advantages",
    "aggregate",
    "algorithms",
    "bounds",
    "certificates",
    "clipping",
    "corrections",
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
    "with_parts",
]

_HOMES = {
    **dict.fromkeys(("ALGORITHMS", "Algorithm", "with_parts"), "algorithms"),
    **dict.fromkeys(("OBJECTIVES", "TokenBatch", "token_loss"), "objectives"),
    **dict.fromkeys(("Total", "mean", "fixed_length_mean", "group_mean"), "aggregate"),
    **dict.fromkeys(("sequence_mean", "sequence_sum_mean", "token_mean"), "aggregate"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return importlib.import_module(f"ogrpo.core.{name}")
    return getattr(importlib.import_module(f"ogrpo.core.{_HOMES[name]}"), name)
