"""A cell of a grid: a method, a setting and a seed, with a hash of what decides its row."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ogrpo.config.train import Logs, TrainConfig
from ogrpo.system.values import require
from ogrpo.tasks.arithmetic import TEACHER

FORMAT = 1
"""Version of what a measurement leaves; another number makes every cell anew."""
TRAIN = "experiments.grid.train:train_cell"
ADDED: Mapping[str, Any] = {
    **dict.fromkeys(("TrainConfig.push_to_hub", "WarmStart.seed", "Schedule.draw")),
    "Evaluation.batch": None,
    **dict.fromkeys(("Override.bonus", "Override.whiten")),
    **dict.fromkeys(("Knobs.cov_low", "Knobs.cov_high", "Knobs.k3_limit", "Knobs.top_share")),
    "Knobs.entropy_coef": None,
    "TrainConfig.logs": Logs(),
    "Rollout.keep_sampling_mask": False,
    "WarmStart.retrain": False,
    "Certification.pairs": False,
    "Replay.refuse_failures": False,
    "TrainConfig.track": (),
    "Evaluation.token_samples": 8,
    "Override.centering": 0,
    "Rollout.top_k": 0,
    "Rollout.top_p": 1.0,
    "Rollout.min_p": 0.0,
}
"""Options that the trainer did not have at first, each by its class, with values that leave a
cell's key as it was: cells that were measured before are found."""
GONE: Mapping[str, Mapping[str, Any]] = {
    "Rollout": {"push": "merged"},
    "Replay": {"log_prob_dtype": "float32"},
    "Optimizer": {"offload": False},
    "WarmStart": {"teacher": vars(TEACHER)},
}
"""Options that the trainer had when cells were measured, by their class, with the values that those
cells had: their keys stay as they were."""
FRESH_SEEDS = 5
"""Fewest seeds that a reported figure may rest on."""

Role = Literal["tuning", "report", "pilot", "exact"]
Coordinates = Mapping[str, float | str]
SIGNALS = (
    *("reward", "zero_variance", "truncated", "tokens/completion", "entropy", "kl/pi_mu"),
    *("kl/pi_ref", "ess", "ratio/tail", "chi_square", "clipped", "grad_norm", "staleness"),
)


@dataclass(frozen=True)
class Watch:
    """Signals that a row keeps of every step."""

    signals: tuple[str, ...] = SIGNALS
    """Names of metrics.jsonl, and tokens/completion; those that a run lacks are left out."""
    points: int = 60
    """Means over equal stretches of steps, at most so many."""

    def __post_init__(self) -> None:
        if self.points <= 0:
            raise ValueError(f"watch.points is {self.points}: give at least 1")


@dataclass(frozen=True)
class Cell:
    """One measurement, and its place in the study.

    `label`, `role`, `coordinates` and `setting` say what it is for; `config`, `measure` and `watch`
    decide what comes out, and they alone are hashed.
    """

    label: str
    """The method's name in tables and legends."""
    role: Role
    """`tuning`: a setting is chosen by it, on validation problems; `report`: figures are of it, on
    other problems and seeds; `pilot`: neither; `exact`: nothing in it is random."""
    config: Any
    """The whole `TrainConfig`, or another frozen dataclass that `measure` takes."""
    coordinates: Coordinates = field(default_factory=dict)
    """Its place in the study's plane: sync_interval=20, flips=.1."""
    setting: Coordinates = field(default_factory=dict)
    """Its values of what tuning chooses: rate=5e-4."""
    measure: str = TRAIN
    """MODULE:NAME of `(cell, bench) -> mapping of JSON values`."""
    watch: Watch = field(default_factory=Watch)

    @property
    def key(self) -> str:
        """The hash of the options that decide the row; files that they name count by their path."""
        decides = {
            "format": FORMAT,
            "measure": self.measure,
            "config": plain_config(self.config),
            "watch": plain_config(self.watch) if self.measure == TRAIN else None,
        }
        return hashlib.sha256(canonical(decides).encode()).hexdigest()[:32]

    @property
    def seed(self) -> int:
        """The seed of the config, or of the run that it is of; 0 where it has none."""
        return getattr(getattr(self.config, "train", self.config), "seed", 0)

    def __str__(self) -> str:
        pairs = {**self.coordinates, **self.setting, "seed": self.seed}
        place = " ".join(f"{name}={short(value)}" for name, value in pairs.items())
        return f"{self.label} {place} ({self.role})"


