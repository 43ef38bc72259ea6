"""Off-policy GRPO in JAX. The algebra's public names are here at once, as in rlax and optax.

>>> from ogrpo import ALGORITHMS, TokenBatch, sequence_mean

They need JAX and nothing else. What trains needs `ogrpo[train]`, and is loaded at first use. A
machine without JAX, which prepares data or serves with vLLM, imports `ogrpo.data`, `ogrpo.rewards`
and `ogrpo.rollout` all the same.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ogrpo.extras import needs

try:
    import jax as _jax
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
else:
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
    from ogrpo.core.algorithms import ADVANTAGES, ALGORITHMS, REDUCTIONS, Algorithm, with_parts
    from ogrpo.core.objectives import OBJECTIVES, TokenBatch, token_loss
    from ogrpo.core.ratios import mean_log_ratio
    from ogrpo.core.surrogates import clipped_surrogate

if TYPE_CHECKING:
    from ogrpo.rewards.reward import Reward as Reward
    from ogrpo.tasks import Task as Task
    from ogrpo.trainer.api import Trainer as Trainer
    from ogrpo.trainer.api import TrainResult as TrainResult
    from ogrpo.trainer.config import TrainConfig as TrainConfig

__all__ = [
    "ADVANTAGES",
    "ALGORITHMS",
    "OBJECTIVES",
    "REDUCTIONS",
    "Algorithm",
    "TokenBatch",
    "Total",
    "advantages",
    "aggregate",
    "algorithms",
    "bounds",
    "certificates",
    "clipped_surrogate",
    "clipping",
    "corrections",
    "diagnostics",
    "divergences",
    "estimators",
    "fixed_length_mean",
    "gates",
    "group_mean",
    "mean",
    "mean_log_ratio",
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

_LATER: dict[str, str] = {
    "Trainer": "ogrpo.trainer.api",
    "TrainResult": "ogrpo.trainer.api",
    "TrainConfig": "ogrpo.trainer.config",
    "Task": "ogrpo.tasks",
    "Reward": "ogrpo.rewards.reward",
}
"""Name -> its module, which needs `ogrpo[train]`.

A type checker sees such a name by `if TYPE_CHECKING: from MODULE import NAME as NAME`; it stays out
of `__all__`, so that `from ogrpo import *` loads no trainer.
"""


# Out of a type checker's sight: with it there, any misspelt name of the module would have a type.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            needs(f"ogrpo.{name}", "train")
            return getattr(importlib.import_module(_LATER[name]), name)
        if name in __all__:  # only where JAX is missing
            needs(f"ogrpo.{name}", "")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
