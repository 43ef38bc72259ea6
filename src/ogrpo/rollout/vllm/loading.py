"""A release on its way into a paused server: who said what about it."""

from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.capabilities import Capabilities
from ogrpo.rollout.vllm.errors import Broken, PublishRefused, Unavailable
from ogrpo.rollout.weights.share import WeightShare
from ogrpo.rollout.weights.store import Release

LOAD_SECONDS = 600.0


async def load(
    api: ServerApi, found: Capabilities, release: Release, *, share: WeightShare | None
) -> int:
    """Has a paused server load a release, which its extension pulls and checks.

    Returns:
        The bytes that its workers pulled.

    Raises:
        PublishRefused: the server said no, and its live model is intact.
        Broken: its live model may be half loaded.
        Unavailable: the server cannot reach the release, or does not answer.
    """
    if found.extension is None:
        raise PublishRefused(
            f"{api.url} takes no weights: start it with VLLM_SERVER_DEV_MODE=1 and "
            "--worker-extension-cls ogrpo_weight_sync.WeightSync (ogrpo-serve does both)"
        )
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
        raise Broken(f"{said}; its live model may be half loaded: restart it")
    raise PublishRefused(f"{said}; it goes on serving version {answer['version']}")
