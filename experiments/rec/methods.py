"""What `rec` compares: each method a change of the configuration, each schedule another."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.verdicts import claim

Changes = Mapping[str, Any]

WIDE = {"eps_low": 0.6, "eps_high": 2.0}
TOKEN: Changes = {"reduction": "token"}
STANDARDIZED: Changes = {"advantage": "group_standardized"}

METHODS: dict[str, Changes] = {
    "REINFORCE": {"algorithm": "reinforce", "override": TOKEN},
    "GRPO": {"algorithm": "rec_one_side_is", "override": STANDARDIZED},
    "REC-OneSide-NoIS": {"algorithm": "rec_one_side"},
    "REC-OneSide-IS": {"algorithm": "rec_one_side_is"},
    "REC-OneSide-NoIS, wide": {"algorithm": "rec_one_side", "knobs": WIDE},
    "REC-OneSide-IS, wide": {"algorithm": "rec_one_side_is", "knobs": WIDE},
    "REC-TwoSide-NoIS": {"algorithm": "rec_two_side"},
    "REC-TwoSide-IS": {"algorithm": "rec_two_side_is"},
    "REC-Ring-NoIS": {"algorithm": "rec_ring"},
    "REC-Ring-IS": {"algorithm": "rec_ring_is"},
    "OPMD, Kimi": {"algorithm": "opmd_kimi"},
    "OPMD, min": {"algorithm": "opmd_min"},
    "OPMD, pairwise": {"algorithm": "opmd_pairwise"},
    "AsymRE": {"algorithm": "asymre"},
    "RED-Drop": {"algorithm": "red_drop"},
    "RED-Weight": {"algorithm": "red_weight"},
    "RLOO": {"algorithm": "rloo"},
    "RAFT": {"algorithm": "raft"},
    "DPO": {"algorithm": "dpo"},
    "PPO": {"algorithm": "ppo"},
}
"""Name -> options. GRPO is as arXiv:2509.24203 has it: one-side, importance weights, divided by the
standard deviation; wide is a clip from .4 to 3."""

PLAIN = "REINFORCE"
CLIPS = tuple(name for name in METHODS if name.startswith("REC-"))
SHAPED = ("OPMD, Kimi", "OPMD, min", "OPMD, pairwise", "AsymRE", "RED-Drop", "RED-Weight")
BASELINES = ("RLOO", "RAFT", "DPO", "PPO")

ON_POLICY = {
    **dict.fromkeys((*CLIPS, "OPMD, Kimi", "OPMD, min"), "REINFORCE"),
    "OPMD, pairwise": "RLOO",
}
"""Methods whose gradient on fresh samples, where every ratio is 1, points where another's does."""

FRESH, STALE, AHEAD, OFFLINE = "interval 1", "interval 20", "offset 10", "offline"
FIXED_BATCHES = 12
"""Batches of the initial policy that the offline runs train on."""

SCHEDULES: dict[str, Changes] = {
    FRESH: {},
    STALE: {"schedule": {"sync_interval": 20}},
    AHEAD: {"schedule": {"sync_offset": 10}},
    OFFLINE: {
        "schedule": {"warmup": FIXED_BATCHES, "offline": True},
        "replay": {"sampler": "uniform"},
    },
}
"""When samples are drawn: from the policy of the step, from one up to 20 steps old, ten batches
ahead, or from the initial policy alone."""

FEW = ("REINFORCE", "GRPO", "REC-OneSide-NoIS", "REC-OneSide-NoIS, wide")
WHERE: dict[str, tuple[str, ...]] = {
    FRESH: tuple(name for name in METHODS if name not in ON_POLICY),
    STALE: tuple(n for n in METHODS if n not in ("REC-TwoSide-NoIS", "REC-Ring-IS")),
    AHEAD: FEW,
    OFFLINE: (*FEW, "RED-Weight"),
}
"""Which methods are run where, unless it is said."""

CLIP = "REC-OneSide-NoIS"
AT = {when: {"schedule": when} for when in SCHEDULES}
CLAIMS = (
    claim("REINFORCE breaks on stale samples", *(PLAIN, "below", PLAIN), AT[STALE], AT[FRESH]),
    claim("REINFORCE breaks without new ones", *(PLAIN, "below", PLAIN), AT[OFFLINE], AT[FRESH]),
    claim("a clip mends it at interval 20", CLIP, "above", PLAIN, AT[STALE]),
    claim("a clip mends it ten batches ahead", CLIP, "above", PLAIN, AT[AHEAD]),
    claim("a clip mends it offline", CLIP, "above", PLAIN, AT[OFFLINE]),
    claim(
        "importance weights are not what mends it: without them no worse",
        *(CLIP, "not below", "REC-OneSide-IS", AT[STALE]),
    ),
    claim("a wider clip gains, no weights", f"{CLIP}, wide", "above", CLIP, AT[STALE]),
    claim(
        "a wider clip gains, with weights",
        *("REC-OneSide-IS, wide", "above", "REC-OneSide-IS", AT[STALE]),
    ),
    *(
        claim(f"{name} is above REINFORCE at interval 20", name, "above", PLAIN, AT[STALE])
        for name in (*SHAPED, "RAFT")
    ),
    claim("RED-Weight is above it offline", "RED-Weight", "above", PLAIN, AT[OFFLINE]),
)
"""What the rows decide of arXiv:2509.24203."""
