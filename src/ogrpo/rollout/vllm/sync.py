"""What a server is to serve, and the proof that it does.

A version counts once the server has scored a fixed probe as the trainer did. That catches what
answers of 200 do not: a stale head, a tensor left out, a dtype, a restart.
"""

import asyncio
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ogrpo.rollout.protocol import IntArray
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import Rejected, Unproven
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
    """What a push cost; `bytes` is what moved over the network, 0 from a shared folder."""

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


async def prove(api: ServerApi, found: Capabilities, target: Target) -> float:
    """Scores the probe on each of the server's data-parallel ranks.

    Returns:
        The mean absolute difference in nats, of the worst of them.

    Raises:
        Unproven: the server's log-probs are not those of the trainer's weights.
    """
    model = target.model(found.model)
    ranks: list[int | None] = [None] if found.ranks == 1 else [*range(found.ranks)]
    return max(await asyncio.gather(*(_gap(api, model, target.probe, rank) for rank in ranks)))


async def _gap(api: ServerApi, model: str, probe: Probe, rank: int | None) -> float:
    try:
        reply = await api.complete(wire.score_payload(probe.sequences, model), rank=rank)
    except Rejected as error:
        raise Unproven(f"{api.url} cannot score the probe: {error}") from error
    scores = wire.read_scores(reply, probe.sequences)
    gap = float(np.abs(np.concatenate(scores) - np.concatenate(probe.log_probs)).mean())
    if not gap <= probe.tolerance:
        where = "" if rank is None else f", data-parallel rank {rank},"
        raise Unproven(
            f"{api.url}{where} scores the probe {gap:.3g} nats a token away from the trainer, more "
            f"than {probe.tolerance:g}: it serves other weights than it was sent"
        )
    return gap
