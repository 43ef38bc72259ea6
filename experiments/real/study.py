"""`real`: what do the claims of the small decoder show on a real language model?

Command: python -m experiments.run real --jobs 2
Hardware and time: two CPU cores, most cells 10 to 30 minutes of one, four updates a batch up to 72.

SmolLM2-135M-Instruct on word problems in plain English (`--preset smollm2-135m`). What is compared,
by which measure and when it stops is laid down in protocol.md before the confirmation runs. The
first measure is greedy Pass@1, which sharpening the distribution does not raise; the second the
best of sampled Pass@1 over temperatures, the third Pass@4.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from pathlib import Path
from typing import ClassVar, Self

from matplotlib.figure import Figure

from experiments.grid.cell import SIGNALS, Cell, Watch, place_name
from experiments.grid.columns import ENTROPY, KL, LENGTH, SPENT, Column, plus_minus, score
from experiments.grid.figures import COLORS, Picture, legend_below
from experiments.grid.rows import Rows, final, groups, judged_by, of_labels, reported
from experiments.grid.signals import ending
from experiments.grid.study import Crossing, TunedStudy
from experiments.grid.tables import Section, Table, in_order
from experiments.grid.variants import Variant, cells_of
from experiments.grid.verdicts import Verdict, mean_and_interval, of_claim
from experiments.real.measure import TRAINED, UNTOUCHED
from experiments.real.methods import CLAIMS, FIRST, METHODS, ON_POLICY, STEPS
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import TrainConfig
from ogrpo.setup.presets import smollm2_135m

PROTOCOL = Path(__file__).with_name("protocol.md")
PRIMARY = "pass@1/greedy"
MEASURES = {PRIMARY: "Pass@1, greedy", "pass@1/best": "best sampled", "pass@4/sampled": "Pass@4"}
"""The three measures of protocol.md, each with its heading."""
BEFORE = "before training"
COLUMNS = (
    *SPENT,
    Column("greedy", score(PRIMARY)),
    Column("best sampled", score("pass@1/best")),
    Column("sampled, T = 1", score()),
    Column("Pass@4", score("pass@4/sampled")),
    *(LENGTH, KL),
    Column("mismatch", ending("mismatch", ".2g")),
    Column("ESS", ending("ess", ".3f")),
    ENTROPY,
)


def base() -> TrainConfig:
    """Returns the preset with eight answers to each of eight problems, drawn at temperature .6."""
    preset = replace(smollm2_135m(), preset="smollm2-135m")
    schedule = replace(
        preset.schedule, prompts=8, steps=Schedule().steps, evaluate_every=Schedule().evaluate_every
    )
    return replace(
        preset,
        schedule=schedule,
        rollout=replace(preset.rollout, group_size=8, max_tokens=32, temperature=0.6),
        optimizer=replace(preset.optimizer, microbatches=1),
        evaluation=replace(preset.evaluation, prompts=128, samples=4, batch=32),
    )


@dataclass(frozen=True)
class RealStudy(TunedStudy):
    """The claims of docs/results.md on SmolLM2-135M."""

    name = "real"
    pages = ("real.md",)
    question = "What do the claims of the small decoder show on a real language model?"
    evaluations = 1
    watch = Watch((*SIGNALS, "mismatch", "length"))
    measure = PRIMARY
    measured_by = TRAINED
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("v1-i1", "int8"), "steps": 2}

    steps: int = STEPS
    """Steps of a run."""
    methods: tuple[str, ...] = FIRST
    """Which to run, by name."""
    tuning_seeds: tuple[int, ...] = (20,)
    """Seeds that the learning rate is chosen on."""
    rates: tuple[float, ...] = (1e-5, 2e-5, 4e-5, 8e-5)
    """Learning rates that are tried for v1-i1; every method then has the best of them."""
    base: TrainConfig = field(default_factory=base)

    def quickened(self) -> Self:
        """Returns the defaults with --quick: two prompts, too."""
        few = super().quickened()
        small = {
            "evaluation": replace(few.base.evaluation, prompts=2, samples=2, batch=2),
            "schedule": replace(few.base.schedule, prompts=2),
        }
        return replace(few, base=replace(few.base, **small))

    @property
    def crossing(self) -> Crossing:
        """Every method."""
        return Crossing(self.methods, METHODS)

    def variants(self) -> list[Variant]:
        """Returns v1-i1 at every rate."""
        place = self.place(ON_POLICY, {}, METHODS[ON_POLICY])
        return [place.with_rate(rate) for rate in self.rates]

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """Returns the weights before training, and every method's cells, seed after seed."""
        if not (best := self.best(rows)):
            return []
        rate = float(best[0].setting["rate"])
        start = self.place(BEFORE, {}).cell("report", self.seeds[0])
        start = replace(start, role="pilot", measure=UNTOUCHED)
        places = [place.with_rate(rate) for place in self.places()]
        return [start, *cells_of(places, "report", self.seeds)]

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns the three measures, what they cost, and the claims."""
        before = [
            {**row, "role": "report", "evaluations": {}, "steps": {}}
            | {"final": {"completions": 0, "updates": 0, **row["final"]}}
            for row in rows
            if row["label"] == BEFORE
        ]
        rows = of_labels(rows, self.methods)
        digest = hashlib.sha256(PROTOCOL.read_bytes()).hexdigest()
        gains = [Column(f"{head}, gain", gain(before, name)) for name, head in MEASURES.items()]
        return [
            Section(
                "Protocol",
                f"experiments/real/protocol.md, SHA-256 {digest}: committed before the runs"
                " (971e483); what changed after the first of them is its last section.",
            ),
            Section(
                "Claims",
                "Decided on greedy Pass@1, the first measure of protocol.md, by the rule of"
                f" docs/studies.md; those whose two methods have {len(self.seeds)} seeds each.",
                [self.decided(rows)],
            ),
            Section(
                "Scores",
                "128 test problems, mean and 95 % interval over seeds that nothing was chosen on;"
                " a gain is over the weights before training, on the same problems."
                " Best sampled is the highest of the temperatures .25, .5 and 1, so that a method"
                " that sharpens alone gains nothing. The rate was chosen for v1-i1 by greedy Pass@1"
                f" on validation problems, of {', '.join(f'{rate:g}' for rate in self.rates)}.",
                [
                    in_order([*before, *rows], (BEFORE, *METHODS), COLUMNS, name="summary"),
                    in_order(rows, [*METHODS], gains, name="gains"),
                ],
                [Picture("scores", partial(scores, reported(rows), before))],
            ),
        ]

    def decided(self, rows: Rows) -> Table:
        """Returns the claims of which both methods have all seeds, with what measure 2 says."""
        lines = []
        for one in CLAIMS:
            judged = ([judged_by(row, name) for row in rows] for name in [*MEASURES][:2])
            greedy, best = (of_claim(one, known) for known in judged)
            if len(greedy.values) == len(self.seeds):
                other = greedy.interval[0] * best.interval[0] < 0
                same = best.text() + " (other sign)" * other
                lines.append([one.text, greedy, Verdict(greedy, one.relation), same])
        heads = ("claim", "difference", "verdict", "the same of best sampled")
        return Table("claims-greedy", heads, lines)


def gain(before: Rows, name: str) -> Callable[[Rows], str]:
    """Returns a column: a final score less that of the weights before training."""

    def column(rows: Rows) -> str:
        start = final(before[0], name) if before else nan
        return plus_minus([final(row, name) - start for row in rows], "+.3f")

    return column


def scores(rows: Rows, before: Rows) -> Figure:
    """Draws the measures of each method: its seeds, their mean with its interval, the start."""
    trials = groups(rows)
    figure = Figure(figsize=(11.5, 1.6 + 0.42 * len(trials)), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharey=True, squeeze=False)[0]
    for axes, (name, head) in zip(panels, MEASURES.items(), strict=True):
        for n, of_place in enumerate(trials.values()):
            values = [final(row, name) for row in of_place]
            mean, half = mean_and_interval(values)
            color = COLORS[n % len(COLORS)]
            axes.plot(values, [n] * len(values), ".", color=color, alpha=0.4)
            axes.errorbar(mean, n, xerr=half, fmt="o", color=color, capsize=3)
        for row in before:
            axes.axvline(final(row, name), color="#444444", linestyle=":", label=BEFORE)
        axes.set_xlabel(head)
    panels[0].set_yticks(range(len(trials)), [place_name(place) for place in trials])
    panels[0].invert_yaxis()
    legend_below(figure)
    return figure
