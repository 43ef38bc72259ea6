"""Studies whose methods each get the learning rate that is best for them on validation problems."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from experiments.grid.cell import Cell, Watch
from experiments.grid.choose import Variant, chosen, report_cells, tuning_cells, with_rate
from experiments.grid.runner import Rows, Stage
from experiments.grid.study import Study
from ogrpo.config.method import check
from ogrpo.config.train import Evaluation, TrainConfig
from ogrpo.config.values import require
from ogrpo.setup.sources import check_sources


def brief() -> TrainConfig:
    """The default task with evaluations of 256 problems, four answers to each."""
    return TrainConfig(evaluation=Evaluation(prompts=256, samples=4))


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """A config with these options; those of a nested dataclass stand in a mapping of their own."""
    values = {
        name: changed(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(config, **values)


def joined(*changes: Mapping[str, Any]) -> dict[str, Any]:
    """Several changes in one; the later wins where two name the same option."""
    found: dict[str, Any] = {}
    for change in changes:
        for name, value in change.items():
            known = found.get(name, {})
            found[name] = joined(known, value) if isinstance(value, Mapping) else value
    return found


def accepted(config: TrainConfig, *changes: Mapping[str, Any]) -> TrainConfig:
    """The config with these changes, refused if one has no effect."""
    config = changed(config, joined(*changes))
    check_sources(config)
    check(config)
    return config


@dataclass(frozen=True)
class TunedStudy(Study):
    """A learning rate is chosen for every method at every place, then all are compared."""

    evaluations: ClassVar[int] = 4
    watch: ClassVar[Watch] = Watch()
    """What a row keeps of every step."""

    steps: int = 60
    """Steps of a run."""
    rates: tuple[float, ...] = (3e-4, 1e-3)
    """Learning rates that are tried, for every method alike."""
    base: TrainConfig = field(default_factory=brief)
    """Options of the trainer that hold for all cells, such as a model and servers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.rates) > 0, "rates is empty: give at least one")

    def quickened(self) -> Self:
        """The defaults with --quick: one rate."""
        return replace(super().quickened(), rates=self.rates[-1:])

    @abstractmethod
    def places(self) -> Sequence[Variant]:
        """Every method at every place, its learning rate open."""

    def place(
        self, label: str, coordinates: Mapping[str, float | str], *changes: Mapping[str, Any]
    ) -> Variant:
        """A method at a place: the base with these changes."""
        config = accepted(self.configured(), *changes)
        return Variant(label, config, coordinates, watch=self.watch)

    def variants(self) -> list[Variant]:
        """Every method at every place and rate."""
        return [with_rate(place, rate) for place in self.places() for rate in self.rates]

    def stages(self) -> Sequence[Stage]:
        """Learning rates are chosen, then methods compared."""
        return (self.tuning, self.comparing)

    def tuning(self, _: Rows, /) -> Sequence[Cell]:
        """The cells that learning rates are chosen on."""
        return tuning_cells(self.variants(), self.tuning_seeds)

    def comparing(self, rows: Rows) -> Sequence[Cell]:
        """The cells that figures are of."""
        return report_cells(chosen(rows, self.variants(), self.tuning_seeds), self.seeds)
