"""`offline`: how fast and how stably does one learn from completions that were drawn once?

Command: python -m experiments.run offline
Hardware and time: two CPU cores, 176 cells of about 4 CPU-seconds and 7 programs to compile.

Open question 2 of arXiv:2505.22257. The warm-started policy draws 15 or 60 batches once; each
method then takes 60 updates on batches drawn from them at random, so that a completion is used four
times or once on average. Beside them stands REINFORCE on fresh samples, with as many completions
(15 batches, each used for one update) and with as many updates (60). Each method has its own
learning rate at each size of the set, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: the other methods of `rec` (`--methods`), more updates (`--steps`), other
sizes (`--batches`), and sets drawn by another policy than the one that is trained.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from experiments.grid.columns import (
    FELL,
    PASS_AT_1,
    POLICY,
    SPENT,
    Column,
    against,
    against_at,
    notes,
    plus_minus,
)
from experiments.grid.figures import UPDATES as AXIS
from experiments.grid.figures import curve, curves
from experiments.grid.rows import SCORE, Row, Rows, of_labels, reported, where
from experiments.grid.signals import fall, measured
from experiments.grid.study import TunedStudy
from experiments.grid.tables import Section, by_value, scores_at, summary
from experiments.grid.variants import Changes, Variant
from experiments.grid.verdicts import claim
from experiments.rec.study import METHODS as REC
from ogrpo.system.values import Count

FRESH = "fresh samples"
"""REINFORCE on policy: each batch is drawn for the one update that it is used in."""

METHODS: dict[str, Changes] = {
    **REC,
    "truncated weights": {
        "algorithm": "reinforce",
        "override": {"reduction": "token", "weight": "truncated"},
    },
    "positives": {"algorithm": "positives"},
}
"""Name -> options: those of `rec`, REINFORCE with pi_k/mu of each token truncated at 2, and
imitation of successes by their lead over the group's mean."""

SEVEN = ("REINFORCE", "truncated weights", "GRPO", "REC-OneSide-NoIS", "RED-Weight", "RAFT", "DPO")

FEW, MANY = {"batches": 15}, {"batches": 60}
NAMES = ("RAFT", "GRPO", "REC-OneSide-NoIS")
SAME, AS_WELL, MORE = (
    "15 batches: {} gains on fresh samples of the same number",
    "60 batches: {} does as well as as many updates on fresh samples",
    "{}: four times as many samples of the initial policy gain",
)
CLAIMS = (
    *(claim(SAME.format(n), n, "above", FRESH, FEW) for n in (*NAMES, "RED-Weight")),
    *(claim(AS_WELL.format(n), n, "not below", FRESH, MANY) for n in (*NAMES, "REINFORCE")),
    *(claim(MORE.format(n), n, "above", n, MANY, FEW) for n in (*NAMES, "RED-Weight")),
)
"""Fixed samples against fresh ones, as many completions and as many updates."""

BATCHES = "batches"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "ess", "grad_norm")


@dataclass(frozen=True)
class OfflineStudy(TunedStudy):
    """Methods by the number of completions that were drawn once."""

    name = "offline"
    question = "How fast and how stably does one learn from completions that were drawn once?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("REINFORCE", "RAFT"), "batches": (2,)}

    methods: tuple[str, ...] = SEVEN
    """Which to run on fixed samples, by name."""
    batches: tuple[Count, ...] = (15, 60)
    """Sizes of the fixed set: how many batches of completions the initial policy draws."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike; large ones break most methods here."""

    def places(self) -> Sequence[Variant]:
        """Returns every method on every set, and fresh samples: as many completions, updates."""
        every = self.evaluate_every(self.steps)
        places = []
        for size in dict.fromkeys(self.batches):
            drawn = {"warmup": size, "offline": True, "evaluate_every": every}
            fixed = {
                "schedule": {**drawn, "steps": size + self.steps},
                "replay": {"sampler": "uniform" if size > 1 else "fifo"},
            }
            places += [self.place(n, {BATCHES: size}, METHODS[n], fixed) for n in self.methods]
        for size in dict.fromkeys((*self.batches, self.steps)):
            fresh = {"schedule": {"steps": size, "evaluate_every": self.evaluate_every(size)}}
            places.append(self.place(FRESH, {BATCHES: size}, METHODS["REINFORCE"], fresh))
        return places

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns where each method ends, when it fell, and how far that is from fresh samples."""
        rows = [trained(row) for row in rows]
        final_rows, labels = reported(rows), (*self.methods, FRESH)
        sizes = dict.fromkeys((*self.batches, self.steps))
        yardstick = where(final_rows, label=FRESH, batches=self.steps)
        columns = (
            *(*SPENT, Column("at the start", beginning), Column("halfway", halfway), *PASS_AT_1),
            *(Column("best on the way", best), FELL, Column("at update", falls), *POLICY),
            Column("against fresh, completions", against_at(final_rows, FRESH, BATCHES)),
            Column("against fresh, updates", against(yardstick)),
        )
        heads = {size: f"{size} batches" for size in sizes}
        sections = [
            Section(
                "Where each method ends",
                "Final held-out Pass@1, sampled, on seeds and problems that nothing was chosen on:"
                f" mean and 95 % interval over seeds. Fixed samples: {self.steps} updates on so"
                " many batches of the initial policy. Fresh samples: an update on each of so many"
                " batches.",
                [scores_at(final_rows, labels, BATCHES, heads)],
            ),
            Section(
                "All of it",
                f"{notes(columns)} Beside it the updates at which it first was. The best on the way"
                " is the highest of a run's own evaluations on the problems of the report, so that"
                " it is too high. Halfway is after half of the updates. The differences are seed by"
                " seed, to REINFORCE on fresh samples.",
                [summary(rows, columns, order=by_value(BATCHES, labels))],
            ),
        ]
        for size in self.batches:
            if here := where(final_rows, batches=size):
                drawn = [*(row for row in here if row["label"] != FRESH), *yardstick]
                pictures = curves(of_labels(drawn, labels), SIGNALS, f"batches-{size}")
                text = "Seeds thin, a band of 95 %."
                sections.append(Section(f"Curves, {size} batches", text, (), pictures))
        return sections


def trained(row: Row) -> Row:
    """Returns the row from its last evaluation before an update on; those before say the same."""
    updates = row["evaluations"]["updates"]
    first = max(n for n, update in enumerate(updates) if update == updates[0])
    evaluations = {name: values[first:] for name, values in row["evaluations"].items()}
    return {**row, "evaluations": evaluations}


def beginning(trials: Rows) -> str:
    """Returns Pass@1 before the first update."""
    return plus_minus([row["evaluations"][SCORE][0] for row in trials])


def halfway(trials: Rows) -> str:
    """Returns Pass@1 after half of the updates, interpolated between evaluations."""
    halves = [(row["final"]["updates"] / 2, curve(row, AXIS, SCORE)) for row in trials]
    middle = [float(np.interp(half, *points)) for half, points in halves]
    return plus_minus(middle)


def best(trials: Rows) -> str:
    """Returns the highest Pass@1 of each run's evaluations."""
    return plus_minus([float(measured(row, SCORE).max()) for row in trials])


def falls(trials: Rows) -> str:
    """Returns the updates at whose evaluations runs were first seen to have fallen."""
    seen = sorted(update for row in trials if (update := fall(row)) is not None)
    return ", ".join(f"{update:.0f}" for update in seen) or "–"
