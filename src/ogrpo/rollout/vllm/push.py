"""A release on its way into a server, and the proof that the server serves it.

Whole weights go into a paused server by vLLM's own weight update: every worker stages the release
before the first installs it. Of a worker's exception vLLM tells no more than 500; what it was, the
extension says afterwards. Adapters alone need no pause: requests name the version that draws them.

A version counts once the server has scored a fixed probe as the trainer did. That catches what
answers of 200 do not: a stale head, a tensor left out, a dtype, a restart.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ogrpo.protocol import IntArray
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, understood
from ogrpo.rollout.vllm.errors import (
    Broken,
    Flawed,
    PublishRefused,
    Rejected,
    RolloutError,
    Unavailable,
    Unproven,
)
from ogrpo.rollout.weights import Release, WeightShare

ADAPTERS = "ogrpo-v"
"""The prefix of adapters' names."""
TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""Mean absolute difference of the probe's log-probs, in nats, by served dtype."""
LOAD_SECONDS = 600.0


class Probe(NamedTuple):
    """Fixed token sequences and the trainer's log softmax(z) of tokens 1.. of each."""

    sequences: list[IntArray]
    log_probs: list[np.ndarray]
    tolerance: float


@dataclass(frozen=True, eq=False)
class Target:
    """The version that every server is to have: its release and the proof of it.

    With `adapter`, `release` is the weights beneath it, the same from version to version, and
    requests name the adapters: whoever is under way goes on with those that it began with.
    """

    release: Release
    probe: Probe
    adapter: Release | None = None

    @property
    def version(self) -> int:
        """Returns the policy's version."""
        return (self.adapter or self.release).version

    def model(self, served: str) -> str:
        """Returns the name that requests give, which no other adapters ever have."""
        if self.adapter is None:
            return served
        return f"{ADAPTERS}{self.version}-{self.adapter.manifest_sha256[:12]}"


class PushReport(NamedTuple):
    """The cost of a push; `bytes` moved over the network, 0 from a shared folder."""

    bytes: int
    load_seconds: float
    prove_seconds: float
    paused_seconds: float
    probe_gap: float


def probe_sequences(vocab_size: int, *, count: int, length: int) -> list[IntArray]:
    """Returns token sequences over the whole vocabulary that are the same in every run."""
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
    model, probe = target.model(able.model), target.probe

    async def gap_of(rank: int | None) -> float:
        try:
            reply = await api.complete(wire.score_payload(probe.sequences, model), rank=rank)
            scores = wire.read_scores(reply, probe.sequences)
        except Rejected as error:
            if error.status == 404 and model.startswith(ADAPTERS):
                lost = f"{api.url} has lost the adapters that were pushed to it: {error}"
                raise Unproven(lost) from error
            raise
        except Flawed as error:  # an answer, but none to this question
            raise Unavailable(f"{api.url} gave no scores of the probe: {error}") from error
        gap = float(np.abs(np.concatenate(scores) - np.concatenate(probe.log_probs)).mean())
        if not gap <= probe.tolerance:
            where = "" if rank is None else f", data-parallel rank {rank},"
            raise Unproven(
                f"{api.url}{where} scores the probe {gap:.3g} nats a token away from the trainer,"
                f" more than {probe.tolerance:g}: it serves other weights than it was sent"
            )
        return gap

    ranks: list[int | None] = [None] if able.ranks == 1 else [*range(able.ranks)]
    return max(await asyncio.gather(*map(gap_of, ranks)))


async def load(
    api: ServerApi, able: Capabilities, release: Release, *, share: WeightShare | None
) -> int:
    """Brings a paused server's weights to a release and its label to the version.

    Returns:
        The bytes that its workers pulled.

    Raises:
        PublishRefused: the server said no, and its live model is intact.
        Broken: its live model may be half loaded, until a whole push succeeds.
        Unavailable: the server cannot reach the release, or does not answer.
    """
    ticket = {"version": release.version, "manifest_sha256": release.manifest_sha256}
    try:
        await api.start_weight_update()
    except Unavailable as error:
        if error.status is None:
            raise
        # A trainer that died left its own open, perhaps in some of the workers: those in which
        # there is nothing to finish say 500, and the others have done it.
        with suppress(Unavailable):
            await api.finish_weight_update(None)
        await api.start_weight_update()
    await _update(api, able, release, {**ticket, **where(release, share)})
    await _update(api, able, release, {**ticket, "install": True})
    await api.finish_weight_update(str(release.version))
    answers = await api.rpc("ogrpo_describe", {})
    with understood(api.url, "ogrpo_describe", answers):
        digests = {answer["sha256"] for answer in answers}
        pulled = sum(answer["update"]["pulled"] for answer in answers)
    if digests != {release.sha256}:
        raise Unavailable(
            f"{api.url} took version {release.version} and says that it serves another: "
            "somebody else pushes to it, too"
        )
    return able.ranks * pulled


