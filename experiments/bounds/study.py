"""`bounds`: do the inequalities of `proofs` hold along a training run, and what are they worth?

Command: python -m experiments.run bounds
Hardware and time: two CPU cores, a few minutes. Score: docs/bounds.md.

    bandit  enumerable: J, every bound and the certificate's mean are finite sums at every step
    run     the default task, off-policy: the same quantities from fresh samples, with intervals
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.bounds.exact import Bandit, Constants, Record, Several
from experiments.bounds.measure import BanditRun, SampledRun
from experiments.grid.cell import Cell
from experiments.grid.columns import plus_minus
from experiments.grid.figures import Picture, legend_below
from experiments.grid.rows import Rows, where
from experiments.grid.study import Stage, Study
from experiments.grid.tables import Section, Table
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Override
from ogrpo.report.page import BLUE, GREEN, GREY, ORANGE
from ogrpo.setup.presets import STUDY_RATE
from ogrpo.system.values import Count

Records = Sequence[Record]
RED, INK = "#b3402d", "#1d2530"
SIZE = (6.4, 4.0)
TOLERANCE = 1e-6
"""Error of float64 sums and of a float32 policy table."""
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


@dataclass(frozen=True)
class BoundsStudy(Study):
    """The bounds along a training run: enumerated on a bandit, sampled on the default task."""

    name = "bounds"
    question = "Do the proved inequalities hold along a run, and what are they worth?"
    pages = ("bounds.md",)
    few: ClassVar = {
        "steps": 3,
        "v": 2,
        "prompts": 3,
        "samples": 8,
        "bandit": Bandit(steps=4, answers=5, draws=16),
    }

    steps: Count = 60
    """Steps of the default task."""
    v: Count = 10
    """Steps between two renewals of its sampler."""
    prompts: Count = 32
    """Held-out prompts that J averages over."""
    samples: Several = 128
    """Fresh completions of each, once a server period; an error needs two."""
    constants: Constants = field(default_factory=Constants)
    bandit: Bandit = field(default_factory=Bandit)

    def train_config(self, seed: int) -> TrainConfig:
        """Returns the default task; its clip is centred on pi_k/mu, as the theory's is."""
        config = self.configured(seed=seed, override=Override(center="exact"))
        rate = config.optimizer.learning_rate or STUDY_RATE
        schedule = replace(config.schedule, sync_interval=self.v, evaluate_every=self.steps)
        evaluation = replace(config.evaluation, prompts=self.prompts, samples=self.samples)
        optimizer = replace(config.optimizer, learning_rate=rate)
        return replace(config, schedule=schedule, evaluation=evaluation, optimizer=optimizer)

    def stages(self) -> Sequence[Stage]:
        """Returns one stage: nothing is chosen."""
        return (lambda _: self.cells(),)

    def cells(self) -> list[Cell]:
        """Returns the sampled runs first, which take longest, then what is enumerated."""

        def cell(name: str, config: Any) -> Cell:
            return Cell(name, "report", config, measure=f"experiments.bounds.measure:{name}")

        configs = {seed: self.train_config(seed) for seed in self.seeds}
        return [
            *(cell("sampled", SampledRun(c, self.constants)) for c in configs.values()),
            *(cell("bandit", BanditRun(c, self.bandit, self.constants)) for c in configs.values()),
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the claims over all seeds, and the plots of the first."""
        seeds = sorted({row["seed"] for row in where(rows, role="report")})
        if not seeds:
            return [Section("Nothing was measured")]
        one = records_of(where(rows, seed=seeds[0]))
        known = {record["part"] for record in one}
        text = f"Of seed {seeds[0]}, the first of {len(seeds)}." if len(seeds) > 1 else ""
        claims = claims_table(rows, self.constants.delta)
        pictures = [
            Picture(name, partial(plot, one))
            for name, (part, plot) in PLOTS.items()
            if part in known
        ]
        return [
            Section("Did each inequality hold?", JUDGED, [claims]),
            Section("Server periods of the default task", PERIODS, [runs_table(rows)]),
            Section("What the bounds are worth", WORTH, [worth_table(rows)]),
            Section("What the plots show", text, pictures=pictures),
        ]

    def broken(self, rows: Rows) -> Sequence[str]:
        """Returns the exact inequalities that failed."""
        return [
            f"{claim.where}: {claim.text} held {claim.held} times of {claim.of}"
            for claim in make_claims(records_of(rows), self.constants.delta)
            if claim.kind == "exact" and claim.held < claim.of
        ]


Slack = Callable[[Record], float | Sequence[float]]
"""The slack of an inequality in a record, or several; negative where it fails."""


class Judged(NamedTuple):
    """An inequality as records have it."""

    where: str
    text: str
    kind: str
    held: int
    of: int
    slack: float
    """The least; negative where it failed."""


PLACES = {"run": "run, steps", "period": "run, periods"}
PROVED = {
    "mm": "minorise-maximise",
    "sharp": "sharp bound",
    "stale": "stale bound",
    "published": "published bound",
}


def inequalities(delta: float) -> list[tuple[str, str, dict[str, Slack]]]:
    """Returns those of `proofs` that records decide: of which part's, how judged, the slacks.

    Exact ones must hold; of a sampled one it is asked whether its 95 % interval refutes it.
    """
    confidence = f"each with confidence {1 - delta:.0%}"

    def meets(r: Record) -> float:
        return min(r["gain/high"], r["value/gain/high"]) - max(r["gain/low"], r["value/gain/low"])

    def apart(name: str, other: str) -> Slack:
        return lambda r: r[other] - r[name]

    most = "value/gain/high"
    names = {key: f"{text} ≤ ΔJ" for key, text in PROVED.items()}
    certified, anew = (f"certificate ≤ ΔJ{of}, {confidence}" for of in ("", " measured anew"))
    bandit: dict[str, Slack] = {
        "ΔJ = σ (L(π) − L(π_k))": lambda r: -r["identity_error"],
        **{text: itemgetter(f"slack/{key}") for key, text in names.items()},
        "certificate's mean ≤ ΔJ": itemgetter("slack/certificate/mean"),
        "published bound ≤ 0 where σ ≤ ½: vacuous": lambda r: vacuity([r]),
    }
    periods: dict[str, Slack] = {
        "ΔJ by importance sampling = ΔJ measured anew (intervals meet)": meets,
        **{f"{names[key]} measured anew": apart(f"{key}/low", most) for key in ("mm", "sharp")},
    }
    steps: dict[str, Slack] = {text: itemgetter(f"slack/{key}/high") for key, text in names.items()}
    return [
        ("bandit", "exact", bandit),
        ("bandit", "confidence", {certified: apart("certificate", "value/gain")}),
        ("run", "sampled", steps),
        ("period", "sampled", periods),
        ("period", "confidence", {anew: apart("certificate", most)}),
    ]


def make_claims(records: Records, delta: float) -> list[Judged]:
    """Counts the slacks of every inequality that are not negative, but for rounding."""
    claims = []
    for part, kind, slacks_of in inequalities(delta):
        known, place = of_part(records, part), PLACES.get(part, part)
        for text, slack in slacks_of.items():
            each = [np.atleast_1d(slack(record)) for record in known]
            slacks = np.concatenate([*each, np.empty(0)])
            held = int((slacks >= -TOLERANCE).sum())
            least = float(slacks.min()) if len(slacks) else 0.0
            claims.append(Judged(place, text, kind, held, len(slacks), least))
    return claims


def records_of(rows: Rows) -> list[Record]:
    """Returns the records of all cells."""
    return [record for row in rows for record in row["records"]]


def claims_table(rows: Rows, delta: float) -> Table:
    """Returns what held, how often, over all seeds."""
    lines = [
        [c.where, c.text, c.kind, f"{c.held:,} of {c.of:,}", f"{c.slack:.2g}"]
        for c in make_claims(records_of(rows), delta)
        if c.of
    ]
    return Table("claims", ("where", "claim", "how judged", "held", "least slack"), lines)


def runs_table(rows: Rows) -> Table:
    """Returns what a server period gained, and what was guaranteed of it."""
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


def worth_table(rows: Rows) -> Table:
    """Returns how often each bound is above zero, and its sum over the gain's."""
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
                sum(r[key] for r in records) / gain
                for records in per_seed
                if all(key in r for r in records) and (gain := sum(r["gain"] for r in records))
            ]
            line += [f"{positive} of {len(known)}", plus_minus(shares, ".2f") if shares else "–"]
        lines.append(line)
    heads = ("bandit: above 0", "its sum, of the gain's", "run: above 0", "its sum, of the gain's")
    return Table("worth", ("bound", *heads), lines)


