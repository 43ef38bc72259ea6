"""`rec`: which off-policy REINFORCE learns where samples are fresh, stale, ahead and fixed?

Command: python -m experiments.run rec
Hardware and time: two CPU cores, 324 cells of about 4 CPU-seconds and 19 programs to compile.

After Figure 3 of "Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm" (arXiv:2509.24203):
its methods with the sampler renewed at every step, every 20 steps, ten batches ahead, and never,
and the baselines RLOO, RAFT, DPO and PPO beside them. Each method has its own learning rate at each
schedule, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: on fresh samples all REC methods and OPMD (Kimi, min) have REINFORCE's
gradient, or a multiple of it, and OPMD (pairwise) has RLOO's, since every ratio is 1; there they
are not run. REC-TwoSide-NoIS and REC-Ring-IS, which the authors' runs do not have, and most methods
ahead and offline: `--methods` with `--schedules` runs each method named at each schedule named.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.grid.columns import (
    FELL,
    LENGTH,
    PASS_AT_1,
    POLICY,
    UPDATES,
    Column,
    against_at,
    notes,
    score,
)
from experiments.grid.figures import Picture, small_multiples
from experiments.grid.rows import Rows, groups, reported, where, without_coordinates
from experiments.grid.study import TunedStudy
from experiments.grid.tables import Section, Table, mean_score, summary
from experiments.grid.variants import Changes, Variant, joined
from experiments.grid.verdicts import claim

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

ON_POLICY = {
    **dict.fromkeys((*CLIPS, "OPMD, Kimi", "OPMD, min"), "REINFORCE"),
    "OPMD, pairwise": "RLOO",
}
"""Methods whose gradient on fresh samples, where every ratio is 1, points where another's does."""

FRESH, STALE, AHEAD, OFFLINE = "interval 1", "interval 20", "offset 10", "offline"
FIXED_BATCHES = 12
"""Batches of the initial policy that the offline runs train on."""

SCHEDULES: dict[str, Changes] = {
    FRESH: {"schedule": {"sync_interval": 1}},
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

SIGNALS = ("pass@1/sampled", "reward", "kl/pi_mu", "entropy", "tokens/completion", "grad_norm")
REFERENCES = ("REINFORCE", "GRPO")


@dataclass(frozen=True)
class RecStudy(TunedStudy):
    """Off-policy REINFORCE and its kin by the age of their samples."""

    name = "rec"
    question = (
        "Which group-relative REINFORCE learns where samples are fresh, stale, ahead and fixed?"
    )
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS, "schedules": SCHEDULES}
    few: ClassVar = {"methods": REFERENCES, "schedules": (STALE, OFFLINE)}

    methods: tuple[str, ...] = ()
    """Which to run at every one of `schedules`, by name; default: a choice for each schedule."""
    schedules: tuple[str, ...] = tuple(SCHEDULES)
    """When samples are drawn: interval 1, interval 20, offset 10, offline."""

    def places(self) -> Sequence[Variant]:
        """Returns every method at each schedule that it is run at; all take as many updates."""
        steps = self.steps + FIXED_BATCHES
        longer = {"schedule": {"steps": steps, "evaluate_every": self.evaluate_every(steps)}}
        changes = {**SCHEDULES, OFFLINE: joined(SCHEDULES[OFFLINE], longer)}
        return [
            self.place(name, {"schedule": when}, METHODS[name], changes[when])
            for when in self.schedules
            for name in self.methods or WHERE[when]
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns where each method ends at each schedule, and its signals on the way."""
        final_rows, order = reported(rows), list(SCHEDULES)
        columns = (
            *(UPDATES, *PASS_AT_1, *POLICY, LENGTH, FELL),
            Column("against REINFORCE", against_at(final_rows, "REINFORCE", "schedule")),
        )

        def line(trials: Rows) -> tuple[int, float]:
            return order.index(trials[0]["coordinates"]["schedule"]), -mean_score(trials)

        return [
            Section(
                "Where each method ends",
                "Final held-out Pass@1, sampled, on seeds and problems that nothing was chosen on:"
                " mean and 95 % t-interval over seeds. A name in place of a number is the method"
                " that it equals there, every ratio being 1; – was not run.",
                [schedule_table(final_rows)],
            ),
            Section(
                "All of it",
                f"{notes(columns)} The last column but one is the difference, seed by seed, to"
                " REINFORCE at the same schedule.",
                [summary(rows, columns, order=line)],
            ),
            *(
                curves_of(here, when)
                for when in SCHEDULES
                if (here := where(final_rows, schedule=when))
            ),
        ]


def schedule_table(rows: Rows) -> Table:
    """Returns methods by schedules; a method that equals another on fresh samples names it."""
    trials = {(t[0]["label"], t[0]["coordinates"]["schedule"]): t for t in groups(rows).values()}
    columns = [when for when in SCHEDULES if any(when == other for _, other in trials)]

    def cell(name: str, when: str) -> str:
        if (name, when) in trials:
            return score()(trials[name, when])
        same = ON_POLICY.get(name)
        return f"as {same}" if when == FRESH and (same, when) in trials else "–"

    lines = [
        [name, *(cell(name, when) for when in columns)]
        for name in METHODS
        if any((name, when) in trials for when in columns)
    ]
    return Table("schedules", ("method", *columns), lines)


def curves_of(rows: Rows, when: str) -> Section:
    """Returns score and signals of the clips at one schedule."""
    clips = [row for row in without_coordinates(rows) if row["label"] in (*REFERENCES, *CLIPS)]
    draw = partial(small_multiples, clips, SIGNALS)
    text = "Seeds thin, a band of 95 %. Offline nothing is collected on the way."
    return Section(f"Curves, {when}", text, (), [Picture(f"{when.replace(' ', '-')}-clips", draw)])
