"""`ablation`: what do the dials of Algorithm 1 do, one at a time?

Command: python -m experiments.run ablation
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

The figures and tables of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257) on the
default task: renewing the server every v steps, i updates on a batch, masking, swaps of the
reference, beta, and the centre of the clip. The centre is compared at i = 4: with one update on a
batch the exact one is the ratio itself, and never clips.

Left out for time: Figure 3 and Tables 2-3 have models and data that are not here
(`--base.preset r1-distill-1.5b --base.model.path DIR --base.data.path DIR`); runs are 60 steps and
not 240 (`--steps 240`), with an evaluation every quarter.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any, ClassVar

import numpy as np

from experiments.grid.cell import SIGNALS, Watch
from experiments.grid.columns import FINAL, Column, Value, against, over_run, plus_minus
from experiments.grid.figures import Picture, all_axes
from experiments.grid.rows import SCORE, Row, Rows, of_labels, reported
from experiments.grid.signals import measured
from experiments.grid.study import Crossing, TunedStudy
from experiments.grid.tables import Section, Table, in_order
from experiments.grid.verdicts import claim
from ogrpo.policy.config import SHAPES
from ogrpo.policy.flops import parameters

BYTES = 2 * parameters(SHAPES["qwen2.5-0.5b"])
"""Size of the paper's model in bfloat16."""
Statistic = Callable[[Sequence[float]], float]
PRINTED: dict[str, Statistic] = {"min": min, "max": max, "median": np.median, "mean": np.mean}


@dataclass(frozen=True)
class Dials:
    """Algorithm 1's dials, with the defaults of the paper's section 5.1."""

    v: int = 1
    i: int = 1
    beta: float = 0.1
    swaps: int = 3
    """S: the number of times that the reference is replaced, at equal distances."""
    masked: bool = False
    exact: bool = False
    """Clip around pi_k/mu, as equation 6 is written, and not around 1."""
    resets: bool = False
    """Begin each stage with a fresh optimizer."""

    def changes(self) -> Mapping[str, Any]:
        """Returns the options of the dials."""
        stages = {"stages": self.swaps + 1, "reset_optimizer": self.resets}
        return {
            "schedule": {"sync_interval": self.v, "updates_per_batch": self.i, **stages},
            "knobs": {"beta": self.beta},
            "override": {
                "mask_zero_variance": self.masked,
                "center": "exact" if self.exact else "unit",
            },
        }


METHODS: dict[str, Dials] = {
    "v1-i1": Dials(),
    "v1-i1 masked": Dials(masked=True),
    "v10-i1": Dials(v=10),
    "v1-i10": Dials(i=10, swaps=0),
    "v10-i1 masked": Dials(v=10, masked=True),
    "v10-i1 without swaps": Dials(v=10, swaps=0),
    "v10-i1 with resets": Dials(v=10, resets=True),
    "v10-i1 beta 0": Dials(v=10, beta=0.0, swaps=0),
    "v10-i1 beta .01": Dials(v=10, beta=0.01),
    "v10-i1 beta 1": Dials(v=10, beta=1.0),
    "v1-i4": Dials(i=4),
    "v1-i4 exact": Dials(i=4, exact=True),
    "v10-i4": Dials(v=10, i=4),
    "v10-i4 exact": Dials(v=10, i=4, exact=True),
    "v5-i1": Dials(v=5),
    "v20-i1": Dials(v=20),
}

PAPER = ("v1-i1", "v1-i1 masked", "v10-i1", "v1-i10")
"""Table 1."""
STAGES = ("v10-i1", "v10-i1 without swaps", "v10-i1 with resets", "v10-i1 masked")
PENALTIES = ("v10-i1 beta 0", "v10-i1 beta .01", "v10-i1", "v10-i1 beta 1")
CENTERS = ("v1-i4", "v1-i4 exact", "v10-i4", "v10-i4 exact")
INTERVALS = ("v1-i1", "v5-i1", "v10-i1", "v20-i1")

CLAIMS = (
    claim("Table 1: v10-i1 does as well as v1-i1", "v10-i1", "not below", "v1-i1"),
    claim("Table 1: v10-i1 does better than v1-i1", "v10-i1", "above", "v1-i1"),
    claim("Table 1: masking helps at v = 1", "v1-i1 masked", "above", "v1-i1"),
    claim("Table 1: masking helps at v = 10", "v10-i1 masked", "above", "v10-i1"),
    claim("ten updates a batch gain", "v1-i10", "above", "v1-i1"),
    claim("5.1: swaps of the reference help", "v10-i1", "above", "v10-i1 without swaps"),
    claim("a fresh optimizer at each swap costs", "v10-i1 with resets", "below", "v10-i1"),
    claim("the KL term helps, beta .1 for 0", "v10-i1", "above", "v10-i1 beta 0"),
    claim("the KL term costs, beta 1 for .1", "v10-i1 beta 1", "below", "v10-i1"),
    claim(
        "eq. 6: the exact centre gains on stale samples, four updates a batch",
        *("v10-i4 exact", "above", "v10-i4"),
    ),
    claim("renewing the server every 5 steps costs nothing", "v5-i1", "not below", "v1-i1"),
    claim("renewing it every 20 steps costs nothing", "v20-i1", "not below", "v1-i1"),
)
"""What the rows decide of arXiv:2505.22257, and of the dials beside it."""


