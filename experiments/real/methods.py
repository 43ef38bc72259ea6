"""Methods of `real`: those of docs/results.md, on SmolLM2-135M."""

from experiments.grid.variants import Changes
from experiments.grid.verdicts import claim
from experiments.rec import study as rec

INTERVAL = 20
"""Steps between two renewals of the server, where methods are compared on stale samples."""
STALE = ("REINFORCE", "GRPO", "REC-OneSide-NoIS", "RED-Weight", "RAFT")
INT8: Changes = {"rollout": {"quantize": "int8"}}
CORRECTED: Changes = {"algorithm": "grpo", **INT8}
"""pi/pi_k is clipped, and pi_k/mu is what the correction weighs by."""


def _stale(name: str) -> Changes:
    return {**rec.METHODS[name], "schedule": {"sync_interval": INTERVAL}}


METHODS: dict[str, Changes] = {
    "v1-i1": {},
    "v10-i1": {"schedule": {"sync_interval": 10}},
    "v10-i1 exact": {"schedule": {"sync_interval": 10}, "override": {"center": "exact"}},
    "v1-i4": {"schedule": {"updates_per_batch": 4}},
    "positives, replay 4": {
        "algorithm": "positives",
        "schedule": {"replay": 4},
        "replay": {"groups": 64, "sampler": "uniform", "refuse_zero_variance": True},
    },
    **{f"{name}, interval {INTERVAL}": _stale(name) for name in STALE},
    "int8": INT8,
    "int8, exact": {**INT8, "override": {"center": "exact"}},
    "int8, no weight": CORRECTED,
    "int8, truncated": {**CORRECTED, "override": {"weight": "truncated"}},
    "int8, masked": {**CORRECTED, "override": {"weight": "masked"}},
    "int8, sequence": {**CORRECTED, "override": {"weight": "sequence_truncated"}},
}
"""Name -> options."""

CLAIMS = (
    claim("v10-i1 does as well as v1-i1", "v10-i1", "not below", "v1-i1"),
    claim("the exact centre gains on stale samples", "v10-i1 exact", "above", "v10-i1"),
    claim("four updates a batch gain", "v1-i4", "above", "v1-i1"),
    claim("positives with replay gain", "positives, replay 4", "above", "v1-i1"),
    *(
        claim(
            f"interval {INTERVAL}: {name} does better than REINFORCE",
            *(f"{name}, interval {INTERVAL}", "above", f"REINFORCE, interval {INTERVAL}"),
        )
        for name in STALE[1:]
    ),
    claim("an int8 sampler costs nothing", "int8", "not below", "v1-i1"),
    *(
        claim(f"int8: {how} gains", f"int8, {how}", "above", "int8, no weight")
        for how in ("truncated", "masked", "sequence")
    ),
)
"""The confirmatory family of protocol.md, decided on greedy Pass@1."""
