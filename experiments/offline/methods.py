"""What `offline` compares: methods that train on completions drawn once, and two kinds of runs."""

from collections.abc import Mapping
from typing import Any

from experiments.rec import methods as rec

FRESH = "fresh samples"
"""REINFORCE on policy: each batch is drawn for the one update that it is used in."""

METHODS: dict[str, Mapping[str, Any]] = {
    **rec.METHODS,
    "truncated weights": {
        "algorithm": "reinforce",
        "override": {"reduction": "token", "weight": "truncated"},
    },
    "positives": {"algorithm": "positives"},
}
"""Name -> options: those of `rec`, REINFORCE with pi_k/mu of each token truncated at 2, and
imitation of successes by their lead over the group's mean."""

SEVEN = (
    *("REINFORCE", "truncated weights", "GRPO", "REC-OneSide-NoIS", "RED-Weight"),
    *("RAFT", "DPO"),
)


def fixed(batches: int, updates: int, every: int) -> Mapping[str, Any]:
    """So many batches of the initial policy, then so many updates on batches drawn from them."""
    schedule = {"steps": batches + updates, "warmup": batches, "evaluate_every": every}
    return {"schedule": {**schedule, "offline": True}, "replay": {"sampler": "uniform"}}


def fresh(batches: int, every: int) -> Mapping[str, Any]:
    """So many batches, each drawn by the policy that it is an update of."""
    return {"schedule": {"steps": batches, "evaluate_every": every}}
