"""Dumps of updates that were not finite, so that they can be looked at elsewhere.

    diverged/STEP/dump.json    config, decoder, seeds, hyper-parameters, what was not finite
    diverged/STEP/batch-0.npz  the first of the batches, as the update took it

The weights are those of the run's checkpoint STEP: the updates did not touch them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ogrpo.batch import Batch, Packing
from ogrpo.learner.examine import Findings
from ogrpo.learner.finite import names
from ogrpo.learner.hosts import fetch, on_first
from ogrpo.learner.state import Hypers, hypers
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.state import DivergedError, LoopState
from ogrpo.policy import DecoderConfig
from ogrpo.system.files import read_json, replacing, write_json

FILE = "dump.json"
AXES = ("prompt", "completion", "token")
AFTER_CREDIT = ("losses of tokens", "KL terms of tokens", "gradient by log-prob")
"""Stages of tokens that are computed after the advantages."""
Turns = Iterator[tuple[LoopState, Record]]


class DumpedUpdate(NamedTuple):
    """An update that was skipped, as a dump has it."""

    record: Mapping[str, Any]
    """Its lines in the dump's text."""
    batch: Batch[np.ndarray]
    hypers: Hypers


class Dump(NamedTuple):
    """Contents of a dump's folder."""

    run: Path
    step: int
    """Of the checkpoint."""
    config: dict[str, Any]
    decoder: DecoderConfig
    updates: list[DumpedUpdate]


class Stage(NamedTuple):
    """A stage of an update."""

    name: str
    bad: int
    """Numbers that are NaN or infinite."""
    of: int
    first: str
    """Where the first of them stands, or a number itself; empty where all are finite."""
    low: float | None
    high: float | None
    """Extremes of the others."""

    def line(self) -> str:
        """Returns the stage as a reader sees it."""
        extremes = "" if self.low is None else f", from {self.low:.6g} to {self.high:.6g}"
        if not self.bad:
            return f"{self.name}: finite{extremes}"
        if self.of == 1:
            return f"{self.name}: {self.first}"
        return f"{self.name}: {self.bad:,} of {self.of:,} NaN or infinite, {self.first}{extremes}"


def stages(findings: Findings, leaves: Sequence[str]) -> list[Stage]:
    """Returns the stages of an update in the order in which they are computed.

    Args:
      findings: of the update, on the host.
      leaves: the names of the trained parameters.
    """
    batch, mask = findings.batch, np.asarray(findings.mask)
    drawn = np.asarray(batch.completion_mask)
    read = [
        ("the sampler's log-probs", batch.behavior_log_probs),
        ("log-probs at the start of the update", batch.proximal_log_probs),
        ("the reference's log-probs", batch.ref_log_probs),
    ]
    tokens = [
        *((name, values, drawn) for name, values in read if values is not None),
        ("log-probs of the policy", findings.log_probs, drawn),
        ("losses of tokens", findings.losses, mask),
        ("KL terms of tokens", findings.kl_losses, mask),
        ("gradient by log-prob", findings.by_log_prob, drawn),
    ]
    ids = np.asarray(batch.completion_ids)
    by_token = {
        name: _of_array(name, values, where, ids)
        for name, values, where in tokens
        if values is not None
    }
    credit = [
        _of_array(name, values, np.ones(np.shape(values), bool), None)
        for name, values in (("rewards", batch.rewards), ("advantages", findings.advantages))
    ]
    last = [by_token.pop(name) for name in [*by_token] if name in AFTER_CREDIT]
    return [
        _of_leaves("weights before the update", findings.weights, leaves),
        *by_token.values(),
        *credit,
        *last,
        _of_number("loss", findings.loss),
        _of_leaves("gradient", findings.gradient, leaves),
        _of_number("gradient's norm", findings.grad_norm),
        _of_leaves("weights after the update", findings.new_weights, leaves),
    ]


def first_broken(stages: Sequence[Stage]) -> Stage | None:
    """Returns the first stage that is not finite; None where all are."""
    return next((stage for stage in stages if stage.bad), None)


