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
from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, describe
from ogrpo.rollout.vllm.errors import PublishRefused, Rejected, Unavailable, Unproven
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release

InFlight = Literal["wait", "abort", "keep"]
LOAD_SECONDS = 600.0
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


async def load(
    api: ServerApi,
    found: Capabilities,
    release: Release,
    *,
    share: WeightShare | None,
    stock: bool,
) -> int:
    """Has a paused server load a release, through the extension or, without it, vLLM's own reload.

    Returns:
        The bytes that its workers pulled.

    Raises:
        PublishRefused: the server said no; `live model intact` or not is part of the message.
        Unavailable: the server cannot reach the release, or does not answer.
    """
    if stock or found.extension is None:
        await _stock_reload(api, release)
        return 0
    source: Json = {"path": str(release.folder)}
    if share is not None:
        source = {"url": f"{share.url}/{release.folder.name}", "token": share.token}
    ticket = {"version": release.version, "manifest_sha256": release.manifest_sha256}
    answers = await api.rpc("ogrpo_load", {**source, **ticket}, seconds=LOAD_SECONDS)
    for answer in answers:
        _check_answer(api.url, release, answer)
    return sum(answer["bytes"] for answer in answers)


def _check_answer(url: str, release: Release, answer: Json) -> None:
    if answer["ok"]:
        return
    said = f"{url} did not take version {release.version}: {answer['error']}"
    if answer["code"] == "unreachable":
        raise Unavailable(
            f"{said}; it goes on serving version {answer['version']}. With a shared folder the "
            "server must see the same path; otherwise publish by URL"
        )
    if answer["code"] == "broken":
        raise PublishRefused(f"{said}; its live model may be half loaded: restart it")
    raise PublishRefused(f"{said}; it goes on serving version {answer['version']}")


async def _stock_reload(api: ServerApi, release: Release) -> None:
    arguments = {"weights_path": str(release.folder)}
    await api.rpc("reload_weights", arguments, seconds=LOAD_SECONDS)


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
    stock: bool = False,
) -> PushReport:
    """Brings a server to a version and has it proven."""
    if not found.dev_mode:
        raise PublishRefused(
            f"{api.url} takes no weights: start it with VLLM_SERVER_DEV_MODE=1 and "
            "--worker-extension-cls ogrpo_weight_sync.WeightSync (ogrpo-serve does both)"
        )
    start = time.perf_counter()
    await api.pause(in_flight)
    try:
        loading = time.perf_counter()
        moved = await load(api, found, target.release, share=share, stock=stock)
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


async def still_serves(
    api: ServerApi,
    found: Capabilities,
    target: Target,
    instance: str | None,
    *,
    stock: bool = False,
) -> bool:
    """Whether a server has been the same, with the same weights, since it was pushed to."""
    if stock or found.extension is None:
        try:
            await prove(api, found.model, target.probe)
        except Unproven:
            return False
        return True
    now: dict[str, Any] | None = await describe(api)
    return now is not None and (now["instance"], now["sha256"]) == (instance, target.release.sha256)
