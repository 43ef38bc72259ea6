"""`reuse`: how many completions does reuse save, at equal final Pass@1?

Command: python -m experiments.run reuse
Hardware and time: two CPU cores; docs/reuse.md has the time and the figures.

Each method gets the same budget of completions and its own learning rate, the best of `rates` on
`tuning_seeds`; it is then judged on `fresh_seeds`, which nothing was chosen on. The baselines use
each group once and get the whole budget, and also `share` of it; every other method gets `share` of
it. One that ends where the better baseline with the whole budget ends has saved the rest.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.console import Console

from experiments.reuse.methods import BASELINES, METHODS
from experiments.reuse.report import best_rates, summary_table, warning_table, write_report
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.report.run_dir import RunDir
from ogrpo.trainer import LoopState, Parts, Schedule, start, train
from ogrpo.trainer.build import make_hypers_at, make_parts
from ogrpo.trainer.cache import keep_compiled_programs
from ogrpo.trainer.config import Evaluation, TrainConfig, WarmStart
from ogrpo.trainer.config_json import to_json
from ogrpo.trainer.config_update import require
from ogrpo.trainer.find_task import find_task
from ogrpo.trainer.model import make_model
from ogrpo.trainer.prepare import prepare
from ogrpo.trainer.presets import main_study

Record = dict[str, Any]
SIGNALS = ("entropy", "kl/pi_mu", "ess", "ratio/tail", "chi_square", "clipped", "grad_norm")


@dataclass(frozen=True)
class ReuseStudy:
    """Methods of reuse at equal budgets of completions."""

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    steps: int = 120
    """Steps of the baseline: batches of 16 prompts x 8 completions."""
    share: float = 0.5
    """Share of the baseline's completions that the others get."""
    rates: tuple[float, ...] = (2.5e-4, 5e-4, 1e-3)
    """Learning rates that are tried, for the baseline and the others alike."""
    tuning_seeds: tuple[int, ...] = (20, 21)
    """Seeds that the learning rate is chosen on."""
    fresh_seeds: tuple[int, ...] = (10, 11, 12, 13, 14)
    """Seeds that the figures are of."""
    prompts: int = 256
    """Held-out prompts of an evaluation."""
    run_dir: Path | None = None
    """Where everything is written; default: runs/reuse-<date>-<time>. A folder with rows of an
    earlier run is gone on with."""
    part: int = 0
    parts: int = 1
    """With several parts, this process does every so-manieth run; start one process a part, and
    then one without parts, which finds all rows there and reports."""
    warm_start: WarmStart = field(default_factory=WarmStart)

    def __post_init__(self) -> None:
        for name in self.methods:
            require(
                name in METHODS, f"there is no method {name!r}: choose among {', '.join(METHODS)}"
            )
        require(0 < self.share <= 1, f"share is {self.share}: give a share in (0, 1]")
        require(0 <= self.part < self.parts, f"part is {self.part} of {self.parts}: count from 0")
        both = set(self.tuning_seeds) & set(self.fresh_seeds)
        require(not both, f"seeds {sorted(both)} are both for tuning and fresh: keep them apart")


@dataclass(frozen=True)
class Trial:
    """One run of the study."""

    method: str
    steps: int
    rate: float
    seed: int

    @property
    def key(self) -> str:
        """Its name among the rows."""
        return f"{self.method}/{self.steps}/{self.rate:g}/{self.seed}"


def parse(options: Sequence[str]) -> ReuseStudy:
    """The options given; tyro answers unknown ones with the nearest names."""
    return tyro.cli(
        ReuseStudy,
        prog="python -m experiments.run reuse",
        args=[*options],
        config=(tyro.conf.FlagCreatePairsOff,),
    )


def budgets(wanted: ReuseStudy) -> list[tuple[str, int]]:
    """Methods with their steps, baselines with the whole budget and with the share."""
    few = round(wanted.steps * wanted.share)
    whole = [(name, wanted.steps) for name in BASELINES if name in wanted.methods]
    return list(dict.fromkeys(whole + [(name, few) for name in wanted.methods]))


def tuning(wanted: ReuseStudy) -> list[Trial]:
    """The runs that learning rates are chosen on."""
    return [
        Trial(method, steps, rate, seed)
        for seed in wanted.tuning_seeds
        for method, steps in budgets(wanted)
        for rate in wanted.rates
    ]


def judging(wanted: ReuseStudy, rows: Sequence[Record]) -> list[Trial]:
    """The runs that the figures are of, at the learning rates that did best in tuning."""
    rates = best_rates(rows)
    return [
        Trial(method, steps, rates[method, steps], seed)
        for seed in wanted.fresh_seeds
        for method, steps in budgets(wanted)
    ]


