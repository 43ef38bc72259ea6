"""The schemes of `boundary`, and the signals that may warn."""

from collections.abc import Mapping
from typing import Any

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
