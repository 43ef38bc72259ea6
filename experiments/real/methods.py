"""Methods of `real`: those of docs/results.md, for runs of minutes on SmolLM2-135M."""

from experiments.grid.variants import Changes, joined
from experiments.grid.verdicts import claim
from experiments.rec import study as rec

ON_POLICY, QUARTER = "v1-i1", "positives, a quarter drawn 4 times"
STEPS = 16
INTERVAL = STEPS // 2
"""Steps between two renewals of the sampler's weights where samples are stale."""
STALE: Changes = {"schedule": {"sync_interval": INTERVAL}}
POSITIVES: Changes = {"algorithm": "positives"}
REUSED: Changes = {
    "schedule": {"steps": STEPS // 2, "prompts": 4, "replay": 4, "draw": 4},
    "replay": {"groups": 32, "sampler": "uniform", "refuse_zero_variance": True},
}
"""A quarter of the others' completions, and as many groups in updates: 32 batches of four."""
INT8: Changes = {"rollout": {"quantize": "int8"}}
CORRECTED: Changes = {"algorithm": "grpo", **INT8}
"""pi/pi_k is clipped, and pi_k/mu is what the correction weighs by."""

METHODS: dict[str, Changes] = {
    ON_POLICY: {},
    f"GRPO, interval {INTERVAL}": STALE,
    QUARTER: joined(POSITIVES, REUSED),
    f"REINFORCE, interval {INTERVAL}": joined(rec.METHODS["REINFORCE"], STALE),
    "positives": POSITIVES,
    "int8": INT8,
    f"GRPO, interval {INTERVAL}, exact centre": joined(STALE, {"override": {"center": "exact"}}),
    f"RAFT, interval {INTERVAL}": joined(rec.METHODS["RAFT"], STALE),
    f"RED-Weight, interval {INTERVAL}": joined(rec.METHODS["RED-Weight"], STALE),
    f"REC-OneSide-NoIS, interval {INTERVAL}": joined(rec.METHODS["REC-OneSide-NoIS"], STALE),
    "v1-i4": {"schedule": {"updates_per_batch": 4}},
    "int8, exact centre": {**INT8, "override": {"center": "exact"}},
    "int8, no weight": {**CORRECTED, "override": {"weight": "unit"}},
    "int8, truncated": {**CORRECTED, "override": {"weight": "truncated"}},
    "int8, masked": {**CORRECTED, "override": {"weight": "masked"}},
    "int8, sequence": {**CORRECTED, "override": {"weight": "sequence_truncated"}},
}
"""Name -> options, in the order of protocol.md: the first two are run first."""
FIRST = (*METHODS,)[:2]
FRESH, REINFORCE = f"GRPO, interval {INTERVAL}", f"REINFORCE, interval {INTERVAL}"

CLAIMS = (
    claim("stale samples cost nothing", FRESH, "not below", ON_POLICY),
    claim("stale samples: the clip does better than REINFORCE", FRESH, "above", REINFORCE),
    claim("successes alone do better than GRPO", "positives", "above", ON_POLICY),
    claim("a quarter, drawn four times, does as well as GRPO", QUARTER, "not below", ON_POLICY),
    claim("an int8 sampler costs nothing", "int8", "not below", ON_POLICY),
    claim("the exact centre gains on stale samples", f"{FRESH}, exact centre", "above", FRESH),
    claim("four updates a batch gain", "v1-i4", "above", ON_POLICY),
    *(
        claim(f"stale samples: {name} does better than REINFORCE", method, "above", REINFORCE)
        for name in ("RAFT", "RED-Weight", "REC-OneSide-NoIS")
        for method in (f"{name}, interval {INTERVAL}",)
    ),
    *(
        claim(f"int8: {how} gains", f"int8, {how}", "above", "int8, no weight")
        for how in ("truncated", "masked", "sequence")
    ),
)
"""The confirmatory family of protocol.md, decided on greedy Pass@1."""
