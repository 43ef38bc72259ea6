"""A dumped update computed once more, on this machine's CPU: where it ceases to be finite."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Mesh, Processes
from ogrpo.config.values import from_json
from ogrpo.core.algorithms import gate_survival
from ogrpo.core.survival import SURVIVALS, spread_of
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.examine import Findings, make_examine
from ogrpo.learner.finite import names
from ogrpo.learner.hosts import fetch
from ogrpo.learner.state import TrainState
from ogrpo.loop.batches import to_device
from ogrpo.loop.state import checkpoint_shapes
from ogrpo.policy import Params
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.run_dir import RunDir
from ogrpo.run.dump import Dump, DumpedUpdate, Stage, first_broken, read_dump, stages
from ogrpo.setup.build import find_devices, make_optimizer, make_recipe
from ogrpo.setup.devices import DTYPES


def diagnose(folder: Path) -> Iterator[str]:
    """Yields lines of what each update of a dump computes from the run's checkpoint.

    Raises:
      ValueError: the dump, the checkpoint or the model beneath adapters cannot be read.
    """
    dump = read_dump(folder)
    config = here(dump.config)
    devices = find_devices(config, dump.decoder)
    recipe, optimizer = make_recipe(config, devices.policy_fn), make_optimizer(config)
    state = restored(dump, config, devices.shapes(first_params(dump, config)), recipe.reads)
    yield f"run {dump.run}, checkpoint {dump.step}"
    examine = make_examine(optimizer, recipe)
    for number, update in enumerate(dump.updates):
        yield ""
        yield heading(number, update)
        findings = fetch(examine(state, to_device(update.batch), update.hypers))
        seen = stages(findings, names(state.params))
        yield from (stage.line() for stage in seen)
        yield verdict(seen)
        yield from survivors(findings, update.hypers.knobs)


def heading(number: int, update: DumpedUpdate) -> str:
    """Returns which update it is, and the run's metrics of it."""
    record, metrics = update.record, update.record["metrics"]
    return (
        f"update {number}: step {record['step']}, draw {record['draw']}, iteration"
        f" {record['iteration']}; in the run loss {metrics['loss']}, gradient's norm"
        f" {metrics['grad_norm']}"
    )


def here(values: dict[str, Any]) -> TrainConfig:
    """Returns the run's config on one device without accelerators."""
    config: TrainConfig = from_json(TrainConfig, values)
    kernels = config.kernels
    if kernels.log_probs == "pallas":
        kernels = replace(kernels, log_probs="chunked")
    return replace(config, mesh=Mesh(), processes=Processes(), kernels=kernels)


def first_params(dump: Dump, config: TrainConfig) -> Params:
    """Returns the weights beneath adapters; else shapes alone, as the checkpoint has all."""
    dtype = DTYPES[config.model.dtype]
    if config.lora.rank is not None:
        return load_pretrained(config.model.path or RunDir(dump.run).initial, dtype)[1]
    shapes = param_shapes(dump.decoder)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)), shapes)


def restored(
    dump: Dump, config: TrainConfig, shapes: TrainState, reads: frozenset[str]
) -> TrainState:
    """Restores the state that the updates were skipped in.

    Raises:
      ValueError: the run has no such checkpoint any more.
    """
    folder = RunDir(dump.run).checkpoints
    checkpoint = folder / str(dump.step)
    if not checkpoint.is_dir():
        raise ValueError(
            f"{checkpoint} is gone, which has the weights of this dump: a run that goes on deletes"
            " old checkpoints unless --checkpoint.keep is larger"
        )
    like = checkpoint_shapes(shapes, reads, config.optimizer.average is not None)
    with (
        RunDir(dump.run).held("ogrpo diagnose"),
        Checkpoints(folder, keep=config.checkpoint.keep) as checkpoints,
    ):
        arrays, _ = checkpoints.restore(dump.step, like)
    return replace(arrays["train"], frozen=shapes.frozen)


def verdict(stages: Sequence[Stage]) -> str:
    """Returns a line on where an update ceases to be finite."""
    stage = first_broken(stages)
    if stage is None:
        return "everything is finite here: this update would be taken"
    return f"first not finite: {stage.name}, {stage.first}"


def survivors(findings: Findings, knobs: Mapping[str, Any]) -> Iterator[str]:
    """Yields what each gate of ratios would leave, from the spread of log-ratios and the lengths.

    Nothing where a log-ratio is not finite, or no token carries loss.
    """
    mask = np.asarray(findings.mask)
    there, behavior = np.asarray(findings.log_probs), np.asarray(findings.batch.behavior_log_probs)
    delta = np.where(mask, there, 0) - np.where(mask, behavior, 0)
    lengths = mask.sum(-1)[mask.any(-1)]
    if not lengths.size or not np.isfinite(delta).all():
        return
    spread = spread_of(jnp.asarray(delta, float), jnp.asarray(mask))
    yield f"log-ratios of tokens: mean {spread.mean:.4g}, standard deviation {spread.std:.4g}"
    for gate, share in gate_survival(jnp.asarray(lengths), spread, knobs, [*SURVIVALS]).items():
        yield f"{gate} would leave {share:.1%}"
