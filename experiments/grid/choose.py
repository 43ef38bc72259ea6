"""Settings chosen on tuning rows: as many tried for every method, and the number kept."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from experiments.grid.cell import Cell, Coordinates, Place, Role, Watch, canonical, place_of
from experiments.grid.rows import Row
from ogrpo.config.train import TrainConfig

SCORE = "pass@1/sampled"


@dataclass(frozen=True)
class Variant:
    """A method at a place of the plane, with one setting of what is tuned: cells but for seeds."""

    label: str
    config: TrainConfig
    coordinates: Coordinates = field(default_factory=dict)
    setting: Coordinates = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)

    @property
    def place(self) -> Place:
        """The method and its coordinates."""
        return place_of(self.label, self.coordinates)

    def cell(self, role: Role, seed: int) -> Cell:
        """Its cell with this seed; a report is made on other problems than a choice."""
        split = "test" if role == "report" else "validation"
        evaluation = replace(self.config.evaluation, split=split)
        config = replace(self.config, seed=seed, evaluation=evaluation)
        return Cell(self.label, role, config, self.coordinates, self.setting, watch=self.watch)


def tuning_cells(variants: Iterable[Variant], seeds: Sequence[int]) -> list[Cell]:
    """What settings are chosen by, seed after seed."""
    return [variant.cell("tuning", seed) for seed in seeds for variant in variants]


def report_cells(variants: Iterable[Variant], seeds: Sequence[int]) -> list[Cell]:
    """What is told, seed after seed."""
    return [variant.cell("report", seed) for seed in seeds for variant in variants]


def with_rate(variant: Variant, rate: float) -> Variant:
    """The variant with a learning rate, which is a setting."""
    optimizer = replace(variant.config.optimizer, learning_rate=rate)
    setting = {**variant.setting, "rate": rate}
    return replace(variant, config=replace(variant.config, optimizer=optimizer), setting=setting)


def chosen(
    rows: Sequence[Row], variants: Sequence[Variant], seeds: Sequence[int], score: str = SCORE
) -> list[Variant]:
    """For each method and place the variant with the highest mean score over the tuning seeds.

    A setting with which a run diverged loses against any with which none did. A place that
    lacks a tuning cell is left out: its failed cells are told, and tried again at the next start.
    """
    found = {row["key"]: row for row in rows if row["role"] == "tuning"}
    best: dict[Place, tuple[tuple[float, ...], Variant]] = {}
    missing: set[Place] = set()
    for variant in variants:
        keys = [variant.cell("tuning", seed).key for seed in seeds]
        if any(key not in found for key in keys):
            missing.add(variant.place)
            continue
        trials = [found[key] for key in keys]
        rank = (-sum(map(diverged, trials)), mean([final(row, score) for row in trials]))
        if variant.place not in best or rank > best[variant.place][0]:
            best[variant.place] = rank, variant
    return [variant for place, (_, variant) in best.items() if place not in missing]


def diverged(row: Row) -> bool:
    """Whether a run ended because its updates were not finite."""
    return str(row.get("ended", "")).startswith("diverged")


def final(row: Row, name: str = SCORE) -> float:
    """A row's last value of a score or counter; NaN where it has none."""
    value = row["final"].get(name)
    return float("nan") if value is None else float(value)


def mean(values: Sequence[float]) -> float:
    """The mean; minus infinity where a value is none, so that it is not chosen."""
    found = float(np.mean(values)) if values else -np.inf
    return found if np.isfinite(found) else -np.inf


def tried(rows: Iterable[Row]) -> Mapping[Place, int]:
    """How many settings each method had to choose from."""
    settings: dict[Place, set[str]] = {}
    for row in rows:
        if row["role"] == "tuning":
            place = place_of(row["label"], row["coordinates"])
            settings.setdefault(place, set()).add(canonical(row["setting"]))
    return {place: len(found) for place, found in settings.items()}


def reported(rows: Iterable[Row]) -> list[Row]:
    """The rows that figures are of."""
    return [row for row in rows if row["role"] == "report"]


def of_labels(rows: Sequence[Row], labels: Sequence[str]) -> list[Row]:
    """The rows of these methods, in this order."""
    return [row for label in labels for row in rows if row["label"] == label]


def groups(rows: Iterable[Row]) -> dict[Place, list[Row]]:
    """Rows by method and coordinates, seeds in order."""
    found: dict[Place, list[Row]] = {}
    for row in rows:
        found.setdefault(place_of(row["label"], row["coordinates"]), []).append(row)
    return {place: sorted(them, key=lambda row: row["seed"]) for place, them in found.items()}


def by_seed(rows: Iterable[Row], score: str = SCORE) -> dict[int, float]:
    """A score by seed."""
    return {row["seed"]: final(row, score) for row in rows}
