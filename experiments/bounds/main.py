"""`bounds`: do the inequalities of `proofs` hold along a training run, and what are they worth?

Command: python -m experiments.run bounds
Hardware and time: two CPU cores, half a minute to two (nothing cached). Score: docs/bounds.md.

    bandit  enumerable: J, every bound and the certificate's mean are finite sums at every step
    run     the default task, off-policy: the same quantities from fresh samples, with intervals
    variance, clip  enumerable families: how importance sampling's error grows, where to clip
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import jax
import tyro
from rich.console import Console
from rich.table import Table

from experiments.bounds.claims import Claim, make_claims
from experiments.bounds.exact import Bandit, Record, train_bandit
from experiments.bounds.families import clips, variances
from experiments.bounds.report import write_report
from experiments.bounds.sampled import Dials, train_run
from ogrpo.report.run_dir import RunDir
from ogrpo.trainer import Schedule, start
from ogrpo.trainer.build import make_parts
from ogrpo.trainer.cache import keep_compiled_programs
from ogrpo.trainer.config import Evaluation, TrainConfig, WarmStart
from ogrpo.trainer.config_json import to_json
from ogrpo.trainer.config_update import Override, require
from ogrpo.trainer.model import make_model
from ogrpo.trainer.prepare import prepare
from ogrpo.trainer.presets import main_study

BROKEN = 1


@dataclass(frozen=True)
class BoundsStudy:
    """The bounds along a training run: enumerated on a bandit, sampled on the default task."""

    seed: int = 0
    run_dir: Path | None = None
    """Where everything is written; default: runs/bounds-<date>-<time>."""
    steps: int = 60
    """Steps of the default task."""
    v: int = 10
    """Steps between two renewals of its sampler."""
    prompts: int = 32
    """Held-out prompts that J averages over."""
    samples: int = 128
    """Fresh completions of each, once a server period."""
    clip_eps: float = 0.2
    """Width of the clip, on both sides."""
    sigma_eps: float = 0.01
    """Added to the reward's variance before the root is taken."""
    delta: float = 0.05
    """Chance of one certificate to be wrong."""
    bandit: Bandit = field(default_factory=Bandit)
    warm_start: WarmStart = field(default_factory=WarmStart)

    def __post_init__(self) -> None:
        require(self.seed >= 0, f"seed is {self.seed}: give a whole number of at least 0")
        require(self.steps > 0, f"steps is {self.steps}: give at least 1")
        require(self.prompts > 0, f"prompts is {self.prompts}: give at least 1")
        require(self.samples > 1, f"samples is {self.samples}: an error needs at least 2")
        require(self.clip_eps >= 0, f"clip-eps is {self.clip_eps}: give at least 0")
        require(
            0 < self.sigma_eps <= 0.75,
            f"sigma-eps is {self.sigma_eps}: the published bound needs more than 0, at most 0.75",
        )
        require(0 < self.delta < 1, f"delta is {self.delta}: give a chance between 0 and 1")


def parse(options: Sequence[str]) -> BoundsStudy:
    """The options given; tyro answers unknown ones with the nearest names."""
    return tyro.cli(
        BoundsStudy,
        prog="python -m experiments.run bounds",
        args=[*options],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def main_config(wanted: BoundsStudy) -> TrainConfig:
    """The default task, with these dials."""
    steps = wanted.steps
    return main_study(
        seed=wanted.seed,
        warm_start=wanted.warm_start,
        schedule=Schedule(steps=steps, sync_interval=wanted.v, evaluate_every=steps),
        override=Override(center="exact"),
        evaluation=Evaluation(split="validation", prompts=wanted.prompts, samples=wanted.samples),
    )


def exact_records(wanted: BoundsStudy) -> Iterator[Record]:
    """The parts that nothing is estimated in."""
    yield from train_bandit(
        wanted.bandit,
        main_config(wanted),
        clip_eps=wanted.clip_eps,
        sigma_eps=wanted.sigma_eps,
        delta=wanted.delta,
    )
    with jax.enable_x64():
        families = [*variances(wanted.seed), *clips(wanted.delta)]
    yield from families


def sampled_records(wanted: BoundsStudy, console: Console) -> Iterator[Record]:
    """The default task."""
    config = main_config(wanted)
    with closing(prepare(config)) as prepared:
        decoder, params = make_model(prepared, console)
        parts = make_parts(config, prepared, decoder)
        state = start(parts.init(params), parts)
        dials = Dials(wanted.sigma_eps, wanted.clip_eps, wanted.delta, wanted.seed)
        yield from train_run(state, parts, config.schedule, dials)


def run(wanted: BoundsStudy, console: Console) -> int:
    """Measures, reports, and returns 1 if an exact inequality failed."""
    keep_compiled_programs()
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    folder = RunDir.create(wanted.run_dir or Path("runs") / f"bounds-{stamp}")
    config = {"study": "bounds", **to_json(replace(wanted, run_dir=None))}
    folder.write_config(config)
    console.print(f"run directory {folder.path}", markup=False, soft_wrap=True)
    with folder.metrics_writer() as metrics:
        for records in (exact_records(wanted), sampled_records(wanted, console)):
            for record in records:
                metrics.write(record)
    records = folder.read_metrics()
    claims = make_claims(records, wanted.delta)
    write_report(folder, config, command_line(), records, claims)
    console.print(claims_table(claims))
    told = f"metrics {folder.metrics}\nreport  {folder.report}"
    console.print(told, markup=False, soft_wrap=True)
    return BROKEN if any(claim.kind == "exact" and not claim.holds for claim in claims) else 0


def claims_table(claims: Sequence[Claim]) -> Table:
    """What held, how often."""
    table = Table(title="Did each inequality hold?")
    for column in ("where", "claim", "how judged", "held", "least slack"):
        table.add_column(column)
    for claim in claims:
        held = f"{claim.held} of {claim.of}"
        table.add_row(claim.where, claim.text, claim.kind, held, f"{claim.slack:.2g}")
    return table


def command_line() -> str:
    """The command as a user types it."""
    return " ".join(["python", "-m", "experiments.run", *sys.argv[1:]])
