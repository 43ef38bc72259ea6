"""Studies: frozen dataclasses whose fields are options, whose class says what is compared.

A study has no training code: `stages` says which cells there are, `report` what their rows say.
"""

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_type_hints

import tyro

from experiments.grid.cell import FRESH_SEEDS, TRAIN, Cell, Watch
from experiments.grid.columns import Column, notes
from experiments.grid.figures import curves
from experiments.grid.rows import SCORE, Row, Rows, of_labels, reported, where
from experiments.grid.tables import Heads, Section, by_value, scores_at, summary
from experiments.grid.variants import Changes, Variant, accepted, best_variants, brief, cells_of
from experiments.grid.verdicts import Claim
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, TrainConfig, WarmStart
from ogrpo.setup.presets import check_preset, make_preset
from ogrpo.system.values import (
    INERT,
    Conditions,
    Count,
    OptionalCount,
    check,
    check_conditions,
    from_json,
    require,
    to_json,
)

Stage = Callable[[Rows], Sequence[Cell]]
"""The cells of a stage, from the rows of the stages before it."""
OF_THIS_CALL = ("run_dir", "jobs", "cluster", "from_rows")
"""Options that say how a study is run, and not what it is."""
NOT_OF_CELLS: Conditions = tuple(
    (options, lambda _: False, remedy)
    for options, remedy in {
        "run-dir": "give --run-dir",
        "resume resume-from": "a study goes on in its --run-dir",
        "seed": "give --seeds",
        "schedule.steps": "give --steps",
        "schedule.evaluate-every": "a study says how often its runs are evaluated",
        "evaluation.split": "settings are chosen on one split and compared on another",
        "track push-to-hub strict stop-when-worse": "a cell leaves a row and no run, leave it out",
    }.items()
)
"""Options of the base that no cell has from it, with what to do instead."""
INTERVALS = (
    "Seeds and problems are ones that nothing was chosen on; mean and 95 % t-interval over seeds."
)


