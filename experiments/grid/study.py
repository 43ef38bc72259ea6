"""What a study is: options, a grid in stages, and what its rows say."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import ClassVar, Self

import tyro
from matplotlib.figure import Figure

from experiments.grid.rows import Row
from experiments.grid.runner import Rows, Stage
from experiments.grid.tables import Table
from ogrpo.trainer.config import Data, Evaluation, TrainConfig, WarmStart
from ogrpo.trainer.config_json import from_json, to_json
from ogrpo.trainer.config_update import require
from ogrpo.trainer.schedule import Schedule

OF_THIS_CALL = ("run_dir", "jobs", "from_rows", "keep_rows")
"""Options that say how a study is run, and not what it is."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page and of docs/."""

    name: str
    """Of its file."""
    draw: Callable[[], Figure]
    caption: str = ""
    in_docs: bool = True
    """Whether docs/studies/STUDY/NAME.png is written, too."""


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it."""

    heading: str
    text: str = ""
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Study(ABC):
    """Options that every study has; each adds its own, with defaults that are the full grid.

    A study has no training code: `stages` says which cells there are, `report` what their rows say.
    """

    name: ClassVar[str]
    """On the command line; its folder is experiments/NAME, `-` being `_`."""
    question: ClassVar[str]
    """What it asks, in a line."""
    page: ClassVar[str | None] = None
    """The page of docs/ whose marked tables are made from the rows, such as reuse.md."""

    quick: bool = False
    """Another set of defaults, which proves in minutes that the study runs and means nothing."""
    jobs: int | None = None
    """Processes; default: one for each processor, or 1 with servers, a mesh or a given model."""
    run_dir: Path | None = None
    """Where everything is written; default: runs/NAME. Cells that it has are not measured again."""
    from_rows: bool = False
    """Measure nothing: make the page, and the tables and figures of docs/, from the committed
    rows."""
    keep_rows: bool = False
    """When all is measured, put the rows where they are committed."""
    steps: int = 120
    """Steps of a run."""
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    """Seeds that figures are of; nothing is chosen on them."""
    tuning_seeds: tuple[int, ...] = (20, 21)
    """Seeds that settings are chosen on."""
    base: TrainConfig = field(default_factory=TrainConfig)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        require(self.jobs is None or self.jobs > 0, f"jobs is {self.jobs}: give at least 1")
        require(self.steps > 0, f"steps is {self.steps}: give at least 1")
        require(len(self.seeds) > 0, "seeds is empty: give at least one")
        both = set(self.seeds) & set(self.tuning_seeds)
        require(not both, f"seeds {sorted(both)} are in --seeds and --tuning-seeds: part them")
        require(
            not (self.quick and (self.from_rows or self.keep_rows)),
            "--quick measures too little to be kept: leave out --quick or --from-rows, --keep-rows",
        )
        own = {"base.run-dir": self.base.run_dir, "base.seed": self.base.seed}
        remedies = {"base.run-dir": "--run-dir", "base.seed": "--seeds"}
        for option, value in own.items():
            require(not value, f"{option} is {value}: give {remedies[option]}")
        require(not self.base.goes_on, "base.resume is given: a study goes on in its --run-dir")
        steps = self.base.schedule.steps
        require(steps == Schedule().steps, f"base.schedule.steps is {steps}: give --steps")
        split = self.base.evaluation.split
        require(
            split == Evaluation().split,
            f"base.evaluation.split is {split}: cells have their own, leave it out",
        )
        shared = self.base.rollout.url or self.base.mesh != type(self.base.mesh)()
        require(
            not shared or self.jobs in (None, 1),
            f"jobs is {self.jobs}, but all cells share servers or devices: give --jobs 1",
        )

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """Functions from the rows so far to the cells of a stage, in their order."""

    @abstractmethod
    def report(self, rows: Rows) -> Sequence[Section]:
        """What the rows say; the page adds the command, versions, settings and failures."""

    def quickened(self) -> Self:
        """The defaults with --quick."""
        return replace(
            self,
            quick=True,
            steps=4,
            seeds=(10, 11),
            tuning_seeds=(20,),
            base=quick_base(self.base),
        )

    def configured(self, **changes: object) -> TrainConfig:
        """The base with the study's steps and six evaluations, and what else differs."""
        every = max(self.steps // 6, 1)
        schedule = replace(self.base.schedule, steps=self.steps, evaluate_every=every)
        return replace(self.base, **{"schedule": schedule, **changes})  # pyright: ignore

    @property
    def header(self) -> Row:
        """What is kept with the rows: the options that the grid was made by."""
        options = {k: v for k, v in to_json(self).items() if k not in OF_THIS_CALL}
        return {"study": self.name, "options": options, "command": self.command}

    @property
    def command(self) -> str:
        """The command with the options that are not as they would be."""
        return " ".join(["python -m experiments.run", self.name, *(["--quick"] * self.quick)])


def quick_base(base: TrainConfig) -> TrainConfig:
    """A small warm start and few held-out problems."""
    return replace(
        base,
        data=Data(train=400),
        warm_start=WarmStart(steps=60, problems=400, demonstrations=2),
        evaluation=replace(base.evaluation, prompts=16),
    )


def parse(kind: type[Study], options: Sequence[str]) -> Study:
    """The study that the options ask for; tyro answers unknown ones with the nearest names."""
    default = kind()
    quick = "--quick" in options
    return tyro.cli(
        kind,
        prog=f"python -m experiments.run {kind.name}",
        args=[*options],
        default=default.quickened() if quick else default,
        config=(tyro.conf.FlagCreatePairsOff,) if {"-h", "--help"} & {*options} else (),
    )


def of_header(kind: type[Study], header: Row, where: str) -> Study:
    """The study whose rows these are."""
    if header.get("study") != kind.name:
        raise ValueError(f"{where} has the rows of {header.get('study')!r}, not of {kind.name!r}")
    known = {each.name for each in fields(kind)}
    options = {name: value for name, value in header["options"].items() if name in known}
    return from_json(kind, options, where)


def typed() -> str:
    """The command as it was typed."""
    return " ".join(["python -m experiments.run", *sys.argv[1:]])