def reference_kl(rows: Rows) -> str:
    """Column: the median of KL(pi||reference) over a run's steps, over seeds; without one, none."""
    signals = [measured(row, "kl/pi_ref") for row in rows]
    medians = [float(np.median(values)) for values in signals if len(values)]
    return plus_minus(medians, ".3f") if any(medians) else "–"


@dataclass(frozen=True)
class AblationStudy(TunedStudy):
    """Algorithm 1's dials, one at a time."""

    name = "ablation"
    question = "What do the dials of off-policy GRPO do, one at a time?"
    pages = ("results.md",)
    claims = CLAIMS
    watch = Watch((*SIGNALS, "seconds/sync", "seconds/rollout", "seconds/update"))
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("v1-i1", "v1-i1 masked", "v10-i1")}

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""

    @property
    def crossing(self) -> Crossing:
        """Every method."""
        return Crossing(self.methods, {name: dials.changes() for name, dials in METHODS.items()})

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns a section for each dial that has rows."""
        final_rows = reported(rows)

        def against_unit(trials: Rows) -> Value:
            return versus(rows, trials[0]["label"].removesuffix(" exact"))(trials)

        changed = (
            *(FINAL, Column("against v10-i1", versus(rows, "v10-i1"))),
            Column("KL(π‖reference)", reference_kl),
            Column("entropy", over_run("entropy")),
        )
        centers = (
            *(FINAL, Column("against centre 1", against_unit)),
            Column("clipped", over_run("clipped")),
            Column("KL(π‖μ)", over_run("kl/pi_mu")),
        )
        sections = [
            Section(
                "As the paper prints it",
                "Held-out Pass@1, sampled: the statistics are over the evaluations of a run after"
                " its first step, then mean and 95 % t-interval over seeds. The maximum over"
                " evaluations is above what one would get by stopping there, as it is chosen on"
                " the scores that it is taken from.",
                [printed(rows, PAPER)],
                [Picture("curves", partial(all_axes, of_labels(final_rows, PAPER)))],
            ),
            Section(
                "Swaps, resets and masking",
                "At v = 10. Swaps and masking act through the KL term alone, so that with β = 0"
                " there is nothing to compare.",
                [in_order(rows, STAGES, changed, name="stages")],
            ),
            Section(
                "β",
                "At v = 10; without a KL term there is no reference to swap.",
                [in_order(rows, PENALTIES, changed, name="beta")],
            ),
            Section(
                "Centre of the clip",
                "Four updates on each batch, where the exact centre π_k/μ acts; with one update on"
                " a batch π is π_k when the gradient is taken, and the exact centre never clips."
                " Fresh samples are π_k's own: π_k/μ is 1, and v1-i4 and v1-i4 exact are the same"
                " run.",
                [in_order(rows, CENTERS, centers, name="center")],
            ),
            Section(
                "Cost of communication",
                "Pushes of weights in a run, what they would move for the paper's Qwen2.5-0.5B in"
                f" bfloat16 ({BYTES / 1e9:.2f} GB each), and what is lost by pushing less. A push"
                " to the embedded sampler is a copy in memory; its seconds are this machine's.",
                [communication(rows)],
            ),
        ]
        return [section for section in sections if all(table.lines for table in section.tables)]


def versus(rows: Rows, method: str) -> Callable[[Rows], Value]:
    """Returns a column: the difference to a method, seed by seed."""
    return against(of_labels(reported(rows), (method,)))


def printed(rows: Rows, methods: Sequence[str]) -> Table:
    """Returns the paper's Table 1: statistics over a run's evaluations after its first step."""

    def over_evaluations(statistic: Statistic, trials: Rows) -> str:
        scores = [row["evaluations"][SCORE][1:] for row in trials]  # none where it diverged soon
        return plus_minus([float(statistic(values)) if values else nan for values in scores])

    columns = [Column(name, partial(over_evaluations, of)) for name, of in PRINTED.items()]
    ends = [Column("final", FINAL.of), Column("final, against v1-i1", versus(rows, "v1-i1"))]
    return in_order(rows, methods, [*columns, *ends], name="printed")


def communication(rows: Rows) -> Table:
    """Returns what pushing less saves and costs."""
    columns = (
        Column("pushes", lambda trials: f"{pushes(trials[0])}"),
        Column("moved for 0.5 B, GB", lambda trials: f"{pushes(trials[0]) * BYTES / 1e9:.1f}"),
        Column("seconds of a step's push here", over_run("seconds/sync", ".2g")),
        Column("staleness, steps", over_run("staleness", ".1f")),
        FINAL,
        Column("against v1-i1", versus(rows, "v1-i1")),
    )
    return in_order(rows, INTERVALS, columns, name="communication")


def pushes(row: Row) -> int:
    """Returns the renewals of the server's weights in a run, the first weights among them."""
    steps, v = row["final"]["step"], METHODS[row["label"]].v
    return -(-int(steps) // v)
