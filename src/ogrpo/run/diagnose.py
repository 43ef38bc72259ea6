"""Updates that were not finite: dumped where a run diverges, and computed once more elsewhere.

    diverged/STEP/dump.json    config, decoder, hyper-parameters and metrics of each update
    diverged/STEP/batch-0.npz  the first of the batches, as the update took it

The weights are those of the run's checkpoint STEP: the updates did not touch them.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch, Packing
from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Mesh, Processes
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.examine import Findings, make_examine
from ogrpo.learner.finite import names
from ogrpo.learner.hosts import fetch, on_first
from ogrpo.learner.state import TrainState, hypers
from ogrpo.loop.batches import to_device
from ogrpo.loop.parts import Record
from ogrpo.loop.state import DivergedError, LoopState, first_arrays
from ogrpo.policy import DecoderConfig
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.run_dir import RunDir
from ogrpo.setup.build import find_devices, make_optimizer, make_spec
from ogrpo.setup.devices import DTYPES
from ogrpo.system.files import read_json, replacing, write_json
from ogrpo.system.values import from_json

FILE = "dump.json"
AXES = ("prompt", "completion", "token")
Turns = Iterator[tuple[LoopState, Record]]


def dumping(turns: Turns, run: Path, config: dict[str, Any], decoder: DecoderConfig) -> Turns:
    """Yields the turns of a loop; where it diverges, dumps the updates that it skipped in a row.

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
        folder = write_dump(run, state, config, decoder)
        command = f"see where, without the run's devices, by:\n  ogrpo diagnose {folder}"
        raise DivergedError(f"{error}\n{command}") from error


def write_dump(run: Path, state: LoopState, config: dict[str, Any], decoder: DecoderConfig) -> Path:
    """Writes the updates skipped in a row; all processes call it together."""
    folder = run / "diverged" / str(state.step)
    on_first(lambda: folder.mkdir(parents=True, exist_ok=True))
    records = []
    for number, update in enumerate(state.failed):
        name, host = f"batch-{number}.npz", fetch(update.batch, everywhere=False)
        on_first(lambda name=name, host=host: _write_batch(folder / name, host))
        place = {"step": update.step, "draw": update.draw, "iteration": update.iteration}
        numbers = {
            "learning_rate": float(update.hypers.learning_rate),
            "temperature": float(update.hypers.temperature),
            "knobs": {knob: float(value) for knob, value in update.hypers.knobs.items()},
            "seed": int(update.hypers.seed),
        }
        metrics = {key: x if math.isfinite(x) else str(x) for key, x in update.metrics.items()}
        records.append({**place, "batch": name, "hypers": numbers, "metrics": metrics})
    content = {
        "step": state.step,
        "skipped": {"in a row": state.skipped_in_a_row, "since the run began": state.skipped},
        "updates": records,
        "config": config,
        "decoder": decoder.to_hf(),
        "versions": {"jax": jax.__version__, "numpy": np.__version__},
    }
    on_first(lambda: write_json(folder / FILE, content))
    return folder


def _write_batch(path: Path, batch: Batch[np.ndarray]) -> None:
    packing = {} if batch.packing is None else batch.packing._asdict()
    arrays = batch._replace(packing=None)._asdict()
    arrays |= {f"packing.{name}": x for name, x in packing.items()}
    with replacing(path, "wb") as file:
        np.savez(file, **{name: x for name, x in arrays.items() if x is not None})


