"""What a study is: options, a grid in stages, and what its rows say."""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

import tyro
from matplotlib.figure import Figure

from experiments.grid.rows import Row
from experiments.grid.runner import Rows, Stage
from experiments.grid.tables import Table
from experiments.grid.verdicts import Claim
from ogrpo.cli.options import make_preset
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Evaluation, TrainConfig, WarmStart
from ogrpo.config.values import from_json, require, to_json
from ogrpo.setup.presets import check_preset

OF_THIS_CALL = ("run_dir", "jobs", "cluster", "from_rows", "keep_rows")
"""Options that say how a study is run, and not what it is."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page, and of docs/ where the study's page there shows it."""

    name: str
    """Of its file."""
    draw: Callable[[], Figure]
    caption: str = ""


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
    pages: ClassVar[tuple[str, ...]] = ()
    """Pages of docs/ whose marked tables are made from the rows, such as reuse.md."""
    evaluations: ClassVar[int] = 6
    """In a run, after the one before its first step."""
    claims: ClassVar[Sequence[Claim]] = ()
    """What the rows decide (`experiments.grid.verdicts`)."""

    quick: bool = False
    """Another set of defaults, which proves in minutes that the study runs and means nothing."""
    jobs: int | None = None
    """Processes; default: one for each processor, or 1 with servers, a mesh or a given model."""
    cluster: str | None = None
    """Address of a Dask scheduler, such as tcp://host:8786: its workers measure the cells, and see
    the run's folder."""
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
            not shared or (self.jobs in (None, 1) and self.cluster is None),
            f"jobs is {self.jobs}, but all cells share servers or devices: give --jobs 1 and no"
            " --cluster",
        )

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """Functions from the rows so far to the cells of a stage, in their order."""

    @abstractmethod
    def report(self, rows: Rows) -> Sequence[Section]:
        """What the rows say; the page adds the command, versions, settings and failures."""

    def broken(self, _rows: Rows) -> Sequence[str]:
        """What the rows refute that must hold; the command then ends with 1."""
        return ()

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
        """The base with the study's steps and evaluations, and what else differs."""
        every = self.evaluate_every(self.steps)
        schedule = replace(self.base.schedule, steps=self.steps, evaluate_every=every)
        return replace(self.base, **{"schedule": schedule, **changes})  # pyright: ignore

    @classmethod
    def evaluate_every(cls, steps: int) -> int:
        """Steps between two evaluations of a run of so many."""
        return max(steps // cls.evaluations, 1)

    @property
    def header(self) -> Row:
        """What is kept with the rows: the options that the grid was made by."""
        options = {k: v for k, v in to_json(self).items() if k not in OF_THIS_CALL}
        return {"study": self.name, "options": options, "command": self.command}

    @property
    def command(self) -> str:
        """The command with the options that are not as they would be."""
        return " ".join(["python -m experiments.run", self.name, *(["--quick"] * self.quick)])


def require_known(option: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses names that a study does not have.

    Raises:
      ValueError: with the name and those that there are.
    """
    names = [*known]
    for name in given:
        require(name in names, f"{option} has {name!r}: choose among {'; '.join(names)}")


AnyStudy = TypeVar("AnyStudy", bound=Study)


def quick_base(base: TrainConfig) -> TrainConfig:
    """A small warm start where a model is made here, and few held-out problems."""
    few = replace(base, evaluation=replace(base.evaluation, prompts=16))
    if base.preset != "none":
        return few
    warm = WarmStart(steps=200, problems=2000, demonstrations=2, learning_rate=1e-2)
    return replace(few, data=Data(train=400), warm_start=warm)


def parse(kind: type[Study], options: Sequence[str]) -> Study:
    """The study that the options ask for; tyro answers unknown ones with the nearest names.

    Raises:
      ValueError: a preset is unknown, or needs a model or data that is not given.
      SystemExit: after --help, and after an option that is unknown.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--quick", action="store_true")
    early.add_argument("--base.preset", dest="preset", default="none")
    known, _ = early.parse_known_args(options)
    default = with_preset(kind(), known.preset)
    study = tyro.cli(
        kind,
        prog=f"python -m experiments.run {kind.name}",
        args=[*options],
        default=default.quickened() if known.quick else default,
        config=(tyro.conf.FlagCreatePairsOff,) if {"-h", "--help"} & {*options} else (),
    )
    check_preset(study.base)
    return study


def with_preset(study: AnyStudy, name: str) -> AnyStudy:
    """A study whose base and steps are a preset's, where one is named."""
    if name == "none":
        return study
    base = make_preset(name)
    schedule = replace(base.schedule, steps=Schedule().steps)
    return replace(study, steps=base.schedule.steps, base=replace(base, schedule=schedule))


def of_header(kind: type[AnyStudy], header: Row, where: str) -> AnyStudy:
    """The study whose rows these are; options that there are no more are left out.

    Raises:
      ValueError: the rows are another study's, or an option has a value that it cannot have.
    """
    if header.get("study") != kind.name:
        raise ValueError(f"{where} has the rows of {header.get('study')!r}, not of {kind.name!r}")
    return from_json(kind, _known(kind, header["options"]), where)


def _known(kind: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {
        name: _known(hints[name], value) if is_dataclass(hints[name]) else value
        for name, value in values.items()
        if name in hints
    }
