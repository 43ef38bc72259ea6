"""Adapters alone on their way to a server, which goes on drawing: nothing is paused or drained.

the worker extension    checks the release, and makes a copy of its own
vLLM's route            loads the copy under a name that is of this version alone
requests                name the version that they are to be drawn from
"""

from collections.abc import Collection

from ogrpo.rollout.vllm.api import ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import PublishRefused, Rejected, Unavailable
from ogrpo.rollout.vllm.loading import LOAD_SECONDS, where
from ogrpo.rollout.vllm.sync import ADAPTERS, Target
from ogrpo.rollout.weights.share import WeightShare


async def load_adapters(
    api: ServerApi, found: Capabilities, target: Target, *, share: WeightShare | None
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
    name = target.model(found.model)
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
    return found.ranks * sum(answer["bytes"] for answer in answers)


async def unload_others(api: ServerApi, used: Collection[str]) -> None:
    """Takes back the names of earlier versions, those of a trainer that died included."""
    for card in await api.models():
        name = str(card.get("id"))
        if name.startswith(ADAPTERS) and name not in used:
            await api.unload_adapter(name)
