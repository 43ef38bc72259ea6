"""The page of `bounds`: what held, and each plot in plain words."""

from collections.abc import Sequence
from typing import Any

from experiments.bounds.claims import make_claims, of_part
from experiments.bounds.plots import PLOTS, Plot
from experiments.grid.rows import Row, where
from experiments.grid.study import Picture, Section
from experiments.grid.tables import Table, plus_minus

Record = dict[str, Any]
JUDGED = (
    "ΔJ = J(π) − J(π_k) is what one update changed, μ the policy that drew the samples. Exact"
    " claims are finite sums in float64, at every step and prompt; anything below −10⁻⁶ is a"
    " failure. Of a sampled claim it is asked whether the 95 % interval excludes it; one in twenty"
    " that does would be no surprise. Confidence is a lower limit that may be wrong with the chance"
    " stated.\n\n"
    "Within one sample (run, steps) the same draws enter both sides, which leaves an inequality"
    " little room to fail: those rows show consistency, and the plots size. The test is run,"
    " periods, where J of the new policy comes from draws that the bound did not see."
)
PERIODS = (
    "From the sampler μ of a period to the policy that replaces it, mean and 95 % t-interval over"
    " seeds. J measured anew samples both policies; the others see draws of μ only."
)

WORTH = (
    "At how many steps a bound promises a gain, and what its promises sum to over a run, as a share"
    " of the gain that the run made."
)
BOUNDS = {
    "minorise-maximise": "mm",
    "the same, centre 1": "mm/unit_center",
    "published": "published",
    "sharp": "sharp",
    "stale": "stale",
    "certificate": "certificate",
}


def records_of(rows: Sequence[Row]) -> list[Record]:
    """The records of all cells."""
    return [record for row in rows for record in row["records"]]


def sections(rows: Sequence[Row], delta: float) -> list[Section]:
    """The claims over all seeds, the plots of the first."""
    seeds = sorted({row["seed"] for row in where(rows, role="report")})
    if not seeds:
        return [Section("Nothing was measured")]
    one = records_of(where(rows, seed=seeds[0]) + where(rows, role="exact"))
    known = {record["part"] for record in one}
    told = f"Of seed {seeds[0]}, the first of {len(seeds)}." if len(seeds) > 1 else ""
    pictures = [_picture(name, plot, one) for name, (part, plot) in PLOTS.items() if part in known]
    return [
        Section("Did each inequality hold?", JUDGED, [claims_table(rows, delta)]),
        Section("Server periods of the default task", PERIODS, [runs_table(rows)]),
        Section("What the bounds are worth", WORTH, [worth_table(rows)]),
        Section("Where to clip", "", [thresholds_table(rows)]),
        Section("What the plots show", told, pictures=pictures),
    ]


def _picture(name: str, plot: Plot, records: Sequence[Record]) -> Picture:
    return Picture(name, lambda: plot(records)[0], plot(records)[1])


def claims_table(rows: Sequence[Row], delta: float) -> Table:
    """What held, how often, over all seeds."""
    lines = [
        [c.where, c.text, c.kind, f"{c.held:,} of {c.of:,}", f"{c.slack:.2g}"]
        for c in make_claims(records_of(rows), delta)
        if c.of
    ]
    return Table("claims", ("where", "claim", "how judged", "held", "least slack"), lines)


def runs_table(rows: Sequence[Row]) -> Table:
    """What a server period gained, and what was guaranteed of it."""
    periods = [of_part(row["records"], "period") for row in where(rows, label="sampled")]
    names = (
        ("ΔJ measured anew", "value/gain"),
        ("ΔJ by importance sampling", "gain"),
        ("minorise-maximise", "mm"),
        ("certificate", "certificate"),
        ("TV(π, μ)", "tv"),
        ("ESS", "ess"),
    )
    lines = []
    for group in zip(*periods, strict=True):
        certified = sum(record["certificate"] > 0 for record in group)
        values = [plus_minus([record[key] for record in group]) for _, key in names]
        lines.append([f"{group[0]['step']}", *values, f"{certified} of {len(group)}"])
    return Table("periods", ("period ends", *(name for name, _ in names), "certified"), lines)


def worth_table(rows: Sequence[Row]) -> Table:
    """How often each bound is above zero, and its sum over the gain's."""
    runs = {label: where(rows, label=label) for label in ("bandit", "sampled")}
    steps = {
        label: [of_part(row["records"], "run" if label == "sampled" else label) for row in trials]
        for label, trials in runs.items()
    }
    lines = []
    for name, key in BOUNDS.items():
        line = [name]
        for per_seed in steps.values():
            known = [record[key] for records in per_seed for record in records if key in record]
            positive = sum(value > 0 for value in known)
            shares = [
                sum(r[key] for r in records) / sum(r["gain"] for r in records)
                for records in per_seed
                if all(key in r for r in records)
            ]
            line += [f"{positive} of {len(known)}", plus_minus(shares, ".2f") if shares else "–"]
        lines.append(line)
    heads = ("bandit: above 0", "its sum, of the gain's", "run: above 0", "its sum, of the gain's")
    return Table("worth", ("bound", *heads), lines)


def thresholds_table(rows: Sequence[Row]) -> Table:
    """The error of each rule for a cap of importance weights, by the number of samples."""
    records = of_part(records_of(where(rows, label="thresholds")), "clip")
    keys = ("tau/optimal", "tau/sqrt_n")
    errors = ("mse/optimal", "mse/sqrt_n", "mse/proposed", "mse/unclipped")
    lines = [
        [f"{r['n']}", *(f"{r[key]:.2f}" for key in keys), *(f"{r[key]:.4f}" for key in errors)]
        for r in records
    ]
    heads = ("n", "τ*", "√n", "MSE at τ*", "at √n", "proposed", "no clip")
    return Table("thresholds", heads, lines)
