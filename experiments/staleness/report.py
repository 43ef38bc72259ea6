"""What the rows of `staleness` say: pace measured and predicted, and what staleness costs."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.choose import SCORE, final, groups, reported
from experiments.grid.figures import COLORS, LABELS, all_axes
from experiments.grid.rows import Row, where
from experiments.grid.study import Picture, Section
from experiments.grid.tables import (
    Column,
    Table,
    against,
    over_run,
    plus_minus,
    score,
    summary,
)
from experiments.grid.verdicts import claim, mean_and_interval
from experiments.staleness.fleet import Fleet, Kind
from ogrpo_plan.simulation import simulate

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


def sections(rows: Sequence[Row], workers: Sequence[int], kinds: Sequence[Kind]) -> list[Section]:
    """The page."""
    paces = [row for row in rows if row["label"] == PACE]
    learning = [row for row in rows if row["label"] == LEARNING]
    told = any(row["role"] == "report" for row in learning)
    return [*_of_paces(paces), *([_of_learning(learning, workers, kinds)] if told else [])]


def _of_paces(rows: Sequence[Row]) -> list[Section]:
    if not rows:
        return []
    return [
        Section(
            "Pace and staleness beside what `plan` predicts",
            "The collector's own threads with engines and a trainer that sleep; a call takes 1, the"
            " trainer 2 units a batch of 8 calls, batches are asked for 2 ahead, weights pushed at"
            " every step. Predicted is the simulation that `plan` rests on, with the same calls; it"
            " knows no slow server, and gets calls drawn from those that were measured. The trainer"
            " alone would make .5 steps a unit. The queue being first in, first out, staleness is"
            " the lead, whatever the engines do.",
            [pace_table(rows)],
            [Picture("pace", partial(pace_plot, rows))],
        )
    ]


def pace_table(rows: Sequence[Row]) -> Table:
    """Steps a unit of time and staleness, measured and predicted."""
    lines = []
    for trials in groups(rows).values():
        place = trials[0]["coordinates"]
        rates, foreseen = (
            [row[side]["rate"] for row in trials] for side in ("measured", "predicted")
        )
        error = [a / b - 1 for a, b in zip(foreseen, rates, strict=True)]
        lines.append(
            [
                *(f"{place[name]}" for name in ("engines", "in flight", "workers")),
                plus_minus(rates),
                plus_minus(foreseen),
                f"{np.mean(error):+.1%}",
                *(
                    plus_minus([row[side]["staleness"] for row in trials], ".2f")
                    for side in ("measured", "predicted")
                ),
                *(
                    f"{max(row[side]['staleness/max'] for row in trials)}"
                    for side in ("measured", "predicted")
                ),
            ]
        )
    heads = (
        *("engines", "in flight", "workers", "steps a unit", "predicted", "error"),
        *("staleness", "predicted", "most", "predicted"),
    )
    return Table("pace", heads, lines)


def pace_plot(rows: Sequence[Row]) -> Figure:
    """Measured marks on predicted lines, against workers, a panel for each kind of engines."""
    kinds = list(dict.fromkeys(row["coordinates"]["engines"] for row in rows))
    figure = Figure(figsize=(3.6 * len(kinds), 3.8), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    workers = sorted({row["coordinates"]["workers"] for row in rows})
    for axes, kind in zip(panels, kinds, strict=True):
        mine = where(rows, engines=kind)
        for flying, color in zip(("wait", "keep"), COLORS, strict=False):
            found = [trials for row in groups(mine).values() if (trials := _flying(row, flying))]
            if not found:
                continue
            places = [trials[0]["coordinates"]["workers"] for trials in found]
            lines = [np.mean([row["predicted"]["rate"] for row in trials]) for trials in found]
            axes.plot(places, lines, color=color, linewidth=1.2)
            means = [mean_and_interval([r["measured"]["rate"] for r in trials]) for trials in found]
            mean, error = (np.nan_to_num([m[n] for m in means]) for n in (0, 1))
            axes.errorbar(places, mean, error, fmt="o", color=color, label=f"pushes {flying}")
        axes.set_title(f"{kind}", loc="left", fontsize=10)
        axes.set_xscale("log", base=2)
        axes.set_xticks(workers, [f"{n}" for n in workers])
        axes.set_xlabel("workers")
    panels[0].set_ylabel("steps a unit of time (line: predicted)")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _flying(trials: Sequence[Row], flying: str) -> list[Row]:
    return [row for row in trials if row["coordinates"]["in flight"] == flying]


def _of_learning(rows: Sequence[Row], workers: Sequence[int], kinds: Sequence[Kind]) -> Section:
    told = reported(rows)
    return Section(
        "What staleness does to learning, and when it is worth it",
        "The default task; each lead and v has its own learning rate, and differences are seed by"
        " seed to collecting and training in turn with a push at every step. The times are the"
        " simulation's for the fleets above, seed by seed, in its units.",
        [learning_table(rows), clock_table(told, workers, kinds)],
        [
            Picture("learning", partial(all_axes, told)),
            Picture("clock", partial(clock_plot, told, workers)),
        ],
    )


def learning_table(rows: Sequence[Row]) -> Table:
    """Staleness and Pass@1 by lead and v."""
    turn = where(reported(rows), lead=0, v=1)
    columns: list[Column] = [
        ("staleness, steps", over_run("staleness", ".2f")),
        ("effective share", over_run("ess")),
        ("KL(π‖μ)", over_run("kl/pi_mu", ".4f")),
        ("final Pass@1", score()),
        ("against lead 0, v 1", against(turn)),
    ]
    learning = [row for row in rows if row["label"] == LEARNING]
    return summary(learning, columns, name="learning", order=lambda trials: _place(trials[0]))


def _place(row: Row) -> tuple[int, int]:
    return row["coordinates"]["v"], row["coordinates"]["lead"]


def units(row: Row, workers: int, kind: Kind) -> float:
    """How long a fleet takes for a run, by the simulation."""
    v, lead = _place(row)
    fleet, seed = Fleet(workers, kind, "keep", lead, v), row["seed"]
    steps = int(row["final"]["step"])
    trace = simulate(fleet.pipeline(steps), partial(fleet.seconds, seed), lambda _step: fleet.train)
    return float(trace.trained[-1])


def clock_table(rows: Sequence[Row], workers: Sequence[int], kinds: Sequence[Kind]) -> Table:
    """How long each fleet takes for a run, by lead and v."""
    fleets: list[tuple[Kind, int]] = [(kind, n) for kind in kinds for n in workers]
    lines = []
    for trials in sorted(groups(rows).values(), key=lambda trials: _place(trials[0])):
        v, lead = _place(trials[0])
        times = [plus_minus([units(row, n, kind) for row in trials], ".0f") for kind, n in fleets]
        lines.append([f"{v}", f"{lead}", score()(trials), *times])
    heads = ("v", "lead", "final Pass@1", *(f"{kind}, {n} workers" for kind, n in fleets))
    return Table("clock", heads, lines)


def clock_plot(rows: Sequence[Row], workers: Sequence[int]) -> Figure:
    """Where runs end and when, for fleets of even engines."""
    figure = Figure(figsize=(2.9 * len(workers) + 0.6, 3.8), layout="constrained")
    panels = figure.subplots(1, len(workers), sharey=True, squeeze=False)[0]
    found = sorted(groups(rows).values(), key=lambda trials: _place(trials[0]))
    for axes, n in zip(panels, workers, strict=True):
        times = [float(np.mean([units(r, n, "even") for r in trials])) for trials in found]
        for place, (trials, when) in enumerate(zip(found, times, strict=True)):
            v, lead = _place(trials[0])
            mean, error = mean_and_interval([final(row) for row in trials])
            color = COLORS[place % len(COLORS)]
            axes.errorbar(
                when, mean, np.nan_to_num(error), fmt="o", color=color, label=f"v {v}, lead {lead}"
            )
        axes.set_title(f"{n} worker{'s' * (n > 1)}", loc="left", fontsize=10)
        axes.set_xlabel("units of time")
        axes.set_xlim(0, 1.08 * max(times))
    panels[0].set_ylabel(f"final {LABELS[SCORE]}")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=9)
    return figure
