"""The health of a server, and whether to wait for one that is not there."""

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx

from ogrpo.rollout.address import ELSEWHERE
from ogrpo.rollout.vllm.errors import BUSY, RolloutError
from ogrpo.rollout.vllm.options import authorization, credentials_of_environment
from ogrpo.system.terminal import shown

SECONDS = 5.0


def ask_health(url: str) -> str | None:
    """Returns why a server is to be waited for; None where it says that it is well.

    Raises:
        RolloutError: waiting does not help, with what is wrong and the remedy.
    """
    try:
        reply = _get(url)
    except httpx.TransportError as error:
        _check_cause(url, error)
        return shown(str(error) or type(error).__name__)
    if reply.is_success:
        return None
    if reply.status_code >= 500 or reply.status_code in BUSY:
        return f"it answers {reply.status_code}"
    raise RolloutError(f"{url}/health answers {reply.status_code}: {_remedy(url, reply)}")


def _get(url: str) -> httpx.Response:
    headers = authorization(*credentials_of_environment())
    return httpx.get(f"{url}/health", headers=headers, timeout=SECONDS, trust_env=False)


def _check_cause(url: str, error: httpx.TransportError) -> None:
    """Refuses what another attempt would not change."""
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            raise RolloutError(
                f"{url}: the name {urlsplit(url).hostname} is not known here ({shown(error)}):"
                " correct it, or give the server's address in numbers"
            ) from error
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
            raise RolloutError(
                f"{url}: TLS fails ({shown(error)}): give http:// where the server has no TLS, as"
                " vLLM has none by itself, or a certificate that is signed by a public authority"
            ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _remedy(url: str, reply: httpx.Response) -> str:
    if reply.status_code in (401, 403, 407):
        return f"it does not let us in; {ELSEWHERE}"
    if reply.has_redirect_location:
        return f"it sends on to {shown(_place(reply))}, which is not followed: give that address"
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    if parts.path and _is_well(root):
        return f"the server is at {root}: give that address"
    return (
        "something else than vLLM answers there; give the address below which a server has"
        " /health and /v1, such as http://host:8000"
    )


def _place(reply: httpx.Response) -> str:
    parts = urlsplit(reply.headers["Location"])
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}" if host else parts.path


def _is_well(url: str) -> bool:
    try:
        return _get(url).is_success
    except httpx.TransportError:
        return False
