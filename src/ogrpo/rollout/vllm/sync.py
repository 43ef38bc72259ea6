"""Targets that servers are to serve, and the proof that one does.

A version counts once the server has scored a fixed probe as the trainer did. That catches what
answers of 200 do not: a stale head, a tensor left out, a dtype, a restart.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ogrpo.protocol import IntArray
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import Flawed, Rejected, Unavailable, Unproven
from ogrpo.rollout.weights.store import Release

ADAPTERS = "ogrpo-v"
"""What the names of adapters begin with."""
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
    """The version that every server is to have: its release and the proof of it.

    With adapters, `release` is the weights beneath them, the same from version to version, and
    requests name the adapters: whoever is under way goes on with those that it began with.
    """

    release: Release
    probe: Probe
    adapter: Release | None = None

    @property
    def version(self) -> int:
        """The policy's version."""
        return (self.adapter or self.release).version

    def model(self, served: str) -> str:
        """The name that requests ask for, which no other adapters ever have."""
        if self.adapter is None:
            return served
        return f"{ADAPTERS}{self.version}-{self.adapter.manifest_sha256[:12]}"


@dataclass(frozen=True)
class PushReport:
    """The cost of a push; `bytes` moved over the network, 0 from a shared folder."""

    target: Target
    bytes: int
    load_seconds: float
    prove_seconds: float
    paused_seconds: float
    probe_gap: float


def probe_sequences(vocab_size: int, *, count: int, length: int) -> list[IntArray]:
    """Token sequences that are the same in every run, over the whole vocabulary."""
    rng = np.random.default_rng(20250522)
    return list(rng.integers(0, vocab_size, (count, length)).astype(np.int32))


async def prove(api: ServerApi, able: Capabilities, target: Target) -> float:
    """Scores the probe on each of the server's data-parallel ranks.

    Returns:
        The mean absolute difference in nats, of the worst of them.

    Raises:
        Unproven: the server's log-probs are not those of the trainer's weights.
        RolloutError: it gave no scores.
    """
    model = target.model(able.model)
    ranks: list[int | None] = [None] if able.ranks == 1 else [*range(able.ranks)]
    return max(await asyncio.gather(*(_gap(api, model, target.probe, rank) for rank in ranks)))


async def _gap(api: ServerApi, model: str, probe: Probe, rank: int | None) -> float:
    try:
        reply = await api.complete(wire.score_payload(probe.sequences, model), rank=rank)
        scores = wire.read_scores(reply, probe.sequences)
    except Rejected as error:
        if error.status == 404 and model.startswith(ADAPTERS):
            raise Unproven(f"{api.url} has lost the adapters that it was sent: {error}") from error
        raise
    except Flawed as error:  # an answer, but none to this question
        raise Unavailable(f"{api.url} was asked for the probe's scores: {error}") from error
    gap = float(np.abs(np.concatenate(scores) - np.concatenate(probe.log_probs)).mean())
    if not gap <= probe.tolerance:
        where = "" if rank is None else f", data-parallel rank {rank},"
        raise Unproven(
            f"{api.url}{where} scores the probe {gap:.3g} nats a token away from the trainer, more "
            f"than {probe.tolerance:g}: it serves other weights than it was sent"
        )
    return gap