def _of_array(name: str, values: Any, where: np.ndarray, ids: np.ndarray | None) -> Stage:
    values = np.asarray(values)
    finite = np.isfinite(values)
    bad, good = where & ~finite, values[where & finite]
    places = np.argwhere(bad)
    first = _place(places[0], ids) if len(places) else ""
    low, high = (float(good.min()), float(good.max())) if good.size else (None, None)
    return Stage(name, int(bad.sum()), int(where.sum()), first, low, high)


def _place(index: np.ndarray, ids: np.ndarray | None) -> str:
    words = ", ".join(f"{axis} {at}" for axis, at in zip(AXES, index, strict=False))
    return f"the first at {words}" + ("" if ids is None else f" (id {ids[tuple(index)]})")


def _of_leaves(name: str, finite: Sequence[Any], leaves: Sequence[str]) -> Stage:
    bad = [leaf for leaf, is_finite in zip(leaves, finite, strict=True) if not is_finite]
    return Stage(f"{name}, by array", len(bad), len(leaves), ", ".join(bad), None, None)


def _of_number(name: str, value: Any) -> Stage:
    number = float(value)
    finite = bool(np.isfinite(number))
    extreme = number if finite else None
    return Stage(name, int(not finite), 1, "" if finite else f"{number}", extreme, extreme)


def dumping(
    turns: Turns, run: Path, config: dict[str, Any], decoder: DecoderConfig, parts: Parts
) -> Turns:
    """Yields the turns of a loop; where it diverges, dumps the updates that it skipped.

    Args:
      turns: of `train`.
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
    """Writes the updates skipped in a row; all processes call it together."""
    folder = run / "diverged" / str(state.step)
    on_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    records = []
    for number, update in enumerate(state.failed):
        host = fetch(update.batch, everywhere=False)
        on_first(lambda number=number, host=host: _write_batch(folder / _batch_name(number), host))
        findings = fetch(parts.learner.examine(state.train, update.batch, update.hypers))
        seen = stages(findings, names(state.train.params))
        broken = first_broken(seen)
        records.append(
            {
                "step": update.step,
                "draw": update.draw,
                "iteration": update.iteration,
                "batch": _batch_name(number),
                "hypers": {
                    "learning_rate": float(update.hypers.learning_rate),
                    "temperature": float(update.hypers.temperature),
                    "knobs": {name: float(value) for name, value in update.hypers.knobs.items()},
                    "seed": int(update.hypers.seed),
                },
                "metrics": {
                    name: value if math.isfinite(value) else str(value)
                    for name, value in update.metrics.items()
                },
                "stages": [stage._asdict() for stage in seen],
                "first not finite": None if broken is None else broken.name,
            }
        )
    content = {
        "step": state.step,
        "checkpoint": f"checkpoints/{state.step}",
        "skipped": {"in a row": state.skipped_in_a_row, "since the run began": state.skipped},
        "updates": records,
        "seed": config["seed"],
        "config": config,
        "decoder": decoder.to_hf(),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    on_first(lambda: write_json(folder / FILE, content))
    return folder


def _batch_name(number: int) -> str:
    return f"batch-{number}.npz"


def _write_batch(path: Path, batch: Batch[np.ndarray]) -> None:
    packing = {} if batch.packing is None else batch.packing._asdict()
    padded = batch._replace(packing=None)._asdict()
    arrays = {name: array for name, array in padded.items() if array is not None}
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
    """Reads a dump of `write_dump`.

    Raises:
      ValueError: the folder holds no dump, or not a whole one.
    """
    try:
        content = read_json(folder / FILE)
    except OSError as error:
        raise ValueError(
            f"{folder} holds no dump ({error.strerror}: {FILE}): give the folder that the run"
            " named, RUN/diverged/STEP"
        ) from error
    try:
        updates = [
            DumpedUpdate(each, _read_batch(folder / each["batch"]), hypers(**each["hypers"]))
            for each in content["updates"]
        ]
        decoder = DecoderConfig.from_hf(content["decoder"])
        return Dump(
            folder.resolve().parents[1], content["step"], content["config"], decoder, updates
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / FILE} is not what a run writes: {error!r}") from error
