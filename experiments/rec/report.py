"""What the rows of `rec` say: where each method ends by schedule, and its signals on the way."""

from collections.abc import Sequence
from functools import partial

from experiments.grid.choose import final, groups, reported
from experiments.grid.crossed import against_at
from experiments.grid.figures import all_axes, small_multiples
from experiments.grid.rows import Row, where
from experiments.grid.signals import ending, fallen
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, average, score, summary
from experiments.grid.verdicts import mean_and_interval
from experiments.rec.methods import (
    BASELINES,
    CLIPS,
    METHODS,
    OFFLINE,
    ON_POLICY,
    SCHEDULES,
    SHAPED,
)

SIGNALS = ("pass@1/sampled", "reward", "kl/pi_mu", "entropy", "tokens/completion", "grad_norm")
OFFLINE_SIGNALS = (*("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "ess", "grad_norm"),)
REFERENCES = ("REINFORCE", "GRPO")
ON_ALL_AXES = (*REFERENCES, CLIPS[0], "AsymRE", "RED-Drop", "RED-Weight", *BASELINES)
FAMILIES = {"clips": CLIPS, "shaped": SHAPED, "baselines": BASELINES}


def sections(rows: Sequence[Row]) -> list[Section]:
    """The page."""
    told = reported(rows)
    return [
        Section(
            "Where each method ends",
            "Final held-out Pass@1, sampled, on seeds and problems that nothing was chosen on: mean"
            " and 95 % t-interval over seeds. A name in place of a number is the method that it"
            " equals there, every ratio being 1; – was not run.",
            [schedule_table(told)],
        ),
        Section(
            "All of it",
            "Signals are means over the last tenth of a run. Fell: seeds whose Pass@1 was at some"
            " evaluation below .7 of the best before. The last column but one is the difference,"
            " seed by seed, to REINFORCE at the same schedule.",
            [whole_table(rows)],
        ),
        *(curves(told, when) for when in SCHEDULES if where(told, schedule=when)),
    ]


def schedule_table(told: Sequence[Row]) -> Table:
    """Methods by schedules."""
    found = groups(told)
    by_name = {
        (place[0], trials[0]["coordinates"]["schedule"]): trials for place, trials in found.items()
    }
    whens = [when for when in SCHEDULES if any(when == other for _, other in by_name)]
    lines = []
    for name in METHODS:
        if any((name, when) in by_name for when in whens):
            lines.append([name, *(_ending(by_name, name, when) for when in whens)])
    return Table("schedules", ("method", *whens), lines)


def _ending(found: dict[tuple[str, str], list[Row]], name: str, when: str) -> str:
    if (name, when) in found:
        return score()(found[name, when])
    same = ON_POLICY.get(name)
    return f"as {same}" if when == "interval 1" and (same, when) in found else "–"


def whole_table(rows: Sequence[Row]) -> Table:
    """Every method at every schedule, with its signals at the end."""
    order = list(SCHEDULES)
    return summary(
        rows,
        (
            ("updates", average("updates")),
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("tokens a completion", ending("tokens/completion", ".1f")),
            ("fell", fallen),
            ("against REINFORCE", against_at(reported(rows), "REINFORCE", "schedule")),
        ),
        order=lambda trials: (
            order.index(trials[0]["coordinates"]["schedule"]),
            -mean_and_interval([final(row) for row in trials])[0],
        ),
    )


def curves(told: Sequence[Row], when: str) -> Section:
    """Score and signals at one schedule, a figure for each family of methods."""
    here = [{**row, "coordinates": {}} for row in told if row["coordinates"]["schedule"] == when]
    slug = when.replace(" ", "-")
    signals = OFFLINE_SIGNALS if when == OFFLINE else SIGNALS
    pictures = []
    for family, names in FAMILIES.items():
        chosen = [row for row in here if row["label"] in (*REFERENCES, *names)]
        if any(row["label"] in names for row in chosen) or family == "clips":
            draw = partial(small_multiples, chosen, signals, axis="updates")
            pictures.append(Picture(f"{slug}-{family}", draw))
    text = "Seeds thin, a band of 95 %. Offline nothing is collected on the way."
    few = [row for row in here if row["label"] in ON_ALL_AXES]
    axes = Picture(f"{slug}-axes", partial(all_axes, few))
    return Section(f"Curves, {when}", text, pictures=[*pictures, axes])
