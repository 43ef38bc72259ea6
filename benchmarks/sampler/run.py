"""The embedded sampler beside `generate` of transformers and vLLM's CPU back end, on the same work.

    python -m benchmarks.sampler.run
    python -m benchmarks.sampler.run --shapes tiny 0.5b:tokens=32 --engines ogrpo vllm

What is compared, and with which settings of the peers, is in README.md beside this file.
"""

import dataclasses
import hashlib
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from benchmarks.sampler.cases import EOS, SHAPES, Shape, decoder_of, make_weights
from benchmarks.sampler.processes import Engine
from benchmarks.sampler.report import report
from benchmarks.side_by_side import Common, Found, made, measure_shapes, parse, python_with
from ogrpo.policy import save_pretrained

HERE = Path(__file__).resolve().parent
TRANSFORMERS = ("torch==2.13.0", "transformers==5.23.0")
# The environment of the tests against real servers (tests/server/run.sh), which is shared.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ogrpo"
VLLM = HERE.parents[1] / "tests" / "server" / "requirements.txt"
SETTINGS = {
    "ogrpo": {"plain": False},
    "ogrpo-plain": {"plain": True},
    "transformers": {},
    "vllm": {"eager": False},
    "vllm-eager": {"eager": True},
}


@dataclass(frozen=True, kw_only=True)
class Options(Common):
    """Draws the same batches by each engine in turn, round after round."""

    shapes: tuple[str, ...] = ("tiny", "tiny-ragged", "0.5b", "0.5b-ragged", "0.5b-bfloat16")
    """Of `cases.py`, with fields changed by `tiny:tokens=64,ends=0.1`."""
    engines: tuple[str, ...] = ("ogrpo", "transformers", "vllm")
    """Of ogrpo, ogrpo-plain, transformers, vllm and vllm-eager; ratios are of the first."""
    warm_up: int = 3
    """Batches before the first round."""
    together: bool = True
    """All engines are loaded at once; otherwise each round starts and warms up each engine anew,
    which takes the memory of one and more time."""
    environments: Path = CACHE
    """Where the peers' virtual environments are kept."""


def main(options: Options) -> None:
    unknown = sorted(set(options.engines) - set(SETTINGS))
    if unknown:
        raise ValueError(f"there is no engine {unknown[0]!r}: choose {', '.join(SETTINGS)}")
    shapes = {spec: parse(spec, SHAPES)[1] for spec in options.shapes}
    pythons = {
        name: find_python(name.split("-")[0], options.environments) for name in options.engines
    }

    def measure(shape: Shape, folder: Path) -> Found:
        return {"runs": Bench(options, pythons, write_model(folder, shape)).rounds()}

    measure_shapes(options, shapes, measure, report)


def find_python(engine: str, folder: Path) -> str:
    """Returns the interpreter of an engine; a peer's environment is made if it is not there."""
    if engine == "ogrpo":
        return sys.executable
    if engine == "transformers":
        return python_with(folder, engine, TRANSFORMERS)
    base = os.environ.get("OGRPO_VLLM_BASE", "python3.11")
    packages = ("--no-deps", "--require-hashes", "-r", str(VLLM))
    return made(folder, "vllm", hashlib.sha256(VLLM.read_bytes()).hexdigest(), base, packages)


def write_model(folder: Path, shape: Shape) -> dict[str, Any]:
    """Saves the weights; returns the job that every engine gets."""
    config = decoder_of(shape)
    save_pretrained(
        folder, config, make_weights(shape, config, seed=0), extra_fields={"eos_token_id": EOS}
    )
    return {
        "folder": str(folder),
        "shape": dataclasses.asdict(shape),
        "vocabulary": config.vocab_size,
        "eos": EOS,
    }


@dataclass(frozen=True)
class Bench:
    """The measurements of one shape."""

    options: Options
    pythons: dict[str, str]
    job: dict[str, Any]

    def rounds(self) -> dict[str, list[dict[str, Any]]]:
        """The figures of each engine, a round at a time."""
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in self.pythons}
        with ExitStack() as stack:
            engines = {n: self.start(n, stack) for n in runs} if self.options.together else {}
            for turn in range(self.options.rounds):
                for name, of in runs.items():
                    of.append(self.measure(engines.get(name), name, seed=1000 * (turn + 1)))
        return runs

    def measure(self, engine: Engine | None, name: str, seed: int) -> dict[str, Any]:
        with ExitStack() as stack:
            engine = engine or self.start(name, stack)
            drawn = engine.draw(self.options.seconds, seed, self.job["shape"]["tokens"])
        rate = drawn["tokens"] / drawn["cpu"]
        print(f"{name}: {drawn['calls']} batches, {rate:,.0f} tokens/CPU-s", file=sys.stderr)
        return {**drawn, "versions": engine.versions}

    def start(self, name: str, stack: ExitStack) -> Engine:
        options = self.options
        job = {**self.job, "settings": SETTINGS[name], "threads": options.threads}
        worker = HERE / f"{name.split('-')[0]}_worker.py"
        engine = Engine.start(
            [self.pythons[name], str(worker), json.dumps(job)],
            environment(options.threads),
            options.threads,
            Path(self.job["folder"]) / f"{name}.log",
        )
        stack.callback(engine.stop)
        most = self.job["shape"]["warm"] or self.job["shape"]["tokens"]
        for seed in range(options.warm_up):
            engine.draw(0.0, seed, most)
        return engine


def environment(threads: int) -> dict[str, str]:
    """The fewest variables that let each engine use exactly so many CPUs, and no network."""
    return {
        "JAX_PLATFORMS": "cpu",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0))[:threads])),
        "VLLM_NO_USAGE_STATS": "1",
    }


if __name__ == "__main__":
    main(tyro.cli(Options))
