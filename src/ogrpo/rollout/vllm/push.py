"""A release on its way into a server, and the proof that the server serves it.

Whole weights go into a paused server by vLLM's own weight update: every worker stages the release
before the first installs it. Of a worker's exception vLLM tells no more than 500; what it was, the
extension says afterwards.

A version counts once the server has scored a fixed probe as the trainer did. That catches what
answers of 200 do not: a stale head, a tensor left out, a dtype, a restart.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ogrpo.protocol import IntArray
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, understood
from ogrpo.rollout.vllm.errors import Broken, Flawed, PublishRefused, Unavailable, Unproven
from ogrpo.rollout.weights import Release, WeightShare

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.15, "float16": 0.05}
"""Mean absolute difference of the probe's log-probs, in nats, by dtype."""
LOAD_SECONDS = 600.0
PROBE_SHAPE = (4, 16)
"""Sequences of a probe, and the tokens of each."""


@dataclass(frozen=True, eq=False)
class Target:
    """The version that every server is to have: its release, and the proof of it.

    Attributes:
      release: the weights.
      sequences: fixed token sequences.
      log_probs: the trainer's log softmax(z) of tokens 1.. of each.
      tolerance: mean absolute difference of these at most, in nats.
    """

    release: Release
    sequences: list[IntArray]
    log_probs: list[np.ndarray]
    tolerance: float

    @property
    def version(self) -> int:
        """Returns the policy's version."""
        return self.release.version


class PushReport(NamedTuple):
    """The cost of a push; `bytes` moved over the network, 0 from a shared folder."""

    bytes: int
    load_seconds: float
    prove_seconds: float
    paused_seconds: float
    probe_gap: float


def probe_sequences(vocab_size: int) -> list[IntArray]:
    """Returns token sequences over the whole vocabulary that are the same in every run."""
    rng = np.random.default_rng(20250522)
    return list(rng.integers(0, vocab_size, PROBE_SHAPE).astype(np.int32))


async def prove(api: ServerApi, able: Capabilities, target: Target) -> float:
    """Scores the probe on each of the server's data-parallel ranks.

    Returns:
      The mean absolute difference in nats, of the worst of them.

    Raises:
      Unproven: the server's log-probs are not those of the trainer's weights.
      RolloutError: it gave no scores.
    """

    async def gap_of(rank: int | None) -> float:
        try:
            payload = wire.score_payload(target.sequences, able.model)
            reply = await api.complete(payload, rank=rank)
            scores = wire.read_scores(reply, target.sequences)
        except Flawed as error:  # an answer, but none to this question
            raise Unavailable(f"{api.url} gave no scores of the probe: {error}") from error
        gap = float(np.abs(np.concatenate(scores) - np.concatenate(target.log_probs)).mean())
        if not gap <= target.tolerance:
            where = "" if rank is None else f", data-parallel rank {rank},"
            raise Unproven(
                f"{api.url}{where} scores the probe {gap:.3g} nats a token away from the trainer,"
                f" more than {target.tolerance:g}: it serves other weights than it was sent"
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
    source = {"path": str(release.folder)}
    if share is not None:
        source = {"url": f"{share.url}/{release.folder.name}", "token": share.token}
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
    await _update(api, able, release, {**ticket, **source})
    await _update(api, able, release, {**ticket, "install": True})
    await api.finish_weight_update(str(release.version))
    answers = await api.describe()
    with understood(api.url, "ogrpo_describe", answers):
        digests = {answer["sha256"] for answer in answers}
        pulled = sum(answer["update"]["pulled"] for answer in answers)
    if digests != {release.sha256}:
        raise Unavailable(
            f"{api.url} took version {release.version} and says that it serves another: "
            "somebody else pushes to it, too"
        )
    return able.ranks * pulled


async def _update(api: ServerApi, able: Capabilities, release: Release, update: Json) -> None:
    """Has every worker stage or install a release.

    Raises:
      PublishRefused, Broken, Unavailable: what workers refused, by their own account of it.
    """
    try:
        await api.update_weights(update, seconds=LOAD_SECONDS)
        return
    except Unavailable as failure:
        if failure.status is None:
            raise
        error = failure
    said = f"{api.url} did not take version {release.version}: "
    code, serves, workers = None, "what it had", 0
    answers = await api.describe()
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
    if "install" in update and (workers != 1 or code == "broken"):
        text = f"{said}; its live model may be half loaded: push again or restart it"
        raise Broken(text) from error
    said += f"; it goes on serving {serves}"
    if code is None:
        raise Unavailable(said) from error
    if code == "unreachable":
        remedy = "The server must see that path, as on a shared disk; otherwise publish by URL"
        if "url" in update:
            remedy = (
                "The server must have room for the weights and reach the trainer at that address:"
                " set `listen` and `advertise`"
            )
        raise Unavailable(f"{said}. {remedy}") from error
    raise PublishRefused(said) from error
