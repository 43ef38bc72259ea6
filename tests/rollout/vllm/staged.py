"""vLLM's protocol as coroutines in virtual time, and all that can go wrong with a server of it.

Weights are a number. Every log-prob says which: `log_prob_of(weights)`; so whoever uses a sample of
other weights than its version's can be found out.
"""

import asyncio
import json
import selectors

import httpx
import numpy as np

from ogrpo.protocol import Sampling, check_request
from ogrpo.rollout.extension.ogrpo_releases import PROTOCOL

FIRST = 999
"""The weights that a process starts with."""
EOS = 0


def log_prob_of(weights):
    return -1.0 - weights / 100.0


def weights_of(log_prob):
    return round((-1.0 - float(log_prob)) * 100.0)


def sampling_of(body):
    how = body.get("sampling_params", body)
    greedy = how["temperature"] == 0
    return Sampling(how["temperature"], how["max_tokens"], how["n"], greedy=greedy)


class Fails(Exception):
    """An error that vLLM answers with 500."""


class Staged(httpx.AsyncBaseTransport):
    """One server.

    Attributes:
        faults: what happens to the next request of a path, by the path's last part: `refuse` (503),
            `drop` (not delivered), `lose` (delivered, no answer), `hang` (delivered, no answer and no
            end), `odd` (an answer that vLLM does not give), `ignore` (200, and
            nothing is done), `late` (an answer after 8 s).
        raw: its log-probs are log softmax(z) whatever the temperature, as vLLM's are by default.
    """

    def __init__(self):
        self.faults, self.raw = {}, False
        self.alive, self.starts = True, 0
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._begin()

    def _begin(self):
        self.starts += 1
        self.weights, self.label, self.note = FIRST, "default", ("", -1)
        self.paused, self._running = False, 0
        self._open, self._update, self._staged = False, None, None
        self._dead = asyncio.Event()
        self._changed = asyncio.Event()

    # --- what befalls it -----------------------------------------------------------------------

    def kill(self):
        self.alive = False
        self._dead.set()

    def start(self):
        self.kill()
        self.alive = True
        self._begin()

    def freeze(self):
        self._thawed.clear()

    def thaw(self):
        self._thawed.set()

    @property
    def well(self):
        """Whether nothing is wrong with it that a client could not mend."""
        return self.alive and self._thawed.is_set() and not self.faults

    # --- the protocol --------------------------------------------------------------------------

    async def handle_async_request(self, request):
        path, life = request.url.path, self._dead
        if not self.alive:
            raise httpx.ConnectError("nobody listens")
        fault = self.faults.pop(path.rsplit("/", 1)[1], None)
        if fault == "drop":
            raise httpx.ReadError("cut on the way")
        if fault == "refuse":
            return httpx.Response(503, json={"error": {"message": "busy"}})
        if fault == "ignore":
            return httpx.Response(200, json={})
        answer = asyncio.ensure_future(self._answer(path, request, fault))
        died = asyncio.ensure_future(life.wait())
        try:
            await asyncio.wait([answer, died], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answer, died):
                task.cancel()
            await asyncio.gather(answer, died, return_exceptions=True)
        if life.is_set() or answer.cancelled():
            raise httpx.ReadError("the process died")
        if fault == "lose":
            raise httpx.ReadError("the answer was lost")
        if fault == "odd":
            return httpx.Response(200, json={"results": [7], "choices": [{"index": 0}], "data": 1})
        return answer.result()

    async def _answer(self, path, request, fault):
        await asyncio.sleep(0.01)
        await self._thawed.wait()
        body = json.loads(request.content or b"{}")
        try:
            reply = await self._do(path, body, request.url.params)
        except Fails:
            return httpx.Response(500, json={"error": {"message": "the engine failed"}})
        if fault == "hang":
            await asyncio.Event().wait()
        await asyncio.sleep(8.0 if fault == "late" else 0.0)
        return httpx.Response(200, json=reply)

    async def _do(self, path, body, query):
        if path in ("/v1/completions", "/inference/v1/generate"):
            return await self._draw(path, body)
        said = {
            "version": {"version": "0.32"},
            "models": {"data": [{"id": "policy", "max_model_len": 64}]},
            "is_paused": {"is_paused": self.paused},
            "reset_prefix_cache": {},
            "get_world_size": {"world_size": 1},
        }
        name = path.rsplit("/", 1)[1]
        return said[name] if name in said else await getattr(self, name)(body, query)

    async def pause(self, _, query):
        self.paused = True
        while query["mode"] == "wait" and self._running:
            await self._changed.wait()
        return {}

    async def resume(self, *_):
        self.paused = False
        self._tell()
        return {}

    async def collective_rpc(self, *_):
        sha256, version = self.note
        described = {
            "instance": str(self.starts),
            "sha256": sha256,
            "version": version,
            "dtype": "float32",
            "vocab_size": 16,
            "quantization": None,
            "chunked_prefill": True,
            "protocol": PROTOCOL,
            "transfer": "ogrpo",
            "update": self._update,
        }
        return {"results": [described]}

    async def start_weight_update(self, *_):
        if self._open:
            raise Fails
        self._open = True
        return {}

    async def finish_weight_update(self, body, _):
        if not self._open:
            raise Fails
        self._open, self.label = False, body["weight_version"] or self.label
        return {}

    async def update_weights(self, body, _):
        if not self._open:
            raise Fails
        update = body["update_info"]
        await asyncio.sleep(0.5)
        install = update.get("install", False)
        code = self.faults.pop("install" if install else "load", None)
        sha256 = update["manifest_sha256"]
        self._update = {"manifest_sha256": sha256, "code": code, "error": code, "pulled": 0}
        if install and self._staged != sha256:
            self._open = False
            raise Fails
        if code is not None:
            self._open = False
            if install:
                self.weights, self.note = FIRST + 1, ("", -1)
            raise Fails
        self._staged = None if install else sha256
        if install:
            self.weights, self.note = update["version"], (sha256, update["version"])
        return {}

    async def _draw(self, path, body):
        while self.paused:
            await self._changed.wait()
        life, self._running = self.starts, self._running + 1
        try:
            return await self._drawn(path, body)
        finally:
            if life == self.starts:
                self._running -= 1
                self._tell()

    async def _drawn(self, path, body):
        if body.get("prompt_logprobs") is not None:
            scores = [self._scored(ids) for ids in body["prompt"]]
            return {"choices": [{"index": n, "prompt_logprobs": x} for n, x in enumerate(scores)]}
        echo = {"prompt_token_ids": body.get("prompt", [body.get("token_ids")])[0]}
        check_request([np.array(ids, np.int32) for ids in echo.values()], sampling_of(body))
        if path == "/v1/completions":
            temperature = 1.0 if self.raw else body["temperature"]
            top = {f"token_id:{n}": -n / temperature for n in (1, 2, 3)}
            choice = {"logprobs": {"top_logprobs": [top]}, **echo}
            return {"id": f"cmpl-{body['request_id']}", "choices": [choice]}
        sampling = body["sampling_params"]
        await asyncio.sleep(0.2 * sampling["max_tokens"])
        drawn = log_prob_of(self.weights)
        choice = {
            "token_ids": [1] * (sampling["max_tokens"] - 1) + [EOS],
            "finish_reason": "stop",
            "logprobs": {"content": [{"logprob": drawn}] * sampling["max_tokens"]},
            "weight_versions": [{"version": self.label, "start": 0, "end": sampling["max_tokens"]}],
        }
        choices = [{"index": n, **choice} for n in range(sampling["n"])]
        answer = {"request_id": f"generate-tokens-{body['request_id']}", **echo}
        return {**answer, "model": body["model"], "choices": choices}

    def _scored(self, ids):
        score = {"logprob": log_prob_of(self.weights)}
        return [None, *({str(token): score} for token in ids[1:])]

    def _tell(self):
        self._changed.set()
        self._changed = asyncio.Event()


class _Selector(selectors.DefaultSelector):
    """Instead of sleeping until the next timer, it moves the clock there."""

    clock = 0.0

    def select(self, timeout=None):
        assert timeout is not None, "everybody waits, and no timer is left"
        self.clock += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual seconds; it must do nothing that takes real ones."""

    def __init__(self):
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self):
        return self._virtual.clock