def read_batch(path: Path) -> Batch[np.ndarray]:
    """Reads a dumped batch.

    Raises:
      ValueError: it is damaged; names the file.
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if odd := [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise ValueError(f"{odd[0]} holds no numbers")
    except (EOFError, OSError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} cannot be read as a dumped batch: {error}") from error
    packing = {name: arrays.pop(f"packing.{name}", None) for name in Packing._fields}
    packed = None if packing["token_ids"] is None else Packing(**packing)
    return Batch(**arrays, packing=packed)


def diagnose(folder: Path) -> Iterator[str]:
    """Yields lines of what each update of a dump computes from the run's checkpoint.

    Raises:
      ValueError: the dump, the checkpoint or the model beneath adapters cannot be read.
    """
    try:
        content = read_json(folder / FILE)
    except OSError as error:
        raise ValueError(
            f"{folder} holds no dump ({error.strerror}: {FILE}): give the folder that the run"
            " named, RUN/diverged/STEP"
        ) from error
    try:
        run, step = RunDir(folder.resolve().parents[1]), content["step"]
        decoder = DecoderConfig.from_hf(content["decoder"])
        config: TrainConfig = from_json(TrainConfig, content["config"])
        updates = [
            (update, read_batch(folder / update["batch"]), hypers(**update["hypers"]))
            for update in content["updates"]
        ]
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / FILE} is not what a run writes: {error!r}") from error
    config = replace(config, mesh=Mesh(), processes=Processes())  # one device
    state = restored(run, step, config, decoder)
    spec = make_spec(config, find_devices(config, decoder).policy_fn)
    examine = make_examine(make_optimizer(config), spec)
    yield f"run {run.path}, checkpoint {step}"
    for number, (update, batch, values) in enumerate(updates):
        place = f"step {update['step']}, draw {update['draw']}, iteration {update['iteration']}"
        loss, norm = (update["metrics"][name] for name in ("loss", "grad_norm"))
        yield f"\nupdate {number}: {place}; in the run loss {loss}, gradient's norm {norm}"
        seen = stages(fetch(examine(state, to_device(batch), values)), names(state.params))
        yield from (f"{stage.name}: {stage.text}" for stage in seen)
        broken = next((stage for stage in seen if stage.first), None)
        if broken is None:
            yield "everything is finite here: this update would be taken"
        else:
            yield f"first not finite: {broken.name}, {broken.first}"


def restored(run: RunDir, step: int, config: TrainConfig, decoder: DecoderConfig) -> TrainState:
    """Restores the state that the updates were skipped in, the weights beneath adapters included.

    Raises:
      ValueError: the run has no such checkpoint any more.
    """
    checkpoint, dtype = run.checkpoints / str(step), DTYPES[config.model.dtype]
    if not checkpoint.is_dir():
        raise ValueError(
            f"{checkpoint} is gone, which has the weights of this dump: a run that goes on deletes"
            " old checkpoints unless --checkpoint.keep is larger"
        )
    if config.lora.rank is not None:
        params = load_pretrained(config.model.path or run.initial, dtype)[1]
    else:  # shapes are enough, as the checkpoint has all
        params = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)), param_shapes(decoder)
        )
    devices = find_devices(config, decoder)
    shapes, reads = devices.shapes(params), make_spec(config, devices.policy_fn).reads
    like = first_arrays(shapes, reads, shapes.params)
    keep = config.checkpoint.keep
    with run.held("ogrpo diagnose"), Checkpoints(run.checkpoints, keep=keep) as checkpoints:
        arrays, _ = checkpoints.restore(step, like)
    return replace(arrays["train"], frozen=shapes.frozen)


class Stage(NamedTuple):
    """A stage of an update, in words."""

    name: str
    text: str
    """Of all its numbers."""
    first: str
    """Where the first stands that is NaN or infinite; empty where all are finite."""


def stages(findings: Findings, leaves: Sequence[str]) -> list[Stage]:
    """Returns the stages of an update in the order in which they are computed."""
    batch, mask = findings.batch, np.asarray(findings.mask)
    ids, drawn = np.asarray(batch.completion_ids), np.asarray(batch.completion_mask)
    all_stages = [
        _of_leaves("weights before the update", findings.weights, leaves),
        _of_array("the sampler's log-probs", batch.behavior_log_probs, drawn, ids),
        _of_array("log-probs at the start of the update", batch.proximal_log_probs, drawn, ids),
        _of_array("the reference's log-probs", batch.ref_log_probs, drawn, ids),
        _of_array("log-probs of the policy", findings.log_probs, drawn, ids),
        _of_array("rewards", batch.rewards),
        _of_array("advantages", findings.advantages),
        _of_array("losses of tokens", findings.losses, mask, ids),
        _of_array("KL terms of tokens", findings.kl_losses, mask, ids),
        _of_array("gradient by log-prob", findings.by_log_prob, drawn, ids),
        _of_array("loss", findings.loss),
        _of_leaves("gradient", findings.gradient, leaves),
        _of_array("gradient's norm", findings.grad_norm),
        _of_leaves("weights after the update", findings.new_weights, leaves),
    ]
    return [stage for stage in all_stages if stage is not None]


def _of_array(
    name: str, values: Any, where: np.ndarray | None = None, ids: np.ndarray | None = None
) -> Stage | None:
    """Returns the stage of an array's numbers at `where`; None where there is no array."""
    if values is None:
        return None
    values = np.asarray(values)
    where = np.ones(values.shape, bool) if where is None else where
    finite = np.isfinite(values)
    bad, good = where & ~finite, values[where & finite]
    extremes = f", from {good.min():.6g} to {good.max():.6g}" if good.size else ""
    if not bad.any():
        return Stage(name, f"finite{extremes}", "")
    if not values.shape:
        return Stage(name, f"{values}", f"{values}")
    index = np.argwhere(bad)[0]
    words = ", ".join(f"{axis} {at}" for axis, at in zip(AXES, index, strict=False))
    first = f"the first at {words}" + ("" if ids is None else f" (id {ids[tuple(index)]})")
    text = f"{bad.sum():,} of {where.sum():,} NaN or infinite, {first}{extremes}"
    return Stage(name, text, first)


def _of_leaves(name: str, finite: Sequence[Any], leaves: Sequence[str]) -> Stage:
    bad = [leaf for leaf, is_finite in zip(leaves, finite, strict=True) if not is_finite]
    first = ", ".join(bad)
    text = f"{len(bad):,} of {len(leaves):,} NaN or infinite, {first}" if bad else "finite"
    return Stage(f"{name}, by array", text, first)
