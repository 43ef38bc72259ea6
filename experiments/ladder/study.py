"""`ladder`: how few completions reach what tuned training reaches, and how much of that is reuse?

Command: python -m experiments.run ladder
Hardware and time: two CPU cores, 868 cells of 3 to 30 seconds, 100 minutes.

Two tasks: chains of steps, whose most likely answers are mostly wrong at the start, and the default
task, on which sharpening gains much. Methods, budgets, measures and what decides are laid down in
protocol.md before the confirmation runs: greedy Pass@1 first, Pass@8 second, sampled Pass@1 third.
Differences are seed by seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from experiments.grid.cell import Cell, Role
from experiments.grid.columns import GREEDY, POLICY, SAMPLED, UPDATES, Column, Value, average, score
from experiments.grid.figures import COLORS, Picture, legend_below
from experiments.grid.rows import SCORE, Row, Rows, final, groups, judged_by, reported, where
from experiments.grid.study import INTERVALS, Stage, TunedStudy
from experiments.grid.tables import Section, Table, claims_table, summary
from experiments.grid.variants import Changes, Variant, accepted, cells_of, joined
from experiments.grid.verdicts import claim, difference, mean_and_interval, of_claim
from experiments.real.study import PRIMARY
from ogrpo.config.train import Evaluation, TrainConfig
from ogrpo.setup.presets import chains, make_preset
from ogrpo.system.values import require

WHOLE = 15360
LADDER: Mapping[str, tuple[int, ...]] = {
    "GRPO": (WHOLE, 7680, 3840),
    "RLOO": (WHOLE,),
    "REC-OneSide": (WHOLE,),
    "TOPR": (WHOLE,),
    "successes": (WHOLE, 7680, 3840, 1920, 960),
    "GRPO, 8 draws": (3840, 1920),
    "successes, 4 draws": (1920,),
    "successes, 8 draws": (3840, 1920, 960),
    "successes, 16 draws": (1920, 960),
}
"""Method -> the completions that it may collect; the draws of a step, one where none are named."""
ALGORITHMS = {
    "GRPO": "off_policy_grpo",
    "RLOO": "rloo",
    "REC-OneSide": "rec_one_side",
    "TOPR": "topr",
    "REINFORCE": "reinforce",
    "successes": "positives",
}
STALE = ("REINFORCE, interval 20", "GRPO, interval 20")
"""On samples up to 20 steps old, at the learning rate of GRPO, which nothing tuned."""
STALE_BUDGET = 3840
WARM_STARTS = 2
"""Warm starts of chains that the package comes with, by their seeds."""
AGAIN, PRESET = "default, again", "--preset reuse"
"""Task and label of the preset's own runs, on other seeds."""
OTHER_SEEDS = tuple(range(70, 82))
FEW_PROMPTS, PROMPTS = "chains, 512 prompts", 512
"""Task of the runs on so many prompts of chains, each of which is met again and again."""
REPEATED = {"GRPO": (WHOLE,), "successes": (WHOLE,), "successes, 8 draws": (3840, 1920)}
"""Methods of those runs, with the completions that they may collect."""
MARGIN = 0.02
"""Pass@1 that a method may lose and still count as good as its reference."""
SCORES = {"greedy": PRIMARY, "Pass@8": "pass@8/sampled", "sampled": SCORE}


def differing(config: Any, other: Any) -> dict[str, Any]:
    """Returns the options in which a config differs from another of its type, as changes."""
    pairs = {f.name: (getattr(config, f.name), getattr(other, f.name)) for f in fields(config)}
    return {
        name: differing(one, two) if is_dataclass(one) else one
        for name, (one, two) in pairs.items()
        if one != two
    }


TASKS: Mapping[str, Changes] = {
    "chains": {**differing(chains(), TrainConfig()), "preset": "chains"},
    "default": {"optimizer": {"learning_rate": 1e-3, "warmup": 3}},
}
"""Task -> the options that make it, with the learning rate that those tried are multiples of."""