def short(value: float | str) -> str:
    """Returns a number as one writes it, a text as it is."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain_config(config: Any) -> Any:
    """Returns all of a dataclass of options as JSON values, but for `ADDED` ones at their values.

    Raises:
      ValueError: it holds an object whose content a hash cannot see, such as an `Algorithm`.
    """
    if dataclasses.is_dataclass(config):
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        group = type(config).__name__
        kept = {
            name: plain_config(value)
            for name, value in values.items()
            if ADDED.get(f"{group}.{name}", dataclasses.MISSING) != value
        }
        return {**kept, **GONE.get(group, {})}
    if isinstance(config, Mapping):
        return {str(name): plain_config(value) for name, value in config.items()}
    if isinstance(config, list | tuple):
        return [plain_config(value) for value in config]
    if isinstance(config, Path):
        return str(config)
    if config is None or isinstance(config, bool | int | float | str):
        return config
    raise ValueError(
        f"a cell's config holds {config!r:.80}: give numbers, texts and dataclasses, and an"
        " algorithm by its name in ogrpo.ALGORITHMS"
    )


def canonical(value: Any) -> str:
    """Returns one text for equal JSON values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Returns nested options by their names on the command line."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        place = prefix + name.replace("_", "-")
        options |= flat(value, f"{place}.") if isinstance(value, Mapping) else {place: value}
    return options


def changes(config: Any, base: Any) -> dict[str, Any]:
    """Returns the options in which a cell differs from its base; all where the kinds differ."""
    mine = flat(plain_config(config))
    if type(config) is not type(base):
        return mine
    other = flat(plain_config(base))
    return {name: value for name, value in mine.items() if value != other.get(name)}


def check_honest(cells: Sequence[Cell], *, quick: bool) -> None:
    """Refuses a grid whose figures are of what settings were chosen on, or of too few seeds.

    Raises:
      ValueError: a seed or a split of problems serves both, a method is reported from fewer than
        five seeds, or methods were given different numbers of settings to choose from.
    """
    from ogrpo.setup.find_task import check_sources  # JAX, which no process of the grid needs

    tuning, final = ([c for c in cells if c.role == role] for role in ("tuning", "report"))
    both = {c.seed for c in tuning} & {c.seed for c in final}
    require(not both, f"seeds {sorted(both)} are both for tuning and for the report: part them")
    for cell in (*tuning, *final):
        if isinstance(cell.config, TrainConfig) and tuning:
            check_sources(cell.config)  # a task without splits would hold out the same for both
            expected = "validation" if cell.role == "tuning" else "test"
            split = cell.config.evaluation.split
            require(
                split == expected, f"{cell} is evaluated on the split {split!r}: use {expected!r}"
            )
    if not quick:
        for place, group in by_place(final).items():
            seeds = {c.seed for c in group}
            require(
                len(seeds) >= FRESH_SEEDS,
                f"{place_name(place)} is reported from {len(seeds)} seeds: give at least"
                f" {FRESH_SEEDS}",
            )
    tried = {
        place: len({canonical(dict(c.setting)) for c in g}) for place, g in by_place(tuning).items()
    }
    if len(set(tried.values())) > 1:
        least, most = (pick(tried, key=lambda place: tried[place]) for pick in (min, max))
        raise ValueError(
            f"{place_name(least)} chooses among {tried[least]} settings and {place_name(most)}"
            f" among {tried[most]}: give every method as many"
        )


Place = tuple[str, str]
"""A method and its coordinates, in canonical JSON."""


def place_of(label: str, coordinates: Coordinates) -> Place:
    """Returns the place that rows of several seeds share."""
    return label, canonical(dict(coordinates))


def place_name(place: Place) -> str:
    """Returns a method with its coordinates, for people."""
    pairs = [f"{name}={short(value)}" for name, value in json.loads(place[1]).items()]
    return " ".join([place[0], *pairs])


def by_place(cells: Iterable[Cell]) -> dict[Place, list[Cell]]:
    """Returns cells by method and coordinates, in their order."""
    places: dict[Place, list[Cell]] = {}
    for cell in cells:
        places.setdefault(place_of(cell.label, cell.coordinates), []).append(cell)
    return places
