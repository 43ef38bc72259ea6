"""One push to one server: pause, load, label, resume, prove.

A version counts once the server has scored a fixed probe as the trainer did. That catches what
answers of 200 do not: a stale head, a tensor left out, a dtype, a restart.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ogrpo.rollout.protocol import IntArray
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, describe
from ogrpo.rollout.vllm.errors import PublishRefused, Rejected, Unproven
from ogrpo.rollout.vllm.loading import load
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release

InFlight = Literal["wait", "abort", "keep"]
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""Mean absolute difference of the probe's log-probs, in nats, by served dtype."""


@dataclass(frozen=True)
class Probe:
    """Given tokens and what the trainer thinks of them, log softmax(z) of tokens 1.. of each."""

    sequences: list[IntArray]
    log_probs: list[np.ndarray]
    tolerance: float


@dataclass(frozen=True)
class Target:
    """The version that every server is to have: its release and the proof of it."""

    release: Release
    probe: Probe

    @property
    def version(self) -> int:
        """The policy's version."""
        return self.release.version


@dataclass(frozen=True)
class PushReport:
    """What a push cost; `bytes` is what moved over the network, 0 from a shared folder."""

    bytes: int
    load_seconds: float
    prove_seconds: float
    paused_seconds: float
    probe_gap: float


def probe_sequences(vocab_size: int, *, count: int, length: int) -> list[IntArray]:
    """Token sequences that are the same in every run, over the whole vocabulary."""
    rng = np.random.default_rng(20250522)
    return list(rng.integers(0, vocab_size, (count, length)).astype(np.int32))


async def prove(api: ServerApi, model: str, probe: Probe) -> float:
    """Scores the probe on the server; returns the mean absolute difference in nats.

    Raises:
        Unproven: the server's log-probs are not those of the trainer's weights.
    """
    try:
        reply = await api.complete(wire.score_payload(probe.sequences, model))
    except Rejected as error:
        raise Unproven(f"{api.url} cannot score the probe: {error}") from error
    scores = wire.read_scores(reply, probe.sequences)
    gap = float(np.abs(np.concatenate(scores) - np.concatenate(probe.log_probs)).mean())
    if not gap <= probe.tolerance:
        raise Unproven(
            f"{api.url} scores the probe {gap:.3g} nats a token away from the trainer, more "
            f"than {probe.tolerance:g}: it serves other weights than it was sent"
        )
    return gap


async def push(
    api: ServerApi,
    found: Capabilities,
    target: Target,
    *,
    in_flight: InFlight,
    share: WeightShare | None,
) -> PushReport:
    """Brings a server to a version and has it proven."""
    if found.extension is None:
        raise PublishRefused(
            f"{api.url} takes no weights: start it with VLLM_SERVER_DEV_MODE=1 and "
            "--worker-extension-cls ogrpo_weight_sync.WeightSync (ogrpo-serve does both)"
        )
    start = time.perf_counter()
    await api.pause(in_flight)
    try:
        loading = time.perf_counter()
        moved = await load(api, found, target.release, share=share)
        loaded = time.perf_counter()
        await api.label(str(target.version))
        # vLLM does not clear the prefix cache itself in mode "keep".
        await api.reset_prefix_cache()
    finally:
        await asyncio.shield(api.resume())
    resumed = time.perf_counter()
    gap = await prove(api, found.model, target.probe)
    return PushReport(
        bytes=moved,
        load_seconds=loaded - loading,
        prove_seconds=time.perf_counter() - resumed,
        paused_seconds=resumed - start,
        probe_gap=gap,
    )


async def still_serves(api: ServerApi, target: Target, instance: str | None) -> bool:
    """Whether a server has been the same, with the same weights, since it was pushed to."""
    now: dict[str, Any] | None = await describe(api)
    return now is not None and (now["instance"], now["sha256"]) == (instance, target.release.sha256)
