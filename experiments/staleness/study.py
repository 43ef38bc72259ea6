"""`staleness`: what do workers, slow and uneven engines do to pace, staleness and Pass@1?

Command: python -m experiments.run staleness --jobs 1
Hardware and time: two CPU cores; docs/results.md has the time and the figures.

    pace      the real collector with engines that sleep, beside the simulation that `plan` rests on
    learning  the default task, batches asked for ahead (lead) and weights pushed every v steps

The queue is first in, first out, so that lead and v alone say which version draws a batch: workers
and engines change how long a run takes, and `learning` need not be run for each of them. Its time
for a fleet is that of the simulation.

Left out: real servers, whose pace is the machine's (`python -m experiments.run gsm8k --rollout.url
... --rollout.workers 8 --schedule.sync-offset 2`, then `python -m experiments.run plan
--validate RUN`), and pushes that cut calls off.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.cell import Cell
from experiments.grid.figures import COLORS, Picture, all_axes, legend_below
from experiments.grid.rows import Row, Rows, groups, reported, where
from experiments.grid.study import TunedStudy
from experiments.grid.tables import (
    FINAL,
    Column,
    Section,
    Table,
    against,
    over_run,
    plus_minus,
    summary,
)
from experiments.grid.variants import Variant
from experiments.grid.verdicts import claim, mean_and_interval
from experiments.staleness.pace import Fleet, Kind, Pace
from ogrpo.config.values import require
from ogrpo_plan.simulation import InFlight

PACE, LEARNING = "pace", "learning"
IN_TURN = {"lead": 0, "v": 1}
CLAIMS = tuple(
    claim(
        f"a lead of {lead} costs nothing, v = 1",
        *(LEARNING, "not below", LEARNING, {"lead": lead, "v": 1}, IN_TURN),
    )
    for lead in (2, 4, 8)
)
"""Against collecting and training in turn."""
PACES = (
    "The collector's own threads with engines and a trainer that sleep; a call takes 1, the trainer"
    " 2 units a batch of 8 calls, batches are asked for 2 ahead, weights pushed at every step."
    " Predicted is the simulation that `plan` rests on, with the same calls; it knows no slow"
    " server, and gets calls drawn from those that were measured. The trainer alone would make .5"
    " steps a unit. The queue being first in, first out, staleness is the lead, whatever the"
    " engines do."
)
LEARNS = (
    "The default task; each lead and v has its own learning rate, and differences are seed by seed"
    " to collecting and training in turn with a push at every step."
)


@dataclass(frozen=True)
class StalenessStudy(TunedStudy):
    """Fleets of workers on the wall clock, and learning from what is as stale as theirs."""

    name = "staleness"
    question = "What do workers, slow and uneven engines do to pace, staleness and Pass@1?"
    pages = ("results.md",)
    claims = CLAIMS
    few: ClassVar = {
        "workers": (1, 2),
        "in_flight": ("keep",),
        "leads": (0, 2),
        "intervals": (1,),
        "pace": Pace(steps=8, scale=0.01),
    }

    workers: tuple[int, ...] = (1, 2, 4, 8)
    kinds: tuple[Kind, ...] = ("even", "uneven", "slow server")
    """Engines: all calls alike, log-normal calls, or one server slower than the others."""
    in_flight: tuple[InFlight, ...] = ("wait", "keep")
    """Effect of a push on calls under way, on the wall clock."""
    leads: tuple[int, ...] = (0, 2, 4, 8)
    """Batches that may be asked for ahead in what learns; the wall clock has 2."""
    intervals: tuple[int, ...] = (1, 5)
    """Steps between two pushes in what learns; the wall clock has 1."""
    pace: Pace = field(default_factory=Pace)
    """Steps and scale of the wall clock."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pace.fleet == Fleet(), "pace.fleet is the study's: leave it out")
        require("abort" not in self.in_flight, "in-flight has abort: give wait or keep")

    def places(self) -> Sequence[Variant]:
        """Returns every lead with every interval."""
        return [
            self.place(
                LEARNING,
                {"lead": lead, "v": v},
                {"schedule": {"sync_offset": lead, "sync_interval": v}},
            )
            for v in self.intervals
            for lead in self.leads
        ]

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells that figures are of: what learns, and the collector's pace."""
        return [*super().comparing(rows), *self.paces()]

    def paces(self) -> list[Cell]:
        """Returns the collector on the wall clock."""
        return [
            Cell(
                PACE,
                "exact",
                replace(self.pace, fleet=Fleet(workers, kind, flying), seed=seed),
                {"engines": kind, "in flight": flying, "workers": workers},
                measure="experiments.staleness.pace:measure",
            )
            for seed in self.seeds
            for kind in self.kinds
            for flying in self.in_flight
            for workers in self.workers
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns pace beside the simulation, then what staleness does to learning."""
        paces = where(rows, label=PACE)
        learning = where(rows, label=LEARNING)
        final_rows = reported(learning)
        sections = []
        if paces:
            picture = Picture("pace", partial(pace_plot, paces))
            heading = "Pace and staleness beside what `plan` predicts"
            sections.append(Section(heading, PACES, [pace_table(paces)], [picture]))
        if final_rows:
            picture = Picture("learning", partial(all_axes, final_rows))
            heading = "What staleness does to learning"
            sections.append(Section(heading, LEARNS, [learning_table(learning)], [picture]))
        return sections


def pace_table(rows: Rows) -> Table:
    """Returns steps a unit of time and staleness, measured and predicted."""
    lines = []
    for trials in groups(rows).values():
        place = trials[0]["coordinates"]
        sides = [[row[side] for row in trials] for side in ("measured", "predicted")]
        rates, foreseen = ([one["rate"] for one in side] for side in sides)
        error = [a / b - 1 for a, b in zip(foreseen, rates, strict=True)]
        lines.append(
            [
                *(f"{place[name]}" for name in ("engines", "in flight", "workers")),
                plus_minus(rates),
                plus_minus(foreseen),
                f"{np.mean(error):+.1%}",
                *(plus_minus([one["staleness"] for one in side], ".2f") for side in sides),
                *(f"{max(one['staleness/max'] for one in side)}" for side in sides),
            ]
        )
    heads = (
        *("engines", "in flight", "workers", "steps a unit", "predicted", "error"),
        *("staleness", "predicted", "most", "predicted"),
    )
    return Table("pace", heads, lines)


def pace_plot(rows: Rows) -> Figure:
    """Draws measured marks on predicted lines, against workers, a panel for each kind."""
    kinds = list(dict.fromkeys(row["coordinates"]["engines"] for row in rows))
    figure = Figure(figsize=(3.6 * len(kinds), 3.8), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    workers = sorted({row["coordinates"]["workers"] for row in rows})
    for axes, kind in zip(panels, kinds, strict=True):
        for flying, color in zip(("wait", "keep"), COLORS, strict=False):
            here = where(
                rows, lambda row, f=flying: row["coordinates"]["in flight"] == f, engines=kind
            )
            if not here:
                continue
            alike = [*groups(here).values()]
            places = [trials[0]["coordinates"]["workers"] for trials in alike]
            lines = [np.mean([row["predicted"]["rate"] for row in trials]) for trials in alike]
            axes.plot(places, lines, color=color, linewidth=1.2)
            means = [mean_and_interval([r["measured"]["rate"] for r in trials]) for trials in alike]
            mean, error = (np.nan_to_num([m[n] for m in means]) for n in (0, 1))
            axes.errorbar(places, mean, error, fmt="o", color=color, label=f"pushes {flying}")
        axes.set_title(f"{kind}", loc="left", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [f"{n}" for n in workers])
        axes.set_xlabel("workers")
    panels[0].set_ylabel("steps a unit of time (line: predicted)")
    legend_below(figure, 2)
    return figure


def learning_table(rows: Rows) -> Table:
    """Returns staleness and Pass@1 by lead and v."""
    columns = (
        Column("staleness, steps", over_run("staleness", ".2f")),
        Column("effective share", over_run("ess")),
        Column("KL(π‖μ)", over_run("kl/pi_mu", ".4f")),
        FINAL,
        Column("against lead 0, v 1", against(where(reported(rows), lead=0, v=1))),
    )
    return summary(rows, columns, name="learning", order=lambda trials: place_of(trials[0]))


def place_of(row: Row) -> tuple[int, int]:
    """Returns v and the lead of a run."""
    return row["coordinates"]["v"], row["coordinates"]["lead"]
