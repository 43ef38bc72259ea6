"""One GRPO update, side by side: ogrpo, Tunix and TRL on the same batch, each by its own code.

    python -m benchmarks.update.run
    python -m benchmarks.update.run --shapes A B:group=8 --systems ogrpo ogrpo:remat=full tunix

What is compared, and with which settings of the peers, is in README.md beside this file.
"""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from benchmarks.side_by_side import Common, Found, measure_shapes, on_cpus, parse, python_with
from benchmarks.update.cases import SHAPES, SYSTEMS, Shape, make_batch, product_flops
from benchmarks.update.report import report
from ogrpo.setup.cache import cache_path

HERE = Path(__file__).resolve().parent
# Tunix is compiled by the same XLA as ogrpo.
SHARED = tuple(f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
PEERS = {
    "tunix": ("google-tunix==0.1.7", *SHARED),
    "trl": ("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"),
}
LOSS_TOLERANCE = 1e-4
LATER_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Measures one update of each system in fresh processes, in turn."""

    shapes: tuple[str, ...] = ("A", "B")
    """Of A to D, with fields changed by `A:group=8,prompt=32`. D needs about 12 GB, C 24."""
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
    systems = {spec: parse(spec, SYSTEMS) for spec in options.systems}
    shapes = {spec: parse(spec, SHAPES)[1] for spec in options.shapes}
    pythons = {
        name: python_with(options.environments, name, PEERS[name])
        if name in PEERS
        else sys.executable
        for name, _ in systems.values()
    }

    def measure(shape: Shape, folder: Path) -> Found:
        bench = Bench(options, shape, systems, pythons, folder)
        return {"checks": bench.check() if options.check else None, "runs": bench.rounds()}

    measure_shapes(options, shapes, measure, report)


@dataclass(frozen=True)
class Bench:
    """The measurements of one shape."""

    options: Options
    shape: Shape
    systems: dict[str, tuple[str, Any]]
    pythons: dict[str, str]
    folder: Path

    def rounds(self) -> dict[str, list[dict[str, Any]]]:
        """The figures of each system, a round at a time."""
        options = self.options
        timing = {name: getattr(options, name) for name in ("seconds", "updates", "warm_up")}
        runs: dict[str, list[dict[str, Any]]] = {spec: [] for spec in self.systems}
        for turn in range(options.rounds):
            job = self.job(next(iter(self.systems)), None)
            self.call(sys.executable, "products", job)  # the machine's own rate
            rate = json.loads(Path(job["result"]).read_text())["rate"]
            for spec, (_, settings) in self.systems.items():
                got = self.measure(spec, None, **timing)
                needed = product_flops(self.shape, adapters=getattr(settings, "lora", 0) > 0)
                runs[spec].append({**got, "rate": rate, "share": needed / rate / got["cpu"]})
                line = f"{got['cpu']:.3f} CPU s an update, peak {got['peak']:,.0f} MiB"
                print(f"round {turn + 1} {spec}: {line}", file=sys.stderr)
        return runs

    def check(self) -> dict[str, dict[str, Any]]:
        """Three updates of each system from the same weights; a ValueError where they differ."""
        weights = self.folder / "weights"
        self.call(sys.executable, "ogrpo", self.job("ogrpo", None), str(weights))
        runs = {
            spec: self.measure(spec, str(weights), seconds=0.0, updates=1, warm_up=2)
            for spec in self.systems
        }
        ranks = {name: getattr(settings, "lora", 0) for name, (_, settings) in self.systems.items()}
        # The first system that trains the same parameters.
        alike = {spec: next(name for name in ranks if ranks[name] == ranks[spec]) for spec in runs}
        compared = {
            spec: differences(runs[first], runs[spec])
            for spec, first in alike.items()
            if spec != first
        }
        for spec, gaps in compared.items():
            print(f"check {spec}: {gaps}", file=sys.stderr)
            if max(gaps["loss"], gaps["norm"]) > LOSS_TOLERANCE or gaps["later"] > LATER_TOLERANCE:
                raise ValueError(
                    f"{spec} does not compute what {alike[spec]} does: relative differences"
                    f" are {gaps}, at most {LOSS_TOLERANCE} ({LATER_TOLERANCE} later) are allowed"
                )
        return {"runs": runs, "differences": compared}

    def measure(self, spec: str, weights: str | None, **timing: float) -> dict[str, Any]:
        name, _ = self.systems[spec]
        job = self.job(spec, weights, **timing)
        self.call(self.pythons[name], name, job)
        return json.loads(Path(job["result"]).read_text())

    def job(self, spec: str, weights: str | None, **timing: float) -> dict[str, Any]:
        batch, result = self.folder / "batch.npz", self.folder / "result.json"
        if not batch.exists():
            arrays: dict[str, Any] = make_batch(self.shape, seed=0)
            np.savez(batch, **arrays)
        result.unlink(missing_ok=True)
        settings = parse(spec, SYSTEMS)[1]
        return {
            "shape": dataclasses.asdict(self.shape),
            "settings": dataclasses.asdict(settings),
            "batch": str(batch),
            "weights": weights,
            "threads": self.options.threads,
            "result": str(result),
            **timing,
        }

    def call(self, python: str, name: str, job: dict[str, Any], *more: str) -> None:
        """Runs a worker on the first so many CPUs; shows what it said if it fails."""
        (self.folder / "job.json").write_text(json.dumps(job))
        threads = self.options.threads
        done = subprocess.run(
            [
                *on_cpus(threads),
                python,
                HERE / f"{name}_worker.py",
                self.folder / "job.json",
                *more,
            ],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed ({done.returncode}):\n{done.stderr[-4000:]}")


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    """Relative differences of the first update's loss and gradient norm, and of the last loss."""

    def gap(name: str, update: int) -> float:
        return abs(other[name][update] / one[name][update] - 1)

    return {"loss": gap("losses", 0), "norm": gap("norms", 0), "later": gap("losses", -1)}


if __name__ == "__main__":
    main(tyro.cli(Options))