def where(release: Release, share: WeightShare | None) -> Json:
    """Returns where a worker finds a release: by default in a folder that it sees."""
    if share is None:
        return {"path": str(release.folder)}
    return {"url": f"{share.url}/{release.folder.name}", "token": share.token}


async def _update(api: ServerApi, able: Capabilities, release: Release, update: Json) -> None:
    """Has every worker stage or install a release; tells their failures apart."""
    try:
        await api.update_weights(update, seconds=LOAD_SECONDS)
    except Unavailable as error:
        if error.status is None:
            raise
        raise await _failure(api, able, release, error, installs="install" in update) from error


async def _failure(
    api: ServerApi, able: Capabilities, release: Release, error: Unavailable, *, installs: bool
) -> RolloutError:
    """Returns the error for an update that workers refused, by their own account of it."""
    said = f"{api.url} did not take version {release.version}: "
    code, serves, workers = None, "what it had", 0
    answers = await api.rpc("ogrpo_describe", {})
    with understood(api.url, "ogrpo_describe", answers):
        for answer in answers:
            last: Any = answer["update"]
            if last and last["manifest_sha256"] == release.manifest_sha256 and last["error"]:
                said, code = said + last["error"], last["code"]
                serves, workers = f"version {answer['version']}", len(answers) * able.ranks
                break
        else:
            said += f"its log says why ({error})"
    # Of several workers, others may have installed what this one did not.
    if installs and (workers != 1 or code == "broken"):
        return Broken(f"{said}; its live model may be half loaded: push again or restart it")
    said += f"; it goes on serving {serves}"
    if code is None:
        return Unavailable(said)
    if code == "unreachable":
        remedy = "With a shared folder the server must see the same path; otherwise publish by URL"
        return Unavailable(f"{said}. {remedy}")
    return PublishRefused(said)


async def load_adapters(
    api: ServerApi, able: Capabilities, target: Target, *, share: WeightShare | None
) -> int:
    """Has a server answer requests for a target's name with its adapters; older ones stay.

    Returns:
        The bytes that its workers pulled.

    Raises:
        PublishRefused: the server said no.
        Unavailable: the server cannot reach the release, or does not answer.
    """
    release = target.adapter
    assert release is not None
    name = target.model(able.model)
    ticket = {"name": name, "manifest_sha256": release.manifest_sha256, **where(release, share)}
    answers = await api.rpc("ogrpo_stage_adapter", ticket, seconds=LOAD_SECONDS)
    for answer in answers:
        if not answer["ok"]:
            said = f"{api.url} did not take version {release.version}: {answer['error']}"
            kind = Unavailable if answer["code"] == "unreachable" else PublishRefused
            raise kind(f"{said}; it goes on serving the adapters that it had")
    try:
        await api.load_adapter(name, answers[0]["path"], seconds=LOAD_SECONDS)
    except (Rejected, Unavailable) as error:
        # vLLM answers 500 to what it cannot load, and is well.
        if isinstance(error, Rejected) or "add_lora" in str(error):
            raise PublishRefused(f"vLLM did not take version {release.version}: {error}") from error
        raise
    return able.ranks * sum(answer["bytes"] for answer in answers)


async def unload_others(api: ServerApi, used: Collection[str]) -> None:
    """Takes back the names of earlier versions, those of a trainer that died included.

    Raises:
        RolloutError: it does not answer, or answers what vLLM does not.
    """
    cards = await api.models()
    with understood(api.url, "/v1/models", cards):
        names = [str(card["id"]) for card in cards]
    for name in names:
        if name.startswith(ADAPTERS) and name not in used:
            await api.unload_adapter(name)
