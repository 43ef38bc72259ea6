"""One GRPO update, side by side: ogrpo, Tunix and TRL on the same batch, each by its own code.

    python -m benchmarks.side_by_side.update
    python -m benchmarks.side_by_side.update --shapes A B:group=8 --systems ogrpo ogrpo:remat=full

What is compared, and with which settings of the peers, is in README.md beside this file.
"""

import dataclasses
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.rows import table
from benchmarks.side_by_side import harness
from benchmarks.side_by_side.update_cases import SHAPES, SYSTEMS, Shape, make_batch, product_flops
from ogrpo.setup.cache import cache_path

# Tunix is compiled by the same XLA as ogrpo.
SHARED = tuple(f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
PEERS = {
    "tunix": ("google-tunix==0.1.7", *SHARED),
    "trl": ("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"),
}
TOLERANCES = {"loss": 1e-4, "norm": 1e-4, "later": 1e-3}
"""Most of each of `differences`."""


@dataclass(frozen=True, kw_only=True)
class Options(harness.Common):
    """Measures one update of each system in fresh processes, in turn."""

    shapes: tuple[str, ...] = ("A", "B")
    """Of A to E, with fields changed by `A:group=8,prompt=32`. D needs about 12 GB, C 24."""
    systems: tuple[str, ...] = (
        "ogrpo",
        "tunix",
        "trl",
        "tunix:remat=decoder",
        "trl:checkpointing=false",
        "trl:head=completions",
        "trl:checkpointing=false,head=completions",
    )
    """Of ogrpo, tunix and trl, with settings changed alike; ratios are of the first."""
    updates: int = 3
    """Fewest timed updates."""
    warm_up: int = 2
    """Updates before them; the first compiles."""
    check: bool = True
    """First compare losses and gradient norms from shared weights; stop where they differ."""
    environments: Path = field(default_factory=lambda: cache_path() / "benchmarks")
    """Where the peers' virtual environments are kept."""


def main(options: Options) -> None:
    systems = {spec: harness.parse(spec, SYSTEMS) for spec in options.systems}
    shapes = {spec: harness.parse(spec, SHAPES)[1] for spec in options.shapes}
    pythons = {
        name: harness.python_with(options.environments, name, PEERS[name])
        if name in PEERS
        else sys.executable
        for name, _ in systems.values()
    }

    def measure(shape: Shape, folder: Path) -> harness.Figures:
        arrays: dict[str, Any] = make_batch(shape, seed=0)
        np.savez(folder / "batch.npz", **arrays)
        bench = Bench(options, shape, systems, pythons, folder)
        return {"checks": bench.check() if options.check else None, "runs": bench.rounds()}

    harness.measure_shapes(options, shapes, measure, REPORT)


@dataclass(frozen=True)
class Bench:
    """The measurements of one shape."""

    options: Options
    shape: Shape
    systems: dict[str, tuple[str, Any]]
    pythons: dict[str, str]
    folder: Path

    def rounds(self) -> harness.Runs:
        """The figures of each system, a round at a time."""
        options = self.options
        timing = {name: getattr(options, name) for name in ("seconds", "updates", "warm_up")}
        runs: harness.Runs = {spec: [] for spec in self.systems}
        for turn in range(options.rounds):
            rate = self.call(sys.executable, "products", None)["rate"]  # the machine's own
            for spec, (name, settings) in self.systems.items():
                figures = self.call(self.pythons[name], name, settings, **timing)
                needed = product_flops(self.shape, adapters=getattr(settings, "lora", 0) > 0)
                share = needed / rate / figures["cpu"]
                runs[spec].append({**figures, "rate": rate, "share": share})
                line = f"{figures['cpu']:.3f} CPU s an update, peak {figures['peak']:,.0f} MiB"
                print(f"round {turn + 1} {spec}: {line}", file=sys.stderr)
        return runs

    def check(self) -> harness.Figures:
        """Three updates of each system from the same weights; a ValueError where they differ."""
        weights = str(self.folder / "weights")
        self.call(sys.executable, "ogrpo", SYSTEMS["ogrpo"], save=weights)
        timing = {"seconds": 0.0, "updates": 1, "warm_up": 2}
        runs = {
            spec: self.call(self.pythons[name], name, settings, weights=weights, **timing)
            for spec, (name, settings) in self.systems.items()
        }
        ranks = {spec: getattr(settings, "lora", 0) for spec, (_, settings) in self.systems.items()}
        # The first system that trains the same parameters.
        alike = {spec: next(name for name in ranks if ranks[name] == ranks[spec]) for spec in runs}
        pairs = [(spec, first) for spec, first in alike.items() if spec != first]
        compared = {spec: differences(runs[first], runs[spec]) for spec, first in pairs}
        for spec, gaps in compared.items():
            print(f"check {spec}: {gaps}", file=sys.stderr)
            if not all(gaps[name] <= most for name, most in TOLERANCES.items()):  # nor is NaN
                raise ValueError(
                    f"{spec} does not compute what {alike[spec]} does: relative differences"
                    f" are {gaps}, at most {TOLERANCES} are allowed"
                )
        return {"runs": runs, "differences": compared}

    def call(self, python: str, name: str, settings: Any, **fields: Any) -> harness.Figures:
        """Returns the answer of a worker."""
        job = {
            "shape": dataclasses.asdict(self.shape),
            "settings": dataclasses.asdict(settings) if settings else {},
            **fields,
        }
        how = (f"update_{name}", python, job, self.folder, self.options.threads)
        with harness.Worker(*how) as worker:
            return worker.answer()


def differences(one: harness.Figures, other: harness.Figures) -> dict[str, float]:
    """Relative differences of the first update's loss and gradient norm, and of the last loss."""

    def gap(name: str, update: int) -> float:
        return abs(other[name][update] / one[name][update] - 1)

    return {"loss": gap("losses", 0), "norm": gap("norms", 0), "later": gap("losses", -1)}


def more(part: harness.Figures) -> list[str]:
    """Returns the machine's rate, and what the check of a shape found."""
    rates = [run["rate"] / 1e9 for run in next(iter(part["runs"].values()))]
    rate = f"Products at {harness.spread(rates)} Gflop a CPU-second."
    if part["checks"] is None:
        return ["", rate, "", "Losses and gradient norms were not compared."]
    first = next(iter(part["checks"]["runs"].values()))
    rows = [
        [spec, *(f"{gaps[key]:.1e}" for key in ("loss", "norm", "later"))]
        for spec, gaps in part["checks"]["differences"].items()
    ]
    return [
        "",
        rate,
        "",
        f"From shared weights: loss {first['losses'][0]:.6f}, gradient norm "
        f"{first['norms'][0]:.6f}, loss of the third update {first['losses'][-1]:.6f}; relative "
        "differences:",
        "",
        *table(["system", "loss", "gradient norm", "loss of the third update"], rows),
    ]


COLUMNS: harness.Columns = {
    "CPU s": lambda run: run["cpu"],
    "wall s": lambda run: run["wall"],
    "peak MiB": lambda run: run["peak"],
    "peak - imports MiB": lambda run: run["peak"] - run["imports"],
    "timed peak - imports MiB": lambda run: run["timed_peak"] - run["imports"],
}
REPORT = harness.Report(
    title="One GRPO update, side by side",
    note="Medians over rounds (least to greatest). CPU and wall seconds are of one update; the peak"
    " of resident memory is of the process, compilation included; the timed peak is that of"
    " the timed updates alone. The limit is what the products that an update cannot do without"
    " take at the rate of a bare product, measured in the same round.",
    figures={**COLUMNS, "share of the product limit": lambda run: run["share"]},
    ratios=COLUMNS,
    more=more,
)

if __name__ == "__main__":
    main(tyro.cli(Options))
