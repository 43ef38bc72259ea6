"""What the rows of `clip-vs-is` say: final value, speed and stability of clips and weights."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from experiments.clip_vs_is.methods import MORE_REGIONS, WEIGHTS
from experiments.grid.choose import SCORE, final, reported
from experiments.grid.figures import all_axes, small_multiples
from experiments.grid.rows import Row, where
from experiments.grid.signals import ending, fallen
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, against, plus_minus, score, summary

SIGNALS = ("pass@1/sampled", "kl/pi_mu", "entropy", "ess", "clipped", "grad_norm")


def sections(rows: Sequence[Row]) -> list[Section]:
    """The page."""
    four, grid = ([row for row in rows if ("region" in row["coordinates"]) == on] for on in (0, 1))
    told = reported(grid)
    found = [
        Section(
            "Clip, weights, both, neither",
            "One update on each batch, samples up to 20 steps old. Speed is Pass@1 averaged over"
            " the run; spread is the standard deviation between seeds at the end; fell counts seeds"
            " whose Pass@1 was at some evaluation below .7 of the best before.",
            [table(four, "four")],
            pictures(four, "four"),
        ),
        Section(
            "Weights in trust regions",
            "Four updates on each batch, samples up to 20 updates old: final Pass@1, mean and"
            " 95 % t-interval over seeds, in brackets the seeds that fell.",
            [matrix(told, "regions", final_and_falls), matrix(told, "speed", speed)],
        ),
        Section("All combinations", "", [table(grid, "combinations")]),
    ]
    for region in MORE_REGIONS:
        here = [{**row, "coordinates": {}} for row in where(told, region=region)]
        if here:
            found.append(Section(f"Curves, region {region}", "", (), pictures(here, region)))
    return found


def pictures(rows: Sequence[Row], name: str) -> list[Picture]:
    """Curves and signals of the rows that are told."""
    told = reported(rows)
    if not told:
        return []
    return [
        Picture(f"{name}-signals", partial(small_multiples, told, SIGNALS, axis="updates")),
        Picture(f"{name}-axes", partial(all_axes, told)),
    ]


def table(rows: Sequence[Row], name: str) -> Table:
    """One line for each method, held against no clip, region and weight."""
    plain = where(rows, role="report", label="neither") or where(
        rows, role="report", label="plain", region="none"
    )
    return summary(
        rows,
        (
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("speed", speed),
            ("spread", spread),
            ("fell", fallen),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            (f"against {plain[0]['label'] if plain else 'neither'}", against(plain)),
        ),
        name=name,
    )


def matrix(told: Sequence[Row], name: str, form: Callable[[Sequence[Row]], str]) -> Table:
    """Weights by regions."""
    regions = [region for region in MORE_REGIONS if where(told, region=region)]
    lines = []
    for weight in WEIGHTS:
        cells = [where(told, label=weight, region=region) for region in regions]
        if any(cells):
            lines.append([weight, *(form(trials) if trials else "–" for trials in cells)])
    return Table(name, ("weights", *regions), lines)


def final_and_falls(rows: Sequence[Row]) -> str:
    """The final score, and how many seeds fell."""
    return f"{score()(rows)} ({fallen(rows)})"


def speed(rows: Sequence[Row]) -> str:
    """The score averaged over the run's evaluations."""
    return plus_minus([float(np.mean(row["evaluations"][SCORE])) for row in rows])


def spread(rows: Sequence[Row]) -> str:
    """The final score's standard deviation between seeds."""
    ends = [final(row) for row in rows]
    return f"{np.std(ends, ddof=1):.3f}" if len(ends) > 1 else "–"