def trial_config(wanted: ReuseStudy, trial: Trial) -> TrainConfig:
    """The default task with this method."""
    base = main_study(
        seed=trial.seed,
        warm_start=wanted.warm_start,
        schedule=Schedule(steps=trial.steps, evaluate_every=max(trial.steps // 6, 1)),
        evaluation=Evaluation(split="validation", prompts=wanted.prompts),
    )
    config = METHODS[trial.method](base)
    return replace(config, optimizer=replace(config.optimizer, learning_rate=trial.rate))


class Bench:
    """Runs trials; what does not depend on seed and rate is compiled once a method."""

    def __init__(self, wanted: ReuseStudy, console: Console) -> None:
        self._wanted, self._console = wanted, console
        config = trial_config(wanted, Trial("on-policy", wanted.steps, wanted.rates[0], 0))
        self.prepared = prepare(config)
        self._parts: dict[str, Parts] = {}
        self._models: dict[int, Any] = {}

    def run(self, trial: Trial) -> Record:
        """The row of a trial."""
        config = trial_config(self._wanted, trial)
        decoder, params = self._model(config)
        if trial.method not in self._parts:
            self._parts[trial.method] = make_parts(config, self.prepared, decoder)
        parts = replace(
            self._parts[trial.method], hypers_at=make_hypers_at(config), seed=trial.seed
        )
        copied = jax.tree.map(lambda x: x.copy(), params)
        state = parts.init(copied)
        return {
            "trial": trial.key,
            "method": trial.method,
            "steps": trial.steps,
            "rate": trial.rate,
            "seed": trial.seed,
            "tuning": trial.seed in self._wanted.tuning_seeds,
            **follow(start(state, parts), parts, config.schedule),
        }

    def _model(self, config: TrainConfig) -> Any:
        if config.seed not in self._models:
            own = replace(self.prepared, config=config, lessons=find_task(config).lessons)
            self._models[config.seed] = make_model(own, self._console)
        return self._models[config.seed]


def follow(state: LoopState, parts: Parts, schedule: Schedule) -> Record:
    """What a run came to, and the signals on its way."""
    records = [record for _, record in train(state, parts, schedule)]
    curve = [r for r in records if r["pass@1/sampled"] is not None]
    return {
        "completions": records[-1]["completions"],
        "updates": records[-1]["updates"],
        "flops": records[-1]["flops/update"] + records[-1]["flops/rollout"],
        "pass@1": records[-1]["pass@1/sampled"],
        "greedy": records[-1]["pass@1/greedy"],
        "curve": [[r["completions"], r["pass@1/sampled"]] for r in curve],
        "seconds": sum(v for r in records for k, v in r.items() if k.startswith("seconds/")),
        **{name: [r.get(name) for r in records[1:]] for name in SIGNALS},
        "signal": [r.get("reuse/signal") for r in records[1:]],
    }


def run(wanted: ReuseStudy, console: Console) -> int:
    """Does what is missing of the study, and reports once all is there."""
    keep_compiled_programs()
    give_back_after_compiling()
    folder = open_folder(wanted)
    console.print(f"run directory {folder.path}", markup=False, soft_wrap=True)
    bench = Bench(wanted, console)
    with closing(bench.prepared):
        for stage in ("tuning", "judging"):
            done = {row["trial"] for row in read_rows(folder.path)}
            trials = (
                tuning(wanted) if stage == "tuning" else judging(wanted, rows_of(wanted, folder))
            )
            mine = trials[wanted.part :: wanted.parts]
            for n, trial in enumerate(mine):
                if trial.key not in done:
                    row = bench.run(trial)
                    write_row(folder.path, wanted.part, row)
                    console.print(f"{stage} {n + 1}/{len(mine)} {trial.key} {row['pass@1']:.3f}")
            if missing(wanted, folder, trials):
                console.print("other parts are not done yet: run this again when they are")
                return 0
    rows = rows_of(wanted, folder)
    console.print(summary_table(rows))
    console.print(warning_table(rows))
    write_report(folder, rows)
    return 0


def open_folder(wanted: ReuseStudy) -> RunDir:
    """The run's folder, new or with rows of an earlier run."""
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    path = wanted.run_dir or Path("runs") / f"reuse-{stamp}"
    if (path / "config.json").is_file():
        folder = RunDir(path)
        check_same(wanted, folder.read_config())
        return folder
    folder = RunDir.create(path)
    folder.write_config({"study": "reuse", **to_json(replace(wanted, run_dir=None))})
    return folder


def check_same(wanted: ReuseStudy, before: Record) -> None:
    """Refuses to mix rows that cannot be compared."""
    now = to_json(wanted)
    for name in ("prompts", "warm_start"):
        require(
            now[name] == before.get(name),
            f"{name} is {now[name]}, but the rows in {wanted.run_dir} are of {before.get(name)}: "
            "choose another --run-dir",
        )


def read_rows(path: Path) -> Iterator[Record]:
    """All rows of all parts."""
    for file in sorted(path.glob("rows-*.jsonl")):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def write_row(path: Path, part: int, row: Record) -> None:
    """Appends a row to its part's file."""
    rows = path / f"rows-{part}.jsonl"
    if rows.exists() and not (before := rows.read_bytes()).endswith(b"\n"):
        rows.write_bytes(before[: before.rfind(b"\n") + 1])  # a crash cut it off
    with rows.open("a") as file:
        file.write(json.dumps(row) + "\n")


def rows_of(wanted: ReuseStudy, folder: RunDir) -> list[Record]:
    """The rows of the methods that are wanted."""
    return [row for row in read_rows(folder.path) if row["method"] in wanted.methods]


def missing(wanted: ReuseStudy, folder: RunDir, trials: Sequence[Trial]) -> bool:
    """Whether another part still owes a row."""
    done = {row["trial"] for row in rows_of(wanted, folder)}
    return any(trial.key not in done for trial in trials)