def changes_of(method: str, base: TrainConfig) -> Changes:
    """Returns the options that make a method, at the completions that a step of the base has.

    Successes are imitated, one completion a prompt. Where a batch is drawn more than once, a draw
    is half a step's completions, of eight steps' that are no groups without a difference (for
    successes no failures), at a constant rate.
    """
    name, _, rest = method.partition(", ")
    prompts, size = base.schedule.prompts, base.rollout.group_size
    alone = name == "successes"
    if alone:
        prompts, size = prompts * size, 1
    made: Changes = {"schedule": {"prompts": prompts}, "rollout": {"group_size": size}}
    if ALGORITHMS[name] != base.algorithm:
        made = joined(made, {"algorithm": ALGORITHMS[name]})
    if alone:
        made = joined(made, {"override": {"advantage": "successes"}})
    if rest.startswith("interval "):
        made = joined(made, {"schedule": {"sync_interval": int(rest.removeprefix("interval "))}})
    elif rest:
        refused = "refuse_failures" if alone else "refuse_zero_variance"
        made = joined(
            made,
            {
                "schedule": {"replay": int(rest.removesuffix(" draws")), "draw": prompts // 2},
                "replay": {"groups": 8 * prompts, "sampler": "uniform", refused: True},
                "optimizer": {"decay": 0.0},
            },
        )
    return made


def claims_of(task: str) -> tuple[Any, ...]:
    """Returns what is claimed of one task, decided on greedy Pass@1, seed by seed."""

    def at(completions: int) -> dict[str, Any]:
        return {"task": task, "completions": completions}

    drawn, whole = "successes, 8 draws", at(WHOLE)
    return (
        claim(f"{task}: objective and prompt mix gain", "successes", "above", "GRPO", whole),
        *(
            claim(f"{task}, {n}: reuse gains", drawn, "above", "successes", at(n))
            for n in (3840, 1920, 960)
        ),
        claim(f"{task}, 3840: GRPO gains by reuse", "GRPO, 8 draws", "above", "GRPO", at(3840)),
        *(
            claim(
                f"{task}: {drawn}, {n} do as well as {other}, {WHOLE}",
                *(drawn, "not below", other, at(n), whole),
            )
            for n in (1920, 960)
            for other in ("successes", "GRPO")
        ),
    )


CLAIMS = (
    *(one for task in TASKS for one in claims_of(task)),
    *(
        claim(
            f"{AGAIN}: {PRESET} does as well as {other}, {WHOLE}",
            *(PRESET, "not below", other, {"task": AGAIN}),
        )
        for other in ("successes", "GRPO")
    ),
    *(
        claim(
            f"chains: {name} costs",
            *(name, "below", "GRPO", {"task": "chains", "completions": STALE_BUDGET}),
        )
        for name in STALE
    ),
)


def base() -> TrainConfig:
    """Returns evaluations of 256 problems with eight answers to each."""
    evaluation = Evaluation(prompts=256, samples=8, token_samples=0, gradient_variance=False)
    return TrainConfig(evaluation=evaluation)


class FromStart(Variant):
    """A variant on chains, whose cells begin with the warm start of their seed."""

    def cell(self, role: Role, seed: int) -> Cell:
        """Returns the cell of this seed."""
        made = super().cell(role, seed)
        warm = replace(made.config.warm_start, seed=seed % WARM_STARTS)
        return replace(made, config=replace(made.config, warm_start=warm))


@dataclass(frozen=True)
class LadderStudy(TunedStudy):
    """Methods with and without reuse, at budgets of completions, on two tasks."""

    name = "ladder"
    question = "How few completions do, and how much of that is reuse?"
    pages = ("reuse.md",)
    evaluations = 1
    measure = PRIMARY
    known: ClassVar = {"tasks": TASKS, "methods": LADDER}
    few: ClassVar = {
        "tasks": ("chains",),
        "methods": ("RLOO", "successes, 4 draws"),
        "rates": (1.0,),
    }

    seeds: tuple[int, ...] = tuple(range(50, 62))
    """Seeds that figures are of; nothing is chosen on them."""
    tasks: tuple[str, ...] = tuple(TASKS)
    """Which to train on, by name."""
    methods: tuple[str, ...] = tuple(LADDER)
    """Which to run, by name."""
    rates: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0)
    """Learning rates that are tried, for every method alike, as multiples of the task's own."""
    base: TrainConfig = field(default_factory=base)
    """Options of the trainer that hold for all cells."""

    def __post_init__(self) -> None:
        super().__post_init__()
        typed = self.base.preset == "none" and self.steps != TunedStudy.steps
        require(  # a preset brings steps of its own
            self.quick or not typed,
            f"steps is {self.steps}: a budget of completions says how many, leave it out",
        )

    def places(self) -> Sequence[Variant]:
        """Returns what is tuned."""
        return [
            self.collecting(name, task, n)
            for task in self.tasks
            for name in self.methods
            for n in LADDER[name]
        ]

    def collecting(self, name: str, task: str, completions: int) -> Variant:
        """Returns a method that may collect so many completions; with --quick a few steps'."""
        known = accepted(self.base, TASKS[task])
        per_step = known.schedule.prompts * known.rollout.group_size
        steps = self.steps if self.quick else completions // per_step
        plain = {"schedule": {"steps": steps, "evaluate_every": steps}}
        config = accepted(known, plain, changes_of(name, known))
        kind = FromStart if task == "chains" else Variant
        where_ = {"task": task, "completions": completions}
        return kind(name, config, where_, watch=self.watch)

    def variants(self) -> list[Variant]:
        """Returns every method at every place and rate."""
        return [
            place.with_rate(float(f"{rate * (place.config.optimizer.learning_rate or 0.0):.3g}"))
            for place in self.places()
            for rate in self.rates
        ]

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then methods compared; one task after the other.

        The cells of one warm start follow those of another, which is then made ready once.
        """

        def by_start(stage: Stage) -> Stage:
            return lambda rows: sorted(stage(rows), key=lambda c: c.config.warm_start.seed or 0)

        stages: list[Stage] = []
        for task in self.tasks:
            one = replace(self, tasks=(task,))
            besides = {"chains": (one.staling, one.on_few_prompts), "default": (one.repeating,)}
            stages += [one.tuning, one.comparing, *(() if self.quick else besides[task])]
        return [by_start(stage) for stage in stages]

    def staling(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells of stale samples, on chains."""
        here = {"task": "chains", "completions": STALE_BUDGET}
        variants = [
            self.collecting(name, "chains", STALE_BUDGET).with_rate(float(v.setting["rate"]))
            for v in self.best(rows)
            if v.label == "GRPO" and v.coordinates == here
            for name in STALE
        ]
        return cells_of(variants, "report", self.seeds)

    def on_few_prompts(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells of few prompts, at the rates that were the best with all of them."""
        variants = [
            replace(
                v,
                config=replace(v.config, data=replace(v.config.data, train=PROMPTS)),
                coordinates={**v.coordinates, "task": FEW_PROMPTS},
            )
            for v in self.best(rows)
            if v.coordinates["completions"] in REPEATED.get(v.label, ())
        ]
        return cells_of(variants, "report", self.seeds)

    def repeating(self, rows: Rows) -> Sequence[Cell]:
        """Returns the preset's cells beside those of two methods without reuse, on other seeds."""
        preset = replace(make_preset("reuse"), evaluation=self.base.evaluation)
        steps = preset.schedule.steps
        config = replace(preset, schedule=replace(preset.schedule, evaluate_every=steps))
        rate = {"rate": preset.optimizer.learning_rate or 0.0}
        collected = steps * preset.schedule.prompts * preset.rollout.group_size
        beside = [
            replace(v, coordinates={"task": AGAIN, "completions": WHOLE})
            for v in self.best(rows)
            if v.label in ("successes", "GRPO") and v.coordinates["completions"] == WHOLE
        ]
        reuse = Variant(PRESET, config, {"task": AGAIN, "completions": collected}, rate)
        return cells_of([reuse, *beside], "report", OTHER_SEEDS)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns what is saved, the differences seed by seed, and the scores."""
        scored = {head: [judged_by(row, score) for row in rows] for head, score in SCORES.items()}
        lines: list[list[Value]] = [
            [one.text, *(of_claim(one, those) for those in scored.values())]
            for one in CLAIMS
            if of_claim(one, rows).values
        ]
        of_task = {task: where(rows, task=task) for task in (*self.tasks, FEW_PROMPTS, AGAIN)}
        known = [task for task in self.tasks if reported(of_task[task])]
        besides = [task for task in (FEW_PROMPTS, AGAIN) if of_task[task]]
        return [
            Section(
                "What is saved",
                "Claims are decided on greedy Pass@1, the first measure of protocol.md.",
                [
                    *(saved(of_task[task], task) for task in known),
                    claims_table(CLAIMS, scored["greedy"]),
                    Table("differences", ("one less the other", *SCORES), lines),
                ],
                [Picture("budgets", partial(budget_plot, reported(rows), known))] if known else [],
            ),
            Section(
                "Scores",
                INTERVALS,
                [
                    summary(of_task[task], COLUMNS, name=f"{name}-scores", order=ordered)
                    for task in (*known, *besides)
                    for name in [task.replace(", ", "-").replace(" ", "-")]
                ],
            ),
        ]


def ordered(trials: Rows) -> tuple[float, float]:
    """Returns a key that orders the largest budgets first, then the highest greedy Pass@1."""
    budget = trials[0]["coordinates"]["completions"]
    return -budget, -mean_and_interval([final(row, PRIMARY) for row in trials])[0]


def reference(rows: Rows) -> list[Row]:
    """Returns the runs of the method without reuse that tuned best at all completions."""
    here = where(rows, completions=WHOLE)
    tuned: dict[tuple[str, float], list[float]] = {}
    for row in where(here, role="tuning"):
        tuned.setdefault((row["label"], row["setting"]["rate"]), []).append(final(row, PRIMARY))
    if not tuned:
        return []
    label, _ = max(tuned, key=lambda setting: np.mean(tuned[setting]))
    return where(reported(here), label=label)


def saved(rows: Rows, task: str) -> Table:
    """Returns the fewest completions with which each method is as good as the reference."""
    other, lines = reference(rows), []
    table = groups(reported(rows))
    for label in [label for label in LADDER if where(rows, label=label)]:
        line = [label]
        for name in SCORES.values():
            enough = [
                trials[0]["coordinates"]["completions"]
                for (one, _), trials in table.items()
                if one == label and difference(trials, other, name).interval[1] > -MARGIN
            ]
            line.append(f"{min(enough):,}" if enough else "more than tried")
        lines.append(line)
    named = other[0]["label"] if other else "–"
    caption = (
        f"Fewest completions at which the lower end of the 95 % interval of the difference to"
        f" {named}, {WHOLE:,} completions, is above -{MARGIN:g}."
    )
    return Table(f"{task}-saved", ("method", *SCORES), lines, caption)


def budget_plot(rows: Rows, tasks: Sequence[str]) -> Figure:
    """Draws greedy Pass@1 by completions collected, a panel a task, with 95 % intervals."""
    figure = Figure(figsize=(4.6 * len(tasks), 4.0), layout="constrained")
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        here = where(rows, task=task)
        for n, label in enumerate(label for label in LADDER if where(here, label=label)):
            budgets = sorted(LADDER[label])
            trials = [where(here, label=label, completions=budget) for budget in budgets]
            ends = [mean_and_interval([final(row, PRIMARY) for row in some]) for some in trials]
            means, halves = zip(*ends, strict=True)
            places = [budget * 1.03 ** (n - len(LADDER) / 2) for budget in budgets]
            style = "o-" if "draws" in label else "s:"
            color = COLORS[n % len(COLORS)]
            axes.errorbar(places, means, halves, fmt=style, markersize=4, label=label, color=color)
        axes.set_xscale("log", base=2)
        budgets = sorted({n for some in LADDER.values() for n in some})
        axes.set_xticks(budgets, [f"{n:,}" for n in budgets])
        axes.set_xlabel("completions collected")
        axes.set_title(task, loc="left", fontweight="bold")
    panels[0].set_ylabel("greedy Pass@1")
    legend_below(figure, 5)
    return figure


def flops(rows: Rows) -> str:
    """Returns the FLOPs of rollouts and updates together, mean over seeds."""
    sums = [final(row, "flops/rollout") + final(row, "flops/update") for row in rows]
    return f"{np.mean(sums):.2g}"


COLUMNS = (
    *(UPDATES, Column("tokens", average("tokens")), Column("FLOPs", flops)),
    *(GREEDY, Column("Pass@8", score(SCORES["Pass@8"])), SAMPLED, *POLICY),
)
