"""One server's HTTP API: a method for each call, errors by what can be done about them."""

import asyncio
import base64
import os
import socket
import ssl
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from ogrpo.rollout.address import ELSEWHERE, check_url, server_root
from ogrpo.rollout.vllm.errors import BUSY, Rejected, RolloutError, Unavailable
from ogrpo.system.terminal import shown


def headers_of_environment() -> dict[str, str]:
    """Returns what says to servers who asks, by OGRPO_API_KEY or OGRPO_BASIC_AUTH.

    Raises:
      ValueError: both are set, or no request could carry one; the secret is not shown.
    """
    key, basic = os.environ.get("OGRPO_API_KEY", ""), os.environ.get("OGRPO_BASIC_AUTH", "")
    for name, secret in (("OGRPO_API_KEY", key), ("OGRPO_BASIC_AUTH", basic)):
        plain = secret.isascii() and secret.isprintable() and secret == secret.strip()
        if not plain:  # the HTTP library would show it
            raise ValueError(
                f"{name} has characters that no header can carry, such as the end of a line, or a"
                " blank at an end: take them out"
            )
    if key and basic:
        raise ValueError("OGRPO_API_KEY and OGRPO_BASIC_AUTH are both set; a request carries one")
    if basic and ":" not in basic:
        raise ValueError("OGRPO_BASIC_AUTH is no NAME:PASSWORD; give both with a colon between")
    if basic:
        return {"Authorization": f"Basic {base64.b64encode(basic.encode()).decode()}"}
    return {"Authorization": f"Bearer {key}"} if key else {}


Json = dict[str, Any]
CONNECT_SECONDS, SHORT_SECONDS, HEALTH_SECONDS = 5.0, 20.0, 5.0
"""Seconds at most to connect, for an answer that takes no sampling, and for /health."""
IDLE_SECONDS = 2.0
"""Seconds after which a connection is not used again: vLLM closes it at 5 s, perhaps just then."""
UNREACHED = (httpx.RequestError, httpx.InvalidURL, UnicodeError)
"""What ends a request without an answer; the last two are of a redirection that cannot be read."""
NOT_IMPLEMENTED = 501
"""The status of what a server will never answer; any other of 500 and above may pass."""


