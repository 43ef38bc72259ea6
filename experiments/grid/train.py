"""Trains a cell through the trainer's own parts, and makes its row.

What does not depend on seed, schedule and hyper-parameters is compiled once for all cells of the
same shapes; the warm start is made once a seed, whichever process comes first.
"""

import fcntl
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console

from experiments.grid.cell import Cell, Watch, canonical, plain_config
from experiments.grid.rows import rounded
from ogrpo.config.schedule import Reuse, Schedule
from ogrpo.config.train import Checkpointing, Logs, Replay, TrainConfig
from ogrpo.config.update import Knobs, Optimizer
from ogrpo.learner.memory import give_back_after_compiling
from ogrpo.learner.state import TrainState
from ogrpo.loop import DivergedError, Parts, start, train
from ogrpo.loop.parts import Record
from ogrpo.loop.state import LoopState
from ogrpo.report.run_dir import RunDir
from ogrpo.setup.build import find_devices, make_parts, make_spec
from ogrpo.setup.cache import cache_path, keep_compiled_programs
from ogrpo.setup.devices import Devices, open_mesh
from ogrpo.setup.find_task import find_task, is_generated
from ogrpo.setup.imitation import Demonstrations, warm_start_seed
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import Prepared, prepare
from ogrpo.setup.servers import connect

AXES = ("step", "updates", "completions", "tokens", "flops/rollout", "flops/update")
"""Counters of a record that curves are drawn against, beside seconds."""
WORK = ("seconds/rollout", "seconds/update", "seconds/sync")
COMPILING = "/jax/core/compile/"


class CompileClock:
    """Seconds that this process spent on making programs, so that curves are without them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith(COMPILING):
            self.seconds += duration_secs


class Bench:
    """Programs, problems and demonstrations that one process keeps from cell to cell."""

    def __init__(self, run_dir: Path, console: Console) -> None:
        keep_compiled_programs()
        give_back_after_compiling()
        self.run_dir, self.console, self.clock = run_dir, console, CompileClock()
        self._programs: OrderedDict[str, tuple[Devices, Parts]] = OrderedDict()
        """Parts that are compiled once for all cells of the same shapes, and where they lie."""
        self._prepared: dict[str, Prepared] = {}
        self._demos: dict[int, Demonstrations | None] = {}

    def close(self) -> None:
        """Ends the processes of the rewards."""
        for prepared in self._prepared.values():
            prepared.close()
        self._prepared.clear()

    def prepare(self, config: TrainConfig) -> Prepared:
        """Returns the task made ready; problems and tokenizer are made once for all seeds."""
        name = canonical(plain_config(replace(_without_method(config), logs=config.logs)))
        if name not in self._prepared:
            self.close()
            self._demos.clear()
            optimizer = replace(config.optimizer, learning_rate=None)  # each cell has its own
            self._prepared[name] = prepare(replace(config, optimizer=optimizer))
        known = self._prepared[name]
        settled = known.config
        rate = config.optimizer.learning_rate or settled.optimizer.learning_rate
        config = replace(
            config,
            data=replace(config.data, prompt_length=settled.data.prompt_length),
            rollout=replace(config.rollout, max_tokens=settled.rollout.max_tokens),
            optimizer=replace(config.optimizer, learning_rate=rate),
        )
        demos = known.demos
        if demos is not None and is_generated(config):  # a teacher's slips depend on the seed
            if config.seed not in self._demos:
                self._demos[config.seed] = find_task(config).demos
            demos = self._demos[config.seed]
        logged = known.logged and replace(known.logged, config=config)
        return replace(known, config=config, demos=demos, logged=logged)

    @contextmanager
    def parts(self, config: TrainConfig) -> Iterator[tuple[TrainConfig, Parts, Any]]:
        """Yields the settled config, the loop's parts and the first train state of a cell."""
        open_mesh(config.mesh)
        prepared = self.prepare(config)
        config = prepared.config
        with warm_start_lock(config):
            decoder, params = make_model(prepared, self.console)
        with ExitStack() as stack:
            name = program_of(config)
            known = self._programs.get(name)
            devices = known[0] if known else find_devices(config, decoder)
            engine = None
            if config.rollout.url:
                served = RunDir(self.run_dir / "served")
                served.path.mkdir(exist_ok=True)
                how = (config, served, decoder, params, prepared.tokenizer, self.console)
                engine = stack.enter_context(connect(*how))
            parts = make_parts(config, prepared, decoder, engine, devices=devices)
            if known:
                parts = sharing(parts, known[1], embedded=engine is None)
            else:
                while len(self._programs) > 1:
                    self._programs.popitem(last=False)
                self._programs[name] = devices, parts
            yield config, parts, parts.learner.init(devices.place_params(params))


def sharing(parts: Parts, known: Parts, *, embedded: bool) -> Parts:
    """Returns a cell's parts with the programs of an earlier one."""
    reset_optimizer = parts.learner.reset_optimizer
    parts = replace(parts, learner=replace(known.learner, reset_optimizer=reset_optimizer))
    if not embedded:
        return parts
    return replace(
        parts,
        collection=replace(parts.collection, engine=known.collection.engine),
        evaluator=replace(parts.evaluator, engine=known.evaluator.engine),
    )


def _without_method(config: TrainConfig) -> TrainConfig:
    """Returns what the problems, their tokens and their judges depend on."""
    return replace(
        _without_numbers(config),
        algorithm="off_policy_grpo",
        override=type(config.override)(),
        trust_region=type(config.trust_region)(),
        knobs=Knobs(),
        optimizer=Optimizer(),
        warm_start=config.warm_start,
        evaluation=config.evaluation,
    )


