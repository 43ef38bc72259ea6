"""Variants: a method at a place with one setting; which setting is best on the tuning rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from experiments.grid.cell import TRAIN, Cell, Coordinates, Place, Role, Watch, place_of
from experiments.grid.rows import SCORE, Rows, diverged, final
from ogrpo.config.method import check
from ogrpo.config.train import Evaluation, TrainConfig
from ogrpo.setup.find_task import check_sources

Changes = Mapping[str, Any]
"""Options by name; those of a nested dataclass stand in a mapping of their own."""


@dataclass(frozen=True)
class Variant:
    """A method at a place of the plane, with one setting of what is tuned: cells but for seeds."""

    label: str
    config: TrainConfig
    coordinates: Coordinates = field(default_factory=dict)
    setting: Coordinates = field(default_factory=dict)
    measure: str = TRAIN
    watch: Watch = field(default_factory=Watch)

    @property
    def place(self) -> Place:
        """The method and its coordinates."""
        return place_of(self.label, self.coordinates)

    def cell(self, role: Role, seed: int) -> Cell:
        """Returns the cell of this seed; a report is made on other problems than a choice."""
        split = "test" if role == "report" else "validation"
        evaluation = replace(self.config.evaluation, split=split)
        config = replace(self.config, seed=seed, evaluation=evaluation)
        place = (self.coordinates, self.setting)
        return Cell(self.label, role, config, *place, self.measure, self.watch)

    def with_rate(self, rate: float) -> "Variant":
        """Returns the variant with a learning rate, which is a setting."""
        optimizer = replace(self.config.optimizer, learning_rate=rate)
        config = replace(self.config, optimizer=optimizer)
        return replace(self, config=config, setting={**self.setting, "rate": rate})


def cells_of(variants: Iterable[Variant], role: Role, seeds: Sequence[int]) -> list[Cell]:
    """Returns the cells of variants in a role, seed after seed."""
    return [variant.cell(role, seed) for seed in seeds for variant in variants]


def best_variants(
    rows: Rows, variants: Sequence[Variant], seeds: Sequence[int], score: str = SCORE
) -> list[Variant]:
    """Returns for each method and place the variant with the highest mean score on tuning seeds.

    A setting with which a run diverged loses against any with which none did. A place that lacks a
    tuning cell is left out: its failed cells are listed, and tried again at the next start.
    """
    tuning = {row["key"]: row for row in rows if row["role"] == "tuning"}
    best: dict[Place, tuple[tuple[float, ...], Variant]] = {}
    missing: set[Place] = set()
    for variant in variants:
        keys = [variant.cell("tuning", seed).key for seed in seeds]
        if any(key not in tuning for key in keys):
            missing.add(variant.place)
            continue
        trials = [tuning[key] for key in keys]
        mean = float(np.mean([final(row, score) for row in trials])) if trials else -np.inf
        rank = (-sum(map(diverged, trials)), mean if np.isfinite(mean) else -np.inf)
        if variant.place not in best or rank > best[variant.place][0]:
            best[variant.place] = rank, variant
    return [variant for place, (_, variant) in best.items() if place not in missing]


def brief() -> TrainConfig:
    """Returns the default task with evaluations of 256 problems, four answers to each."""
    return TrainConfig(evaluation=Evaluation(prompts=256, samples=4))


def changed(config: Any, changes: Changes) -> Any:
    """Returns a config with these options."""
    values = {
        name: changed(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in changes.items()
    }
    return replace(config, **values)


def joined(*changes: Changes) -> dict[str, Any]:
    """Returns several changes in one; the later wins where two name the same option."""
    options: dict[str, Any] = {}
    for change in changes:
        for name, value in change.items():
            earlier = options.get(name, {})
            options[name] = joined(earlier, value) if isinstance(value, Mapping) else value
    return options


def accepted(config: TrainConfig, *changes: Changes) -> TrainConfig:
    """Returns the config with these changes, refused if one has no effect."""
    config = changed(config, joined(*changes))
    check_sources(config)
    check(config)
    return config
