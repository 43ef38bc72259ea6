"""One server's HTTP API: a method for each call, errors sorted by what can be done about them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import httpx

from ogrpo.rollout.address import check_url, server_root
from ogrpo.rollout.vllm.errors import BUSY, Rejected, Unavailable
from ogrpo.system.terminal import shown

Json = dict[str, Any]
CONNECT_SECONDS, SHORT_SECONDS = 5.0, 20.0
"""At most, to connect, and for an answer that no samples have to be drawn for."""
IDLE_SECONDS = 2.0
"""After which a connection is not used again: vLLM closes it at 5 s, perhaps just then."""
NOT_IMPLEMENTED = 501
""""Not by this server, now or later": to be rejected, not tried again."""


class ServerApi:
    """Calls to one server over connections that are kept open, as many as are made at a time.

    Args:
        url: as in `http://host:8000`.
        headers: sent with each request: who asks (`Options.headers`).
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
        self.place = urlsplit(self.url).netloc.rpartition("@")[2]
        self._headers = headers
        self._transport = transport
        self._seconds, self._short = timeout, min(timeout, SHORT_SECONDS)
        self._idle = [self._client()]

    def _client(self) -> httpx.AsyncClient:
        # The environment's proxies are not for a private network.
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            verify=_tls(),
            trust_env=False,
            transport=self._transport,
            limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
            timeout=httpx.Timeout(None, connect=min(self._seconds, CONNECT_SECONDS)),
        )

    async def close(self) -> None:
        """Closes the connections."""
        await asyncio.gather(*(client.aclose() for client in self._idle))

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses: one for all looks through all connections each time."""
        client = self._idle.pop() if self._idle else self._client()
        try:
            yield client
        finally:
            self._idle.append(client)

    async def version(self) -> str:
        """The version of vLLM."""
        return str(await self._field("version", "GET", "/version"))

    async def models(self) -> list[Json]:
        """The served models' cards."""
        return await self._field("data", "GET", "/v1/models")

    async def metrics(self) -> str:
        """Prometheus metrics as text."""
        return (await self._call("GET", "/metrics", seconds=self._short)).text

    async def complete(self, payload: Json, *, rank: int | None = None) -> Json:
        """`/v1/completions`: samples and scores, of one data-parallel rank if it is named."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        seconds = self._seconds
        return await self._json(
            "POST", "/v1/completions", payload, headers=headers, seconds=seconds
        )

    async def generate(self, payload: Json) -> Json:
        """`/inference/v1/generate`: samples with the version of each token's weights."""
        return await self._json("POST", "/inference/v1/generate", payload, seconds=self._seconds)

    async def detokenize(self, model: str, ids: Sequence[int]) -> str:
        """The text of token ids."""
        payload = {"model": model, "tokens": list(ids)}
        return await self._field("prompt", "POST", "/detokenize", payload)

    async def rpc(self, method: str, arguments: Json, *, seconds: float | None = None) -> list[Any]:
        """Calls a method of every worker; needs VLLM_SERVER_DEV_MODE=1 on the server."""
        payload = {"method": method, "kwargs": arguments}
        results = await self._field("results", "POST", "/collective_rpc", payload, seconds=seconds)
        if not isinstance(results, list) or not results:
            raise Unavailable(f"{self.url}/collective_rpc answered for no worker")
        return results

    async def load_adapter(self, name: str, folder: str, *, seconds: float) -> None:
        """Has requests for the model `name` answered with adapters from a folder of the server's.

        One that has the name already keeps it: a name is of one version's adapters alone.
        """
        payload = {"lora_name": name, "lora_path": folder}
        try:
            await self._call("POST", "/v1/load_lora_adapter", payload, seconds=seconds)
        except Rejected as error:
            if "already been loaded" not in str(error):
                raise

    async def unload_adapter(self, name: str) -> None:
        """Takes a name back; nothing happens where nobody has it."""
        payload = {"lora_name": name}
        try:
            await self._call("POST", "/v1/unload_lora_adapter", payload, seconds=self._short)
        except Rejected as error:
            if error.status != 404:
                raise

    async def pause(self, mode: str) -> None:
        """Stops generation; requests in flight are drained, aborted or kept."""
        query = {"mode": mode, "clear_cache": "true"}
        await self._call("POST", "/pause", params=query, seconds=self._seconds)

    async def resume(self) -> None:
        """Goes on after a pause."""
        await self._call("POST", "/resume", seconds=self._short)

    async def is_paused(self) -> bool | None:
        """Returns whether it is paused, which /health does not say; None where it tells nobody."""
        try:
            paused = await self._field("is_paused", "GET", "/is_paused")
        except Rejected as error:
            if error.status not in (404, 405, NOT_IMPLEMENTED):
                raise
            return None
        return bool(paused)

    async def reset_prefix_cache(self) -> None:
        """Forgets the keys and values of earlier prompts."""
        await self._call("POST", "/reset_prefix_cache", seconds=self._short)

    async def workers(self, *, all_ranks: bool) -> int:
        """Returns how many processes hold weights, in one data-parallel rank or in all of them."""
        path = f"/get_world_size?include_dp={str(all_ranks).lower()}"
        return await self._field("world_size", "GET", path)

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

    async def _field(
        self,
        name: str,
        method: str,
        path: str,
        payload: Json | None = None,
        *,
        seconds: float | None = None,
    ) -> Any:
        reply = await self._json(method, path, payload, seconds=seconds)
        if not isinstance(reply, dict) or name not in reply:
            raise Unavailable(f"{self.url}{path} answered without {name!r}: {str(reply)[:80]!r}")
        return reply[name]

    async def _json(
        self,
        method: str,
        path: str,
        payload: Json | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Json:
        seconds = seconds or self._short
        reply = await self._call(method, path, payload, headers=headers, seconds=seconds)
        try:
            return reply.json()
        except (ValueError, RecursionError) as error:
            raise Unavailable(f"{self.url}{path} answered no JSON: {reply.text[:80]!r}") from error

    async def _call(
        self,
        method: str,
        path: str,
        payload: Json | None = None,
        *,
        params: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float,
    ) -> httpx.Response:
        """The whole answer, within so many seconds, however slowly its bytes come."""
        try:
            async with asyncio.timeout(seconds), self._connection() as client:
                reply = await client.request(
                    method, path, json=payload, params=params, headers=headers
                )
        except TimeoutError as error:
            late = f"{self.url}{path} did not answer in full within {seconds:g} s"
            raise Unavailable(late) from error
        except httpx.RequestError as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"{self.url}{path}: {what}") from error
        if _passes(reply.status_code):
            text = f"{self.url}{path} answered {reply.status_code}: {_message(reply)}"
            raise Unavailable(text, reply.status_code)
        if reply.status_code >= 400:
            text = f"{self.url}{path} answered {reply.status_code}: {_message(reply)}"
            raise Rejected(text, reply.status_code)
        return reply


@cache
def _tls() -> ssl.SSLContext:
    """Made once: the certificates are read from the disk."""
    return httpx.create_ssl_context(trust_env=False)


def _passes(status: int) -> bool:
    """Returns whether another attempt may be answered: the server fails, or is asked too much."""
    return (status >= 500 and status != NOT_IMPLEMENTED) or status in BUSY


def _message(reply: httpx.Response) -> str:
    try:
        body = reply.json()
    except (ValueError, RecursionError):
        return shown(reply.text[:300])
    error = body.get("error", body) if isinstance(body, dict) else body
    message = error.get("message", error) if isinstance(error, dict) else error
    return shown(str(message)[:300])