class ServerApi:
    """Calls to one server over connections that are kept open, as many as are made at a time.

    Args:
      url: as in `http://host:8000`.
      headers: sent with each request: who asks (`headers_of_environment`).
      timeout: seconds to wait for an answer to a request for samples or scores; a server that
        hangs is given up after it.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        timeout: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        check_url(url, "the address of a server")
        self.url = server_root(url)
        self.place = self.url.partition("://")[2]
        self._headers = headers
        self._transport = transport
        self._seconds, self._short = timeout, min(timeout, SHORT_SECONDS)
        self._clients: list[httpx.AsyncClient] = []
        self._idle = [self._client()]

    def _client(self) -> httpx.AsyncClient:
        # The environment's proxies are not for a private network.
        client = httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            verify=_tls(),
            trust_env=False,
            transport=self._transport,
            limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
            timeout=httpx.Timeout(None, connect=min(self._seconds, CONNECT_SECONDS)),
        )
        self._clients.append(client)
        return client

    async def close(self) -> None:
        """Closes the connections, those of requests that are still under way, too."""
        await asyncio.gather(*(client.aclose() for client in self._clients))

    async def version(self) -> str:
        """Returns the version of vLLM."""
        return str(await self._json("GET", "/version", field="version"))

    async def models(self) -> list[Json]:
        """Returns the served models' cards."""
        return await self._json("GET", "/v1/models", field="data")

    async def metrics(self) -> str:
        """Returns Prometheus metrics as text."""
        return _text(await self._call("GET", "/metrics"))

    async def complete(self, payload: Json, *, rank: int | None = None) -> Json:
        """Returns samples or scores of `/v1/completions`, of one data-parallel rank or any."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        path, seconds = "/v1/completions", self._seconds
        return await self._json("POST", path, payload, headers=headers, seconds=seconds)

    async def generate(self, payload: Json) -> Json:
        """Returns samples of `/inference/v1/generate`, with the version of each token's weights."""
        return await self._json("POST", "/inference/v1/generate", payload, seconds=self._seconds)

    async def describe(self) -> list[Any]:
        """Asks the extension of every worker; needs VLLM_SERVER_DEV_MODE=1 on the server."""
        payload, path = {"method": "ogrpo_describe", "kwargs": {}}, "/collective_rpc"
        results = await self._json("POST", path, payload, field="results")
        if not isinstance(results, list) or not results:
            raise Unavailable(f"{self.url}/collective_rpc answered for no worker")
        return results

    async def pause(self, mode: str) -> None:
        """Stops generation; requests in flight are drained, aborted or kept."""
        query = {"mode": mode, "clear_cache": "true"}
        await self._call("POST", "/pause", params=query, seconds=self._seconds)

    async def resume(self) -> None:
        """Goes on after a pause."""
        await self._call("POST", "/resume")

    async def is_paused(self) -> bool | None:
        """Returns whether it is paused, which /health does not say; None where it tells nobody."""
        try:
            return bool(await self._json("GET", "/is_paused", field="is_paused"))
        except Rejected as error:
            if error.status not in (404, 405, NOT_IMPLEMENTED):
                raise
            return None

    async def reset_prefix_cache(self) -> None:
        """Forgets the keys and values of earlier prompts."""
        await self._call("POST", "/reset_prefix_cache")

    async def workers(self, *, all_ranks: bool) -> int:
        """Returns how many processes hold weights, in one data-parallel rank or in all of them."""
        path = f"/get_world_size?include_dp={str(all_ranks).lower()}"
        return await self._json("GET", path, field="world_size")

    async def start_weight_update(self) -> None:
        """Opens vLLM's weight update; where another is open, the answer is 500."""
        # vLLM 0.23 and 0.24 would otherwise take the live model apart at once.
        await self._change("start_weight_update", {"is_checkpoint_format": False}, self._short)

    async def update_weights(self, update: Json, *, seconds: float) -> None:
        """Hands an update to the back end of every worker, of all data-parallel ranks."""
        await self._change("update_weights", {"update_info": update}, seconds)

    async def finish_weight_update(self, version: str | None) -> None:
        """Closes vLLM's weight update; since 0.28 it labels the weights with a version, too."""
        await self._change("finish_weight_update", {"weight_version": version}, self._short)

    async def _change(self, name: str, payload: Json, seconds: float) -> None:
        # When a worker raises, uvicorn cuts the connection behind its 500: nobody is to use it.
        once = {"Connection": "close"}
        await self._call("POST", f"/{name}", payload, headers=once, seconds=seconds)

    async def _json(
        self,
        method: str,
        path: str,
        payload: Json | None = None,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Returns the JSON of an answer, or one field of it."""
        reply = await self._call(method, path, payload, headers=headers, seconds=seconds)
        try:
            body = reply.json()
        except (ValueError, RecursionError) as error:
            text = _text(reply)[:80]
            raise Unavailable(f"{self.url}{path} answered no JSON: {text!r}") from error
        if field is None:
            return body
        if not isinstance(body, dict) or field not in body:
            raise Unavailable(f"{self.url}{path} answered without {field!r}: {str(body)[:80]!r}")
        return body[field]

    async def _call(
        self,
        method: str,
        path: str,
        payload: Json | None = None,
        *,
        params: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> httpx.Response:
        """Returns the whole answer, within so many seconds, however slowly its bytes come."""
        seconds = seconds or self._short
        # A client for each request under way: one for all looks through all connections each time.
        client = self._idle.pop() if self._idle else self._client()
        try:
            async with asyncio.timeout(seconds):
                reply = await client.request(
                    method, path, json=payload, params=params, headers=headers
                )
        except TimeoutError as error:
            late = f"{self.url}{path} did not answer in full within {seconds:g} s"
            raise Unavailable(late) from error
        except UNREACHED as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"{self.url}{path}: {what}") from error
        finally:
            self._idle.append(client)
        status = reply.status_code
        if reply.is_success:
            return reply
        text = f"{self.url}{path} answered {status}: {_message(reply)}"
        # Another attempt may be answered where the server fails, or has too much to do.
        if (status >= 500 and status != NOT_IMPLEMENTED) or status in BUSY:
            raise Unavailable(text, status)
        raise Rejected(text, status)


@cache
def _tls() -> ssl.SSLContext:
    """Reads the certificates from the disk, once."""
    return httpx.create_ssl_context(trust_env=False)


def _text(reply: httpx.Response) -> str:
    return reply.content.decode(errors="replace")  # whatever encoding it says that it has


def _message(reply: httpx.Response) -> str:
    try:
        body = reply.json()
    except (ValueError, RecursionError):
        return shown(_text(reply)[:300])
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return shown(str(message)[:300])


def ask_health(url: str) -> str | None:
    """Returns why a server is to be waited for; None where it says that it is well.

    Raises:
      RolloutError: waiting does not help, with what is wrong and the remedy.
    """
    try:
        reply = _health(url)
    except UNREACHED as error:
        why, cause = error, error
        while cause is not None:  # another attempt would not change these
            if isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN:
                raise RolloutError(
                    f"{url}: the name {urlsplit(url).hostname} is not known here ({shown(error)}):"
                    " correct it, or give the server's address in numbers"
                ) from error
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLEOFError):
                raise RolloutError(
                    f"{url}: TLS fails ({shown(error)}): give http:// where the server has no TLS,"
                    " as vLLM has none by itself, or a certificate that is signed by a public"
                    " authority"
                ) from error
            if isinstance(cause, ConnectionError) and cause.errno:  # in the system's words
                why = OSError(cause.errno, os.strerror(cause.errno))
            if isinstance(cause, BaseExceptionGroup):  # one of each address of the name
                cause = cause.exceptions[-1]
            else:
                cause = cause.__cause__ or cause.__context__
        return shown(str(why) or type(why).__name__)
    if reply.is_success:
        return None
    if reply.status_code >= 500 or reply.status_code in BUSY:
        return f"it answers {reply.status_code}"
    raise RolloutError(f"{url}/health answers {reply.status_code}: {_remedy(url, reply)}")


def _health(url: str) -> httpx.Response:
    async def ask() -> httpx.Response:
        who, tls = headers_of_environment(), _tls()
        client = httpx.AsyncClient(headers=who, timeout=None, trust_env=False, verify=tls)
        async with asyncio.timeout(HEALTH_SECONDS), client:
            return await client.get(f"{url}/health")

    try:  # whole, however slowly its bytes come
        return asyncio.run(ask())
    except TimeoutError as error:
        late = f"it did not answer in full within {HEALTH_SECONDS:g} s"
        raise httpx.ReadTimeout(late) from error


def _remedy(url: str, reply: httpx.Response) -> str:
    if reply.status_code in (401, 403, 407):
        return f"wrong credentials, or none; {ELSEWHERE}"
    if reply.has_redirect_location:
        target = httpx.URL(reply.headers["Location"])
        host = target.netloc.decode()  # without who asks
        place = f"{target.scheme}://{host}" if host else target.path
        return f"it sends on to {shown(place)}, which is not followed: give that address"
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    try:
        if parts.path and _health(root).is_success:
            return f"the server is at {root}: give that address"
    except UNREACHED:
        pass
    return (
        "something else than vLLM answers there; give the address below which a server has"
        " /health and /v1, such as http://host:8000"
    )
