"""Several processes of one run: how they find each other, and what they must agree on.

Every process runs the whole program: it reads the task and the model, and runs the loop. The first
alone talks to servers, judges answers, keeps the replay buffer and writes; what it learns there it
tells the others (`shared`), so that all take the same branches. Arrays are cut over all devices.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from signal import Signals

import jax
import numpy as np
from rich.console import Console

from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Processes
from ogrpo.config.values import require, to_json
from ogrpo.learner.hosts import everyone, from_first, is_first, several
from ogrpo.loop.parts import Ids
from ogrpo.policy import DecoderConfig, Params
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import Prepared

OWN = ("processes", "run_dir")
"""What may differ between processes: only the first one's folder is looked at."""


def start_processes(wanted: Processes) -> None:
    """Finds the other processes of the run; returns when all are there.

    Nothing may have touched a device before. Where the caller called `jax.distributed.initialize`,
    that stands.

    Raises:
      ValueError: they did not come, or there is nothing to find them by.
    """
    if not wanted.several or jax.distributed.is_initialized():
        return
    jax.config.update("jax_cpu_collectives_implementation", "gloo")  # of CPUs alone
    try:
        if wanted.auto:
            jax.distributed.initialize()
        else:  # told everything, JAX is not to ask a cluster for the rest
            named = wanted.coordinator, wanted.count, wanted.id
            jax.distributed.initialize(*named, cluster_detection_method="deactivate")
    except (RuntimeError, ValueError) as error:
        found = "under --processes.auto" if wanted.auto else f"at {wanted.coordinator}"
        raise ValueError(f"the processes did not find each other {found}: {error}") from error


def check_processes(config: TrainConfig) -> None:
    """Refuses what several processes cannot do together."""
    if not several() or config.rollout.url:
        return
    for option, value, wanted in (
        ("schedule.sync-offset", config.schedule.sync_offset, 0),
        ("rollout.workers", config.rollout.workers, 1),
    ):
        require(
            value == wanted,
            f"{option} is {value}, but the embedded sampler of {jax.process_count()} processes"
            f" samples in step with training: give {wanted}, or servers by --rollout.url",
        )


def check_alike(prepared: Prepared) -> None:
    """Refuses processes that were given other options, or that read another task or tokenizer."""
    if not several():
        return
    told = everyone(digests(prepared))
    for what in told[0]:
        others = [n for n, digests in enumerate(told) if digests[what] != told[0][what]]
        require(
            not others,
            f"the {what} of processes {others} differs from that of process 0: start all of them"
            " with the same options, and let all read the same files",
        )


def digests(prepared: Prepared) -> dict[str, str]:
    """SHA-256 of what all processes, and a run that is resumed, must agree on."""
    options = {name: v for name, v in to_json(prepared.config).items() if name not in OWN}
    texts = {
        "configuration": json.dumps(options, sort_keys=True, default=str).encode(),
        "tokenizer": prepared.tokenizer.backend.to_str().encode(),
        "training prompts": _bytes(prepared.prompts.train),
        "held-out prompts": _bytes(prepared.prompts.heldout),
    }
    return {what: hashlib.sha256(text).hexdigest() for what, text in texts.items()}


def _bytes(prompts: Sequence[Ids]) -> bytes:
    lengths = np.array([len(ids) for ids in prompts])
    return b"".join(np.ascontiguousarray(ids).tobytes() for ids in [lengths, *prompts])


def same_model(prepared: Prepared, console: Console) -> tuple[DecoderConfig, Params]:
    """The decoder and its first parameters, the same in all processes.

    All read a folder or draw random weights for themselves; imitation rounds as its machine does,
    and is left to the first.
    """
    model = prepared.config.model
    if not several() or model.path is not None or model.random != "none":
        return make_model(prepared, console)
    decoder, params = from_first(lambda: _on_host(*make_model(prepared, console)))
    return decoder, params


def _on_host(decoder: DecoderConfig, params: Params) -> tuple[DecoderConfig, Params]:
    return decoder, jax.tree.map(np.asarray, params)


def agreed(heard: Signals | None) -> Signals | None:
    """The signal that the first of all processes to have heard one has; None where none did."""
    return next((signal for signal in everyone(heard) if signal is not None), None)


def quiet_elsewhere(console: Console) -> Console:
    """The console, in the first process; in the others one that shows nothing."""
    return console if is_first() else Console(quiet=True)


def alone(config: TrainConfig) -> TrainConfig:
    """The config as the run's folder keeps it: how its processes were started is no part of it."""
    return replace(config, processes=Processes())
