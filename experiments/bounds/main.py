"""`bounds`: do the inequalities of `proofs` hold along a training run, and what are they worth?

Command: python -m experiments.run bounds
Hardware and time: two CPU cores, a few minutes. Score: docs/bounds.md.

    bandit  enumerable: J, every bound and the certificate's mean are finite sums at every step
    run     the default task, off-policy: the same quantities from fresh samples, with intervals
    pairs, thresholds  enumerable: how importance sampling's error grows, where to clip
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from experiments.bounds.claims import make_claims
from experiments.bounds.exact import Bandit
from experiments.bounds.measure import HERE, BanditRun, Constants, Pairs, SampledRun, Thresholds
from experiments.bounds.report import records_of, sections
from experiments.grid.cell import Cell
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Section, Study
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Override
from ogrpo.config.values import require
from ogrpo.setup.presets import STUDY_RATE


@dataclass(frozen=True)
class BoundsStudy(Study):
    """The bounds along a training run: enumerated on a bandit, sampled on the default task."""

    name: ClassVar[str] = "bounds"
    question: ClassVar[str] = (
        "Do the proved inequalities hold along a run, and what are they worth?"
    )
    pages: ClassVar[tuple[str, ...]] = ("bounds.md",)

    steps: int = 60
    """Steps of the default task."""
    v: int = 10
    """Steps between two renewals of its sampler."""
    prompts: int = 32
    """Held-out prompts that J averages over."""
    samples: int = 128
    """Fresh completions of each, once a server period."""
    constants: Constants = field(default_factory=Constants)
    bandit: Bandit = field(default_factory=Bandit)

    def __post_init__(self) -> None:
        super().__post_init__()
        dials = self.constants
        require(self.v > 0, f"v is {self.v}: give at least 1")
        require(self.prompts > 0, f"prompts is {self.prompts}: give at least 1")
        require(self.samples > 1, f"samples is {self.samples}: an error needs at least 2")
        clip, sigma, delta = dials.clip_eps, dials.sigma_eps, dials.delta
        require(clip >= 0, f"constants.clip-eps is {clip}: give at least 0")
        require(
            0 < sigma <= 0.75,
            f"constants.sigma-eps is {sigma}: the published bound needs more than 0, at most 0.75",
        )
        require(0 < delta < 1, f"constants.delta is {delta}: give a chance between 0 and 1")

    def quickened(self) -> Self:
        """A few steps, few draws."""
        few = replace(super().quickened(), steps=3, v=2, prompts=3, samples=8)
        return replace(few, bandit=Bandit(steps=4, answers=5, draws=16))

    def train_config(self, seed: int) -> TrainConfig:
        """The default task with these dials; the clip is centred on pi_k/mu, as the theory is."""
        config = self.configured(seed=seed, override=Override(center="exact"))
        rate = config.optimizer.learning_rate or STUDY_RATE
        schedule = replace(config.schedule, sync_interval=self.v, evaluate_every=self.steps)
        evaluation = replace(config.evaluation, prompts=self.prompts, samples=self.samples)
        optimizer = replace(config.optimizer, learning_rate=rate)
        return replace(config, schedule=schedule, evaluation=evaluation, optimizer=optimizer)

    def stages(self) -> Sequence[Stage]:
        """One: nothing is chosen."""
        return (lambda _: self.cells(),)

    def cells(self) -> list[Cell]:
        """The sampled runs first: they take longest."""

        def cell(name: str, config: Any) -> Cell:
            return Cell(name, "report", config, measure=f"{HERE}:{name}")

        configs = {seed: self.train_config(seed) for seed in self.seeds}
        whole = Thresholds(self.constants.delta)
        return [
            *(cell("sampled", SampledRun(c, self.constants)) for c in configs.values()),
            *(cell("bandit", BanditRun(c, self.bandit, self.constants)) for c in configs.values()),
            *(cell("pairs", Pairs(seed)) for seed in self.seeds),
            Cell("thresholds", "exact", whole, measure=f"{HERE}:thresholds"),
        ]

    def report(self, rows: Rows) -> Sequence[Section]:
        """What held how often, and each plot in plain words."""
        return sections(rows, self.constants.delta)

    def broken(self, rows: Rows) -> Sequence[str]:
        """The exact inequalities that failed."""
        claims = make_claims(records_of(rows), self.constants.delta)
        return [
            f"{claim.where}: {claim.text} held {claim.held} times of {claim.of}"
            for claim in claims
            if claim.kind == "exact" and not claim.holds
        ]
