"""What `offline` compares: methods that train on completions drawn once, and two kinds of runs."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.verdicts import claim
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


CLAIMS = (
    *(
        claim(
            f"15 batches: {name} gains on fresh samples of the same number",
            *(name, "above", FRESH, {"batches": 15}),
        )
        for name in ("RAFT", "GRPO", "REC-OneSide-NoIS", "RED-Weight")
    ),
    *(
        claim(
            f"60 batches: {name} does as well as as many updates on fresh samples",
            *(name, "not below", FRESH, {"batches": 60}),
        )
        for name in ("RAFT", "GRPO", "REC-OneSide-NoIS", "REINFORCE")
    ),
    *(
        claim(
            f"{name}: four times as many samples of the initial policy gain",
            *(name, "above", name, {"batches": 60}, {"batches": 15}),
        )
        for name in ("RAFT", "GRPO", "REC-OneSide-NoIS", "RED-Weight")
    ),
)
"""Fixed samples against fresh ones, as many completions and as many updates."""
