"""A release on its way into a paused server, by vLLM's own weight update.

Every worker stages the release before the first installs it. Of a worker's exception vLLM tells no
more than 500; what it was, the extension says afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities, understood
from ogrpo.rollout.vllm.errors import (
    Broken,
    PublishRefused,
    Rejected,
    RolloutError,
    Unavailable,
)
from ogrpo.rollout.vllm.sync import ADAPTERS, Target
from ogrpo.rollout.weights.nccl import Broadcast, Nccl
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import MANIFEST, MODEL, Release

LOAD_SECONDS = 600.0
Route = WeightShare | Nccl | None
"""By what releases reach the servers; None: by a folder that they see."""


async def load(api: ServerApi, able: Capabilities, release: Release, *, share: Route) -> int:
    """Brings a paused server's weights to a release and its label to the version.

    Returns:
        The bytes that its workers pulled.

    Raises:
        PublishRefused: the server said no, and its live model is intact.
        Broken: its live model may be half loaded, until a whole push succeeds.
        Unavailable: the server cannot reach the release, or does not answer.
    """
    ticket = {"version": release.version, "manifest_sha256": release.manifest_sha256}
    await _open(api)
    async with _offered(release, share, able.workers) as source:
        await _update(api, able, release, {**ticket, **source}, _not_staged)
    await _update(api, able, release, {**ticket, "install": True}, _not_installed)
    await api.finish_weight_update(str(release.version))
    return able.ranks * await _pulled(api, release)


@asynccontextmanager
async def _offered(release: Release, share: Route, workers: int) -> AsyncIterator[Json]:
    """Yields where workers find a release, which is broadcast meanwhile over NCCL."""
    if not isinstance(share, Nccl):
        yield where(release, share)
        return
    broadcast, executor = Broadcast(share, release.folder / MODEL, workers), ThreadPoolExecutor(1)
    sent = asyncio.get_running_loop().run_in_executor(executor, broadcast.run)
    executor.shutdown(wait=False)
    manifest = (release.folder / MANIFEST).read_text()
    source = {"manifest": manifest, "unique_id": broadcast.unique_id, "ranks": broadcast.ranks}
    problems: list[BaseException] = []
    well = False
    try:
        yield {"broadcast": source}
        well = True
    except Unavailable as error:
        problems.append(error)
    finally:
        broadcast.end(well=well)
        (failure,) = await asyncio.gather(sent, return_exceptions=True)
    problems += [failure] if failure is not None else []
    if problems:
        said = "; the trainer's side: ".join(map(str, problems))
        raise Unavailable(said) from problems[-1]


def where(release: Release, share: WeightShare | None) -> Json:
    """Returns where a worker finds a release."""
    if share is None:
        return {"path": str(release.folder)}
    return {"url": f"{share.url}/{release.folder.name}", "token": share.token}


async def _open(api: ServerApi) -> None:
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


async def _update(
    api: ServerApi,
    able: Capabilities,
    release: Release,
    update: Json,
    error_fn: Callable[["_Failure"], RolloutError],
) -> None:
    try:
        await api.update_weights(update, seconds=LOAD_SECONDS)
    except Unavailable as error:
        if error.status is None:
            raise
        raise error_fn(await _what_happened(api, able, release, error)) from error


@dataclass(frozen=True)
class _Failure:
    """The workers' account of an update that they refused; no code where none gives one."""

    said: str
    code: str | None = None
    serves: str = "what it had"
    workers: int = 0


async def _what_happened(
    api: ServerApi, able: Capabilities, release: Release, error: Unavailable
) -> _Failure:
    said = f"{api.url} did not take version {release.version}: "
    answers = await api.rpc("ogrpo_describe", {})
    with understood(api.url, "ogrpo_describe", answers):
        for answer in answers:
            last: Any = answer["update"]
            if last and last["manifest_sha256"] == release.manifest_sha256 and last["error"]:
                serves, workers = f"version {answer['version']}", len(answers) * able.ranks
                return _Failure(said + last["error"], last["code"], serves, workers)
    return _Failure(f"{said}its log says why ({error})")


def _not_staged(failure: _Failure) -> RolloutError:
    said = f"{failure.said}; it goes on serving {failure.serves}"
    if failure.code is None:
        return Unavailable(said)
    if failure.code == "unreachable":
        return Unavailable(
            f"{said}. With a shared folder the server must see the same path; otherwise publish "
            "by URL"
        )
    return PublishRefused(said)


def _not_installed(failure: _Failure) -> RolloutError:
    # Of several workers, others may have installed what this one did not.
    if failure.workers == 1 and failure.code != "broken":
        return _not_staged(failure)
    return Broken(f"{failure.said}; its live model may be half loaded: push again or restart it")


async def _pulled(api: ServerApi, release: Release) -> int:
    answers = await api.rpc("ogrpo_describe", {})
    with understood(api.url, "ogrpo_describe", answers):
        held = {answer["sha256"] for answer in answers}
        pulled = sum(answer["update"]["pulled"] for answer in answers)
    if held != {release.sha256}:
        raise Unavailable(
            f"{api.url} was given version {release.version} and says that it serves another: "
            "somebody else pushes to it, too"
        )
    return pulled


# --- adapters alone: nothing is paused or drained, requests name the version that draws them -----


async def load_adapters(
    api: ServerApi, able: Capabilities, target: Target, *, share: WeightShare | None
) -> int:
    """Has a server answer requests for a target's name with its adapters; those it has stay.

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
    """Takes back the names of earlier versions, those of a trainer that died included."""
    for card in await api.models():
        name = str(card.get("id"))
        if name.startswith(ADAPTERS) and name not in used:
            await api.unload_adapter(name)