def _without_numbers(config: TrainConfig) -> TrainConfig:
    """Returns a config without what is no part of its programs: numbers, seeds, the schedule."""
    schedule, optimizer = config.schedule, config.optimizer
    plain = Optimizer()
    numbers = ("learning_rate", "warmup", "decay", "max_skipped")
    return replace(
        config,
        seed=0,
        preset="none",
        schedule=Schedule(prompts=schedule.prompts, sync_offset=schedule.sync_offset),
        replay=Replay(),
        logs=Logs(),
        reuse=Reuse(),
        knobs=config.knobs if config.trust_region.kind == "clip" else Knobs(),
        optimizer=replace(optimizer, **{name: getattr(plain, name) for name in numbers}),
        evaluation=replace(config.evaluation, split="test", prompts=512),
        warm_start=type(config.warm_start)(),
        checkpoint=Checkpointing(),
        certificate=type(config.certificate)(),
    )


def program_of(config: TrainConfig) -> str:
    """Returns what two configs share whose updates are one compiled program."""
    spec = make_spec(config, _no_policy)
    reads = [sorted(spec.reads), spec.mask_zero_variance]
    judged_alike = replace(config.reward, flip=0.0)  # the judge is each cell's own
    shared = _without_numbers(replace(config, reward=judged_alike))
    return canonical([plain_config(shared), reads])


def _no_policy(*_: Any) -> Any:
    raise AssertionError("an update is described here, and not run")


@contextmanager
def warm_start_lock(config: TrainConfig) -> Iterator[None]:
    """Holds off other grids that would make the same warm start: they wait, and then read it.

    The kernel lets go of the lock when a process ends, however it ends.
    """
    folder = cache_path() / "warm-start-locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"seed-{warm_start_seed(config)}").open("w") as file:
        if config.warm_start.cache:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


class TrainingRun(NamedTuple):
    """A run that has ended, whole or not."""

    records: list[Record]
    compiled: list[float]
    """Seconds of compiling within each record."""
    ended: str
    """`whole`, or `diverged: ...`."""
    state: LoopState | None


def train_run(parts: Parts, first: TrainState, clock: CompileClock) -> TrainingRun:
    """Trains to the end, or until updates are not finite."""
    records, compiled, state = [], [], None
    before = clock.seconds
    try:
        for turn in train(start(first, parts), parts):
            state, record = turn
            records.append(record)
            compiled.append(clock.seconds - before)
            before = clock.seconds
    except DivergedError as error:
        return TrainingRun(records, compiled, f"diverged: {error}", state)
    return TrainingRun(records, compiled, "whole", state)


def train_cell(cell: Cell, bench: Bench) -> Record:
    """Returns the row of a training run."""
    with bench.parts(cell.config) as (_, parts, first):
        run = train_run(parts, first, bench.clock)
    return row_of(run, cell.watch)


def row_of(run: TrainingRun, watch: Watch) -> Record:
    """Returns every axis and score at each evaluation, and signals on the way."""
    records = run.records
    axes = with_axes(records, run.compiled)
    scored = [i for i, r in enumerate(records) if r.get("pass@1/sampled") is not None]
    names = [k for k in records[0] if k.startswith("pass@")]
    noise = [name for name in ("grad_variance", "grad_snr") if name in records[-1]]
    last = scored[-1]
    return {
        "ended": run.ended,
        "evaluations": {
            **{name: [axes[i][name] for i in scored] for name in axes[0]},
            **{name: rounded([records[i].get(name) for i in scored]) for name in (*names, *noise)},
        },
        "steps": thinned(records[1:], axes, watch),
        "final": rounded({**axes[-1], **{name: records[last][name] for name in names}}),
        "temperature": records[0]["heldout/temperature"],
        "seconds/compiling": rounded(sum(run.compiled)),
        "seconds/evaluating": rounded(sum(r["seconds/eval"] for r in records)),
    }


def with_axes(records: list[Record], compiled: list[float]) -> list[Record]:
    """Returns each record's place on every axis; seconds without evaluation and compilation."""
    spent, axes = 0.0, []
    for record, making in zip(records, compiled, strict=True):
        spent += max(0.0, sum(record[name] for name in WORK) - making)
        axes.append({**{axis: record[axis] for axis in AXES}, "seconds": rounded(spent)})
    return axes


def thinned(records: list[Record], axes: list[Record], watch: Watch) -> Record:
    """Returns means of the signals over stretches of steps, each at the stretch's end.

    `tokens/completion` is of the completions that a step collected.
    """

    def mean(values: list[Any]) -> float | None:
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known else None

    signals = []
    for record, before, after in zip(records, axes, axes[1:], strict=False):
        collected = after["completions"] - before["completions"]
        length = (after["tokens"] - before["tokens"]) / collected if collected else None
        signals.append({**record, "tokens/completion": length})
    size = -(-len(records) // watch.points) or 1
    stretches = [(n, min(n + size, len(records))) for n in range(0, len(records), size)]
    columns: Record = {axis: [axes[end][axis] for _, end in stretches] for axis in axes[0]}
    for name in watch.signals:
        if any(record.get(name) is not None for record in signals):
            values = [record.get(name) for record in signals]
            columns[name] = rounded([mean(values[begin:end]) for begin, end in stretches])
    return columns
