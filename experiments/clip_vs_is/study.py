"""`clip-vs-is`: is it the clip or the weights that keep off-policy GRPO alive?

Command: python -m experiments.run clip-vs-is
Hardware and time: two CPU cores, 264 cells of about 4 CPU-seconds and 24 programs to compile.

First a clip of pi/mu and the ratio as a weight, alone and together, on samples up to 20 steps old.
Then five ways of weighing by pi_k/mu in three trust regions and in none, with four updates on each
batch and the sampler renewed every 5 batches: there is no such grid with one update on a batch,
where the ratio pi/pi_k that the clip is of is 1. All have group-standardised advantages and means
over tokens. Each combination has its own learning rate, the best of `rates`.

Left out unless asked for: other radii than .01 nats a token (`--delta`), and the clip whose width
follows the divergence (`--regions ... adaptive-clip`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from experiments.grid.columns import FELL, PASS_AT_1, POLICY, Column, against, plus_minus, score
from experiments.grid.figures import curves
from experiments.grid.rows import SCORE, Rows, final, reported, where
from experiments.grid.signals import fallen
from experiments.grid.study import TunedStudy
from experiments.grid.tables import Section, Table, summary
from experiments.grid.variants import Changes, Variant, joined
from experiments.grid.verdicts import claim

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
"""One update on each batch, pi/mu: silence where PPO's clip binds, and the ratio as a weight."""

REUSED_UPDATES = 4
REUSED: Changes = {"schedule": {"updates_per_batch": REUSED_UPDATES, "sync_interval": 5}}
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


def options(weight: str, region: str, delta: float) -> Changes:
    """Returns the options of a weight in a region.

    A clip is of pi/pi_k, `clip` with PPO's fixed width.
    """
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

SIGNALS = ("pass@1/sampled", "kl/pi_mu", "entropy", "ess", "clipped", "grad_norm")


@dataclass(frozen=True)
class ClipVsIsStudy(TunedStudy):
    """Clips and weights, alone, together, and weights in regions."""

    name = "clip-vs-is"
    question = "Is it the clip or the weights that keep off-policy GRPO alive?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"weights": WEIGHTS, "regions": MORE_REGIONS, "alone": FOUR}
    few: ClassVar = {
        "alone": ("neither", "clip and weights"),
        "weights": ("truncated",),
        "regions": ("clip",),
    }

    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""
    weights: tuple[str, ...] = tuple(WEIGHTS)
    """Ways of weighing: plain, truncated, masked, self-normalised, Retrace."""
    regions: tuple[str, ...] = REGIONS
    """Trust regions: none, penalty, mask, clip, adaptive-clip."""
    alone: tuple[str, ...] = tuple(FOUR)
    """Which of the first four: neither, clip alone, weights alone, clip and weights."""
    delta: float = 0.01
    """Radius of penalty, mask and adaptive-clip in nats a token."""

    def places(self) -> Sequence[Variant]:
        """Returns the four on stale samples, then the grid with several updates on a batch."""
        four = [self.place(name, {}, FOUR[name], STANDARDIZED, STALE) for name in self.alone]
        steps = max(2 * self.steps // REUSED_UPDATES, 1)
        shorter = {"schedule": {"steps": steps, "evaluate_every": self.evaluate_every(steps)}}
        often = joined(STANDARDIZED, REUSED, shorter)
        grid = [
            self.place(weight, {"region": region}, options(weight, region, self.delta), often)
            for weight in self.weights
            for region in self.regions
        ]
        return [*four, *grid]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the four, then the grid: final value, speed and stability."""
        four = [row for row in rows if "region" not in row["coordinates"]]
        grid = [row for row in rows if "region" in row["coordinates"]]
        final_rows = reported(grid)
        return [
            Section(
                "Clip, weights, both, neither",
                "One update on each batch, samples up to 20 steps old. Speed is Pass@1 averaged"
                " over the run; spread is the standard deviation between seeds at the end; fell"
                " counts seeds whose Pass@1 was at some evaluation below .7 of the best before.",
                [table(four, "four")],
                curves(reported(four), SIGNALS, "four") if reported(four) else (),
            ),
            Section(
                "Weights in trust regions",
                "Four updates on each batch, samples up to 20 updates old: final Pass@1, mean and"
                " 95 % t-interval over seeds, in brackets the seeds that fell.",
                [
                    matrix(final_rows, "regions", lambda r: f"{score()(r)} ({fallen(r)})"),
                    matrix(final_rows, "speed", speed),
                ],
            ),
            Section("All combinations", "", [table(grid, "combinations")]),
        ]


def table(rows: Rows, name: str) -> Table:
    """Returns a line for each method, against no clip, no region and plain weights."""
    known = reported(rows)
    plain = where(known, label="neither") or where(known, label="plain", region="none")
    columns = (
        *(*PASS_AT_1, Column("speed", speed), Column("spread", spread), FELL, *POLICY),
        Column(f"against {plain[0]['label'] if plain else 'neither'}", against(plain)),
    )
    return summary(rows, columns, name=name)


def matrix(rows: Rows, name: str, of: Callable[[Rows], str]) -> Table:
    """Returns weights by regions."""
    regions = [region for region in MORE_REGIONS if where(rows, region=region)]
    lines = []
    for weight in WEIGHTS:
        cells = [where(rows, label=weight, region=region) for region in regions]
        if any(cells):
            lines.append([weight, *(of(trials) if trials else "–" for trials in cells)])
    return Table(name, ("weights", *regions), lines)


def speed(rows: Rows) -> str:
    """Returns the score averaged over the run's evaluations."""
    return plus_minus([float(np.mean(row["evaluations"][SCORE])) for row in rows])


def spread(rows: Rows) -> str:
    """Returns the final score's standard deviation between seeds."""
    ends = [final(row) for row in rows]
    return f"{np.std(ends, ddof=1):.3f}" if len(ends) > 1 else "–"
