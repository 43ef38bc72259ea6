"""A dumped update once more, on this machine's CPU: where its numbers cease to be finite."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Mesh, Processes
from ogrpo.config.values import from_json
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.learner.examine import make_examine
from ogrpo.learner.finite import names
from ogrpo.learner.hosts import fetch
from ogrpo.learner.state import TrainState
from ogrpo.loop.batches import to_device
from ogrpo.loop.state import checkpoint_shapes
from ogrpo.policy import Params
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.pretrained import load_pretrained
from ogrpo.report.run_dir import RunDir
from ogrpo.run.dump import Dump, DumpedUpdate, read_dump
from ogrpo.run.findings import lines, stages, survivors
from ogrpo.setup.build import find_devices, make_optimizer, make_recipe
from ogrpo.setup.devices import DTYPES


def diagnose(folder: Path) -> Iterator[str]:
    """Line after line, what each update of a dump computes from the run's checkpoint.

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
        found = fetch(examine(state, to_device(update.batch), update.hypers))
        yield from lines(stages(found, names(state.params)))
        yield from survivors(found, update.hypers.knobs)


def heading(number: int, update: DumpedUpdate) -> str:
    """Which update it is, and what the run saw."""
    told, metrics = update.told, update.told["metrics"]
    return (
        f"update {number}: step {told['step']}, draw {told['draw']}, iteration"
        f" {told['iteration']}; in the run loss {metrics['loss']}, gradient's norm"
        f" {metrics['grad_norm']}"
    )


def here(values: dict[str, Any]) -> TrainConfig:
    """The run's config on one device without accelerators."""
    config: TrainConfig = from_json(TrainConfig, values)
    kernels = config.kernels
    if kernels.log_probs == "pallas":
        kernels = replace(kernels, log_probs="chunked")
    return replace(config, mesh=Mesh(), processes=Processes(), kernels=kernels)


def first_params(dump: Dump, config: TrainConfig) -> Params:
    """The weights beneath adapters; without adapters shapes alone, as the checkpoint has all."""
    dtype = DTYPES[config.model.dtype]
    if config.lora.rank is not None:
        return load_pretrained(config.model.path or RunDir(dump.run).initial, dtype)[1]
    shapes = param_shapes(dump.decoder)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.dtype(dtype)), shapes)


def restored(
    dump: Dump, config: TrainConfig, shapes: TrainState, reads: frozenset[str]
) -> TrainState:
    """The state that the updates were skipped in.

    Raises:
      ValueError: the run has no such checkpoint any more.
    """
    folder = RunDir(dump.run).checkpoints
    found = folder / str(dump.step)
    if not found.is_dir():
        raise ValueError(
            f"{found} is gone, which has the weights of this dump: a run that goes on deletes old"
            " checkpoints unless --checkpoint.keep is larger"
        )
    like = checkpoint_shapes(shapes, reads)
    with (
        RunDir(dump.run).held("ogrpo diagnose"),
        Checkpoints(folder, keep=config.checkpoint.keep) as checkpoints,
    ):
        arrays, _ = checkpoints.restore(dump.step, like)
    return replace(arrays["train"], frozen=shapes.frozen)
