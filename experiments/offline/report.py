"""What the rows of `offline` say: speed and stability by the size of the set."""

from collections.abc import Sequence

import numpy as np

from experiments.grid.choose import SCORE, reported
from experiments.grid.crossed import against_at, by_value, curves, scores
from experiments.grid.figures import curve
from experiments.grid.rows import Row, where
from experiments.grid.signals import UPDATES, ending, fall, fallen, measured
from experiments.grid.study import Section
from experiments.grid.tables import Table, against, average, plus_minus, score, summary
from experiments.offline.methods import FRESH

BATCHES = "batches"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "ess", "grad_norm")


def sections(
    rows: Sequence[Row], methods: Sequence[str], sizes: Sequence[int], updates: int
) -> list[Section]:
    """The page."""
    rows = [trained(row) for row in rows]
    told = reported(rows)
    labels = (*methods, FRESH)
    heads = {size: f"{size} batches" for size in dict.fromkeys((*sizes, updates))}
    return [
        Section(
            "Where each method ends",
            "Final held-out Pass@1, sampled, on seeds and problems that nothing was chosen on: mean"
            f" and 95 % interval over seeds. Fixed samples: {updates} updates on so many batches of"
            " the initial policy. Fresh samples: an update on each of so many batches.",
            [scores(told, labels, BATCHES, heads, name="scores")],
        ),
        Section(
            "All of it",
            "KL to the sampler and entropy are means over the last tenth of a run. The best on the"
            " way is the highest of a run's own evaluations on the problems that are told, so that"
            " it is too high. Halfway is after half of the updates. Fell: seeds whose Pass@1 was at"
            " some evaluation below .7 of the best before, and the updates at which it first was."
            " The differences are seed by seed, to REINFORCE on fresh samples.",
            [whole_table(rows, labels, updates)],
        ),
        *(
            curves(
                [*where(told, lambda row: row["label"] != FRESH, batches=size), *yardstick],
                labels,
                SIGNALS,
                f"batches-{size}",
                f"Curves, {size} batches",
            )
            for size in sizes
            if where(told, batches=size)
            for yardstick in [where(told, label=FRESH, batches=updates)]
        ),
    ]


def whole_table(rows: Sequence[Row], labels: Sequence[str], updates: int) -> Table:
    """Every method on every set."""
    told = reported(rows)
    most = against(where(told, label=FRESH, batches=updates))
    return summary(
        rows,
        (
            ("completions", average("completions")),
            ("updates", average("updates")),
            ("at the start", beginning),
            ("halfway", halfway),
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("best on the way", best),
            ("fell", fallen),
            ("at update", falls),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("against fresh, completions", against_at(told, FRESH, BATCHES)),
            ("against fresh, updates", most),
        ),
        order=by_value(BATCHES, labels),
    )


def trained(row: Row) -> Row:
    """The row from its last evaluation before an update on; those before it say the same."""
    updates = row["evaluations"]["updates"]
    first = max(n for n, update in enumerate(updates) if update == updates[0])
    kept = {name: values[first:] for name, values in row["evaluations"].items()}
    return {**row, "evaluations": kept}


def beginning(trials: Sequence[Row]) -> str:
    """Pass@1 before the first update."""
    return plus_minus([row["evaluations"][SCORE][0] for row in trials])


def halfway(trials: Sequence[Row]) -> str:
    """Pass@1 after half of the updates, between evaluations on the line that joins them."""
    found = []
    for row in trials:
        updates, scores_ = curve(row, UPDATES, SCORE)
        found.append(float(np.interp(row["final"]["updates"] / 2, updates, scores_)))
    return plus_minus(found)


def best(trials: Sequence[Row]) -> str:
    """The highest Pass@1 of each run's evaluations."""
    return plus_minus([float(measured(row, SCORE).max()) for row in trials])


def falls(trials: Sequence[Row]) -> str:
    """The updates at whose evaluations runs were first seen to have fallen."""
    seen = sorted(update for row in trials if (update := fall(row)) is not None)
    return ", ".join(f"{update:.0f}" for update in seen) or "–"
