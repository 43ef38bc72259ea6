"""What `clip-vs-is` compares: clips and weights alone and together, then weights in regions."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.tuned import joined
from experiments.grid.verdicts import claim

Changes = Mapping[str, Any]

STANDARDIZED: Changes = {"override": {"advantage": "group_standardized"}}
BLIND: Changes = {"algorithm": "reinforce", "override": {"reduction": "token"}}
NEVER = {"eps_low": 1.0, "eps_high": 1e9}
"""A clip that keeps every ratio."""

STALE: Changes = {"schedule": {"sync_interval": 20}}
FOUR: dict[str, Changes] = {
    "neither": BLIND,
    "clip alone": {"algorithm": "rec_one_side"},
    "weights alone": {"algorithm": "rec_one_side_is", "knobs": NEVER},
    "clip and weights": {"algorithm": "rec_one_side_is"},
}
"""Of pi/mu, one update on each batch: silence where PPO's clip binds, and the ratio as a weight."""

REUSED_UPDATES, REUSED_INTERVAL = 4, 5
REUSED: Changes = {
    "schedule": {"updates_per_batch": REUSED_UPDATES, "sync_interval": REUSED_INTERVAL}
}
"""Several updates on a batch, so that a clip of pi/pi_k binds, of samples up to 20 updates old."""

WEIGHTS = {
    "plain": "plain",
    "truncated": "truncated",
    "masked": "masked",
    "self-normalised": "group_normalized",
    "Retrace": "trace",
}
"""How pi_k/mu enters, without gradient."""
REGIONS = ("none", "penalty", "mask", "clip")
MORE_REGIONS = (*REGIONS, "adaptive-clip")


def cell(weight: str, region: str, delta: float) -> dict[str, Any]:
    """The options of a weight in a region; a clip is of pi/pi_k, `clip` with PPO's fixed width."""
    weighed = {"override": {"weight": WEIGHTS[weight], "reduction": "token"}}
    kinds = {"penalty": "penalty", "mask": "mask", "adaptive-clip": "clip"}
    around = {"trust_region": {"kind": kinds[region], "delta": delta}} if region in kinds else {}
    loss = {"algorithm": "off_policy_grpo"} if region.endswith("clip") else BLIND
    return joined(loss, weighed, around)


CLAIMS = (
    claim("the clip alone gains on stale samples", "clip alone", "above", "neither"),
    claim("weights alone gain on stale samples", "weights alone", "above", "neither"),
    claim("the clip alone is above both together", "clip alone", "above", "clip and weights"),
    claim("the clip alone is above weights alone", "clip alone", "above", "weights alone"),
    *(
        claim(
            f"four updates a batch: the clip gains with {weight} weights",
            *(weight, "above", weight, {"region": "clip"}, {"region": "none"}),
        )
        for weight in WEIGHTS
    ),
    *(
        claim(f"{weight} weights do as plain ones", weight, "level", "plain", {"region": "clip"})
        for weight in WEIGHTS
        if weight != "plain"
    ),
)
"""Of the four on stale samples, and of weights in regions."""