def of_part(records: Records, part: str) -> list[Record]:
    """Returns the records of one part, in order."""
    return [record for record in records if record["part"] == part]


def vacuity(steps: Records) -> list[float]:
    """Returns minus the published right side, at each step and prompt with sigma <= 1/2."""
    prompts = [r["by_prompt"] for r in steps]
    pairs = [p for by in prompts for p in zip(by["sigma"], by["published"], strict=True)]
    return [-published for sigma, published in pairs if sigma <= 0.5]


def column(records: Records, key: str) -> np.ndarray:
    """Returns one quantity over the records."""
    return np.array([record[key] for record in records], float)


def _axes(title: str, x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def bandit_gain(records: Records) -> Figure:
    """Draws ΔJ of each update and the guarantees that come close to it."""
    steps = of_part(records, "bandit")
    figure, axes = _axes("Bandit: one update's gain, exactly", "step", "mean over prompts")
    x = column(steps, "step")
    axes.plot(x, column(steps, "value/gain"), color=INK, label="ΔJ")
    axes.plot(x, column(steps, "mm"), color=BLUE, label="minorise-maximise, exact centre")
    axes.plot(x, column(steps, "mm/unit_center"), color=ORANGE, label="the same, centre 1")
    axes.plot(x, column(steps, "certificate"), color=GREEN, label="certificate from fresh draws")
    axes.axhline(0, color=INK, linewidth=0.8)
    legend_below(figure, 2)
    return figure


def published(records: Records) -> Figure:
    """Draws the published right side against sigma: nothing above zero left of one half."""
    steps = of_part(records, "bandit")
    sigma = np.concatenate([r["by_prompt"]["sigma"] for r in steps])
    value = np.concatenate([r["by_prompt"]["published"] for r in steps])
    figure, axes = _axes("The published bound against σ", "σ of the prompt", "its right side")
    axes.scatter(sigma, value, s=9, color=RED, alpha=0.5, linewidths=0)
    axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set_yscale("symlog", linthresh=1e-3)
    axes.axhline(0, color=INK, linewidth=0.8)
    return figure


def run_periods(records: Records) -> Figure:
    """Draws whole server periods, against J measured anew."""
    periods = of_part(records, "period")
    figure, axes = _axes("Default run: whole server periods", "step at the end", "ΔJ of a period")
    step = column(periods, "step")
    width = float(np.min(np.diff(step, prepend=0))) / 12
    shown = (("value/gain", INK, "measured anew"), ("gain", GREY, "importance sampling"))
    for n, (key, color, label) in enumerate((*shown, ("mm", BLUE, "minorise-maximise"))):
        mean = column(periods, key)
        ends = np.abs(np.stack([column(periods, f"{key}/{end}") for end in ("low", "high")]) - mean)
        x = step + (n - 1) * width
        axes.errorbar(x, mean, ends, color=color, label=label, fmt="o", markersize=4, capsize=2)
    x = step + 2 * width
    axes.plot(x, column(periods, "certificate"), "v", color=GREEN, label="certificate")
    axes.axhline(0, color=INK, linewidth=0.8)
    legend_below(figure, 2)
    return figure


PLOTS: dict[str, tuple[str, Callable[[Records], Figure]]] = {
    "bandit_gain": ("bandit", bandit_gain),
    "published": ("bandit", published),
    "run_periods": ("period", run_periods),
}
"""Each with the part whose records it shows."""
