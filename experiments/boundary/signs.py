"""The schemes of `boundary`, and the signals that may warn."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.verdicts import claim

SCHEMES: dict[str, Mapping[str, Any]] = {
    "neither": {"algorithm": "reinforce", "override": {"reduction": "token"}},
    "clip": {"algorithm": "rec_one_side"},
    "weights": {
        "algorithm": "reinforce",
        "override": {"reduction": "token", "weight": "truncated"},
    },
    "clip and weights": {"algorithm": "rec_one_side_is"},
}
"""All with the group's mean as baseline and means over tokens."""

WARNINGS = {
    "ess": -1,
    "ess/sequence": -1,
    "kl/pi_mu": 1,
    "ratio/tail": 1,
    "chi_square": 1,
    "entropy": 1,
    "grad_norm": 1,
    "grad_norm/head": 1,
    "grad_variance": 1,
    "reward": -1,
}
"""Signals, and whether trouble shows as more (1) or less (-1) of them. The variance is measured at
evaluations alone; the training reward is of the sampler's policy and stands for what needs no
signal."""
WATCHED = (*(n for n in WARNINGS if n != "grad_variance"), "clipped", "tokens/completion")

SLOW, MIDDLE, FAST = ({"rate": rate, "sync_interval": 100} for rate in (2e-4, 6e-4, 2e-3))
CLAIMS = (
    claim("interval 100, rate 2e-4: the clip gains on neither", "clip", "above", "neither", SLOW),
    claim("interval 100, rate 6e-4: the clip gains on neither", "clip", "above", "neither", MIDDLE),
    claim("interval 100, rate 2e-3: the clip gains on neither", "clip", "above", "neither", FAST),
    claim(
        "interval 100, rate 2e-4: weights are above the clip", *("weights", "above", "clip", SLOW)
    ),
    claim(
        "interval 100, rate 6e-4: weights are below the clip", *("weights", "below", "clip", MIDDLE)
    ),
    claim(
        "interval 100, rate 2e-3: both are below the clip",
        *("clip and weights", "below", "clip", FAST),
    ),
)
"""At the longest interval."""