@dataclass(frozen=True)
class Study(ABC):
    """Options that every study has; each adds its own, with defaults that are the full grid."""

    name: ClassVar[str]
    """Name on the command line; its folder is experiments/NAME, `-` being `_`."""
    question: ClassVar[str]
    """The question that it answers, in a line."""
    pages: ClassVar[tuple[str, ...]] = ()
    """Pages of docs/ whose marked tables are made from the rows, such as reuse.md."""
    measure: ClassVar[str] = SCORE
    """Score by which settings are chosen."""
    evaluations: ClassVar[int] = 6
    """Evaluations of a run after the one before its first step."""
    claims: ClassVar[Sequence[Claim]] = ()
    """Sentences that the rows decide (`experiments.grid.verdicts`)."""
    known: ClassVar[Mapping[str, Iterable[str]]] = {}
    """Option -> the names that it chooses among."""
    few: ClassVar[Mapping[str, Any]] = {}
    """Options as --quick has them, beside those of `quickened`."""

    quick: bool = False
    """Another set of defaults, which proves in minutes that the study runs and means nothing."""
    jobs: OptionalCount = None
    """Processes; default: one for each processor, or 1 with servers, a mesh or a given model."""
    cluster: str | None = None
    """Address of a Dask scheduler, such as tcp://host:8786: its workers measure the cells, and see
    the run's folder."""
    run_dir: Path | None = None
    """Where everything is written; default: runs/NAME. Cells that it has are not measured again."""
    from_rows: bool = False
    """Measure nothing: make the page, and the tables and figures of docs/, from the committed
    rows."""
    steps: Count = 120
    """Steps of a run."""
    seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    """Seeds that figures are of; nothing is chosen on them."""
    tuning_seeds: tuple[int, ...] = (20, 21)
    """Seeds that settings are chosen on."""
    base: TrainConfig = field(default_factory=TrainConfig)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        check(self)
        for option in fields(self):
            value, optional = getattr(self, option.name), option.name == "tuning_seeds"
            empty = value == () != option.default
            require(not empty or optional, f"{option.name} is empty: give at least one")
            twice = isinstance(value, tuple) and len({*value}) < len(value)
            require(not twice, f"{option.name} is {value}: give each once")
        both = set(self.seeds) & set(self.tuning_seeds)
        require(not both, f"seeds {sorted(both)} are in --seeds and --tuning-seeds: part them")
        require(
            self.quick or len(self.seeds) >= FRESH_SEEDS,
            f"seeds is {self.seeds}: figures are of at least {FRESH_SEEDS}, or give --quick",
        )
        for option, names in self.known.items():
            for name in getattr(self, option):
                message = f"{option} has {name!r}: choose among {'; '.join(names)}"
                require(name in names, message)
        require(
            not (self.quick and self.from_rows),
            "--quick measures too little to be kept: leave out --quick or --from-rows",
        )
        check_conditions(self.base, NOT_OF_CELLS, clause=INERT, prefix="base.")
        shared = self.base.rollout.url or self.base.mesh != type(self.base.mesh)()
        require(
            not shared or (self.jobs in (None, 1) and self.cluster is None),
            f"jobs is {self.jobs}, but all cells share servers or devices: give --jobs 1 and no"
            " --cluster",
        )

    @abstractmethod
    def stages(self) -> Sequence[Stage]:
        """Returns functions from the rows so far to the cells of a stage, in their order."""

    @abstractmethod
    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns what the rows say; the page adds command, versions, settings and failures."""

    def broken(self, _rows: Rows) -> Sequence[str]:
        """Returns what must hold and the rows refute; the command then ends with 1."""
        return ()

    def quickened(self) -> Self:
        """Returns the defaults with --quick: a small warm start where a model is made here."""
        base = replace(self.base, evaluation=replace(self.base.evaluation, prompts=16))
        if base.preset == "none":
            warm = WarmStart(steps=200, problems=2000, demonstrations=2, learning_rate=1e-2)
            base = replace(base, data=Data(train=400), warm_start=warm)
        small = {"steps": 4, "seeds": (10, 11), "tuning_seeds": (20,), "base": base}
        return replace(self, quick=True, **{**small, **self.few})

    def configured(self, **changes: object) -> TrainConfig:
        """Returns the base with the study's steps and evaluations, and other changes."""
        every = self.evaluate_every(self.steps)
        schedule = replace(self.base.schedule, steps=self.steps, evaluate_every=every)
        return replace(self.base, **{"schedule": schedule, **changes})  # pyright: ignore

    @classmethod
    def evaluate_every(cls, steps: int) -> int:
        """Returns the steps between two evaluations of a run of so many."""
        return max(steps // cls.evaluations, 1)

    @property
    def header(self) -> Row:
        """The options that the grid was made by, which are kept with the rows."""
        options = {k: v for k, v in to_json(self).items() if k not in OF_THIS_CALL}
        return {"study": self.name, "options": options}


@dataclass(frozen=True)
class TunedStudy(Study):
    """A learning rate is chosen for every method at every place, then all are compared."""

    evaluations: ClassVar[int] = 4
    watch: ClassVar[Watch] = Watch()
    """Signals that a row keeps of every step."""
    measured_by: ClassVar[str] = TRAIN
    """The function that makes the rows of its cells."""

    steps: Count = 60
    """Steps of a run."""
    rates: tuple[float, ...] = (3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            bool(self.tuning_seeds) or len(self.rates) == 1,
            f"tuning-seeds is empty and rates is {self.rates}: give seeds, or one rate",
        )

    def quickened(self) -> Self:
        """Returns the defaults with --quick: one rate."""
        small = super().quickened()
        return small if "rates" in self.few else replace(small, rates=self.rates[-1:])

    @property
    def crossing(self) -> "Crossing":
        """Methods and the values of a coordinate; a study without one has `places` of its own."""
        raise NotImplementedError

    def places(self) -> Sequence[Variant]:
        """Returns every method at every place, its learning rate open."""
        return self.crossing.places(self)

    def place(
        self, label: str, coordinates: Mapping[str, float | str], *changes: Changes
    ) -> Variant:
        """Returns a method at a place: the base with these changes."""
        config = accepted(self.configured(), *changes)
        return Variant(label, config, coordinates, measure=self.measured_by, watch=self.watch)

    def variants(self) -> list[Variant]:
        """Returns every method at every place and rate."""
        return [place.with_rate(rate) for place in self.places() for rate in self.rates]

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then methods compared."""
        return (self.tuning, self.comparing)

    def tuning(self, _: Rows, /) -> Sequence[Cell]:
        """Returns the cells that learning rates are chosen on."""
        return cells_of(self.variants(), "tuning", self.tuning_seeds)

    def best(self, rows: Rows) -> list[Variant]:
        """Returns the methods at their best rates."""
        return best_variants(rows, self.variants(), self.tuning_seeds, self.measure)

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """Returns the cells that figures are of."""
        return cells_of(self.best(rows), "report", self.seeds)


class Crossing(NamedTuple):
    """Methods crossed with the values of one coordinate, as data."""

    methods: Sequence[str]
    options: Mapping[str, Changes]
    """Method -> the options that make it."""
    coordinate: str = ""
    values: Mapping[Any, Changes] = {None: {}}
    """Value of the coordinate -> the options that make it."""

    def places(self, study: TunedStudy) -> list[Variant]:
        """Returns every method at every value."""
        places = []
        for value, changes in self.values.items():
            at = {self.coordinate: value} if self.coordinate else {}
            places += [study.place(name, at, self.options[name], changes) for name in self.methods]
        return places

    def sections(
        self,
        rows: Rows,
        columns: Sequence[Column],
        heads: Heads,
        signals: Sequence[str],
        *,
        ending: str,
    ) -> list[Section]:
        """Returns where methods end at each value, the whole table, and curves at each value.

        Args:
          columns: of the whole table, after method and setting.
          heads: heading of each value.
          signals: that curves are drawn of.
          ending: what is said of the final scores.
        """
        final_rows = of_labels(reported(rows), self.methods)
        ends = scores_at(final_rows, self.methods, self.coordinate, heads)
        order = by_value(self.coordinate, self.methods)
        text = "Seeds thin, a band of 95 %."
        return [
            Section("Where each method ends", f"{ending} {INTERVALS}", [ends]),
            Section("All of it", notes(columns), [summary(rows, columns, order=order)]),
            *(
                Section(f"Curves, {head}", text, (), curves(here, signals, head.replace(" ", "-")))
                for value, head in heads.items()
                if (here := where(final_rows, **{self.coordinate: value}))
            ),
        ]


def intervals(values: Iterable[int]) -> dict[int, Changes]:
    """Returns sync interval -> the option that sets it."""
    return {v: {"schedule": {"sync_interval": v}} for v in values}


AnyStudy = TypeVar("AnyStudy", bound=Study)


def parse(kind: type[Study], options: Sequence[str]) -> Study:
    """Returns the study of these options; tyro answers unknown ones with the nearest names.

    Raises:
      ValueError: a preset is unknown, or needs a model or data that is not given.
      SystemExit: after --help, and after an option that is unknown.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    early.add_argument("--quick", action="store_true")
    early.add_argument("--base.preset", dest="preset", default="none")
    known, _ = early.parse_known_args(options)
    default = kind()
    if known.preset != "none":
        base, plain = make_preset(known.preset), Schedule()
        steps = base.schedule.steps  # these and the evaluations are the study's
        schedule = replace(base.schedule, steps=plain.steps, evaluate_every=plain.evaluate_every)
        default = replace(default, steps=steps, base=replace(base, schedule=schedule))
    study = tyro.cli(
        kind,
        prog=f"python -m experiments.run {kind.name}",
        args=[*options],
        default=default.quickened() if known.quick else default,
    )
    check_preset(study.base)
    return study


def of_header(kind: type[AnyStudy], header: Row, where: str) -> AnyStudy:
    """Returns the study whose rows these are; options that there are no more are left out.

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
