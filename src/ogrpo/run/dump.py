"""What a run leaves of updates that were not finite, so that they can be looked at elsewhere.

    diverged/STEP/dump.json    config, decoder, seeds, hyper-parameters, what was not finite
    diverged/STEP/batch-0.npz  the first of the batches, as the update took it

The weights are those of the run's checkpoint STEP: the updates did not touch them.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ogrpo.batch import Batch, Packing
from ogrpo.learner.finite import names
from ogrpo.learner.hosts import fetch, on_first
from ogrpo.learner.state import Hypers, hypers
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.state import DivergedError, LoopState, Skipped
from ogrpo.policy import DecoderConfig
from ogrpo.run.findings import first_broken, stages
from ogrpo.system.files import read_json, replacing, write_json

FILE = "dump.json"
Turns = Iterator[tuple[LoopState, Record]]


class DumpedUpdate(NamedTuple):
    """An update that was skipped, as a dump has it."""

    told: Mapping[str, Any]
    batch: Batch[np.ndarray]
    hypers: Hypers


class Dump(NamedTuple):
    """What is in a dump's folder."""

    run: Path
    step: int
    """Of the checkpoint."""
    config: dict[str, Any]
    decoder: DecoderConfig
    updates: list[DumpedUpdate]


def dumping(
    turns: Turns, run: Path, config: dict[str, Any], decoder: DecoderConfig, parts: Parts
) -> Turns:
    """The turns of a loop; where it diverges, a dump of the updates that it skipped.

    Args:
      turns: what `train` yields.
      run: the run's folder.
      config: the run's, as JSON.
      decoder: the policy's shape.
      parts: of the loop.

    Raises:
      DivergedError: the loop's own, with the command that reads the dump.
    """
    state = None
    try:
        for turn in turns:
            state = turn[0]
            yield turn
    except DivergedError as error:
        if state is None or not state.failed:
            raise
        folder = write_dump(run, state, config, decoder, parts)
        command = f"see where, without the run's devices, by:\n  ogrpo diagnose {folder}"
        raise DivergedError(f"{error}\n{command}") from error


def write_dump(
    run: Path, state: LoopState, config: dict[str, Any], decoder: DecoderConfig, parts: Parts
) -> Path:
    """Writes what is known of the updates skipped in a row; all processes call it together."""
    folder = run / "diverged" / str(state.step)
    on_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    told = []
    for number, update in enumerate(state.failed):
        host = fetch(update.batch, everywhere=False)
        on_first(lambda number=number, host=host: _write_batch(folder / _batch_name(number), host))
        told.append(_told(state, update, number, parts))
    content = {
        "step": state.step,
        "checkpoint": f"checkpoints/{state.step}",
        "skipped": {"in a row": state.skipped_in_a_row, "since the run began": state.skipped},
        "updates": told,
        "seed": config["seed"],
        "config": config,
        "decoder": decoder.to_hf(),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    on_first(lambda: write_json(folder / FILE, content))
    return folder


def _batch_name(number: int) -> str:
    return f"batch-{number}.npz"


def _told(state: LoopState, update: Skipped, number: int, parts: Parts) -> dict[str, Any]:
    """An update as the dump's text has it; its numbers are computed once more."""
    found = fetch(parts.learner.examine(state.train, update.batch, update.hypers))
    numbers = stages(found, names(state.train.params))
    broken = first_broken(numbers)
    return {
        "step": update.step,
        "draw": update.draw,
        "iteration": update.iteration,
        "batch": _batch_name(number),
        "hypers": _plain(update.hypers),
        "metrics": {name: _number(value) for name, value in update.metrics.items()},
        "stages": [stage._asdict() for stage in numbers],
        "first not finite": None if broken is None else broken.name,
    }


def _plain(given: Hypers) -> dict[str, Any]:
    rate = given.learning_rate
    return {
        "learning_rate": None if rate is None else float(rate),
        "temperature": float(given.temperature),
        "knobs": {name: float(value) for name, value in given.knobs.items()},
        "seed": int(given.seed),
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _write_batch(path: Path, batch: Batch[np.ndarray]) -> None:
    packing = {} if batch.packing is None else batch.packing._asdict()
    own = batch._replace(packing=None)._asdict()
    arrays = {name: array for name, array in own.items() if array is not None}
    arrays |= {f"packing.{name}": x for name, x in packing.items() if x is not None}
    with replacing(path, "wb") as file:
        np.savez(file, **arrays)


def _read_batch(path: Path) -> Batch[np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as a dumped batch: {error}") from error
    packing = {name: arrays.pop(f"packing.{name}", None) for name in Packing._fields}
    packed = None if packing["token_ids"] is None else Packing(**packing)
    return Batch(**arrays, packing=packed)


def read_dump(folder: Path) -> Dump:
    """What `write_dump` wrote.

    Raises:
      ValueError: the folder holds no dump, or not a whole one.
    """
    try:
        told = read_json(folder / FILE)
    except OSError as error:
        raise ValueError(
            f"{folder} holds no dump ({error.strerror}: {FILE}): give the folder that the run"
            " named, RUN/diverged/STEP"
        ) from error
    try:
        updates = [
            DumpedUpdate(each, _read_batch(folder / each["batch"]), hypers(**each["hypers"]))
            for each in told["updates"]
        ]
        decoder = DecoderConfig.from_hf(told["decoder"])
        return Dump(folder.resolve().parents[1], told["step"], told["config"], decoder, updates)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / FILE} is not what a run writes: {error!r}") from error
