"""The servers' HTTP protocol in front of the embedded sampler: a vLLM of one file, for any machine.

What `ogrpo.rollout.vllm` asks of a server is answered here from plain functions, in the same words,
errors included, so that the bridge can be tested, and a set-up rehearsed, without vLLM. Sampling
is done one request at a time. It is no vLLM: no batching across requests, no abort on the way.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import numpy as np

from ogrpo.protocol import Completion, Engine, Group, IntArray, Sampling
from ogrpo.rollout import fields
from ogrpo.rollout.address import url_of
from ogrpo.rollout.extension import ogrpo_adapters
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.http_server import BadRequest, Handler, HttpServer
from ogrpo.rollout.served_adapters import AdaptFn, ServedAdapters
from ogrpo.rollout.weights.tensors import Tensors, read
from ogrpo.system.files import parse_json
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
Json = dict[str, Any]
UNPUSHED = -1
SOURCE = {"path", "url", "token", "broadcast"}
"""Where a push may say that a release is."""
STAGED = {"name", "manifest_sha256"}
"""What a push of adapters says beside that."""
VERSION = "0.0.0+ogrpo-embedded"
FAILED = "Internal Server Error"
"""All that vLLM says of what a worker raised."""


@dataclass(frozen=True)
class ServedModel:
    """A served model, as functions.

    Attributes:
        engine: samples from what was published last; ends completions at `eos_id`.
        params_fn: tensors by their Hugging Face names -> parameters to publish.
        adapt_fn: `(params, A and B by PEFT's names, scale)` -> parameters with these adapters.
        score_fn: `(params, sequences)` -> log softmax(z) of tokens 1.. of each.
        next_fn: `(params, prompt)` -> log softmax(z) `[V]` of the token after the prompt.
        decode_fn: token ids -> text, special tokens shown.
        shapes: name -> shape of the tensors that a push must bring.
        dtype: the served one.
        vocab_size: V.
        eos_id: the end token.
        max_model_len: longest prompt plus completion.
    """

    engine: Engine
    params_fn: Callable[[Tensors], Any]
    adapt_fn: AdaptFn
    score_fn: Callable[[Any, Sequence[IntArray]], Sequence[np.ndarray]]
    next_fn: Callable[[Any, IntArray], np.ndarray]
    decode_fn: Callable[[Sequence[int]], str]
    shapes: Mapping[str, list[int]]
    dtype: str
    vocab_size: int
    eos_id: int
    max_model_len: int


@dataclass
class Service:
    """The state behind the protocol: the weights, and whether it is paused."""

    model: ServedModel
    params: Any
    name: str = "policy"
    place: Any = field(default_factory=releases.Workplace)
    paused: bool = False
    updating: bool = False
    generated: int = 0
    lora_rank: int = 0
    """The largest rank of adapters that may be pushed by themselves; 0: none may."""
    _gate: threading.Condition = field(default_factory=threading.Condition)
    _running: int = 0
    _sampler: Any = field(default_factory=threading.Lock)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Serves the first weights, without adapters."""
        self.model.engine.publish(self.params, UNPUSHED)
        self._sampled = self.params
        self.adapters = ServedAdapters(self.model.adapt_fn, self.name)
        self._staged = ogrpo_adapters.Adapters(
            self.place,
            shapes_fn=lambda: self.model.shapes,
            dtype=self.model.dtype,
            most_rank=self.lora_rank,
        )

    # --- what the server says of itself --------------------------------------------------------

    def cards(self) -> list[Json]:
        """The model's card, and those of the adapters beside it."""
        base = {"id": self.name, "object": "model", "max_model_len": self.model.max_model_len}
        return [base, *({"id": name, "object": "model"} for name in self.adapters)]

    def describe(self) -> Json:
        """As the vLLM worker extension's `ogrpo_describe`."""
        return {
            **self.place.where(),
            "protocol": releases.PROTOCOL,
            "transfer": "ogrpo",
            "dtype": self.model.dtype,
            "vocab_size": self.model.vocab_size,
            "quantization": None,
            "chunked_prefill": False,
            "lora_rank": self.lora_rank,
            "nccl": "the embedded engine is no vLLM on a GPU",
        }

    def metrics(self) -> str:
        """A Prometheus page with what the trainer shows."""
        return (
            f"vllm:num_requests_running {self._running}\n"
            f"vllm:num_requests_waiting 0\n"
            f"vllm:generation_tokens_total {self.generated}\n"
        )

    def detokenize(self, body: Json) -> Json:
        """`/detokenize`."""
        self._check_model(body)
        ids = fields.token_ids(body.get("tokens"), "tokens")
        return {"prompt": self.model.decode_fn(ids.tolist())}

    # --- weights -------------------------------------------------------------------------------

    def start_update(self) -> None:
        """`/start_weight_update`: one at a time, as in vLLM."""
        self._require(not self.updating)
        self.updating = True

    def update(self, body: Json) -> None:
        """`/update_weights`; one that fails ends the update, and says no more than 500."""
        self._require(self.updating)
        ticket = fields.section(body, "update_info")
        known = {"version", "manifest_sha256", "install"} | SOURCE
        named = {"version": None, "manifest_sha256": None, **ticket}
        self.updating = False
        self._require(ticket.keys() <= known)
        try:
            releases.update(self.place, self._served(), **named)
        except releases.Refusal as refusal:
            raise BadRequest(FAILED, 500) from refusal
        self.updating = True

    def finish_update(self) -> None:
        """`/finish_weight_update`; there is nothing to label: completions carry their version."""
        self._require(self.updating)
        self.updating = False

    def _require(self, holds: bool) -> None:
        if not holds:
            raise BadRequest(FAILED, 500)

    def _served(self) -> releases.Served:
        return releases.Served(lambda: self.model.shapes, self.model.dtype, self._install)

    def _install(self, release: releases.Checked) -> None:
        with self._sampler:
            self.params = self._sampled = self.model.params_fn(read(release.file))
            self.model.engine.publish(self.params, release.version)

    def call(self, method: Any, arguments: Json) -> list[Json]:
        """`/collective_rpc` for the methods that the trainer calls."""
        if method == "ogrpo_describe" and not arguments:
            return [self.describe()]
        if method == "ogrpo_stage_adapter" and STAGED <= arguments.keys() <= STAGED | SOURCE:
            return [self._staged.stage(**arguments)]
        if method in ("ogrpo_describe", "ogrpo_stage_adapter"):
            raise BadRequest(f"{method} does not take {', '.join(arguments)!r:.80}")
        raise BadRequest(f"this server has no method {method!r:.60}", 500)

    def pause(self, *, drain: bool) -> None:
        """Lets no new request in; with `drain`, returns when none is left."""
        with self._gate:
            self.paused = True
            if drain:
                self._gate.wait_for(lambda: self._running == 0)

    def resume(self) -> None:
        """Lets requests in again."""
        with self._gate:
            self.paused = False
            self._gate.notify_all()

    def _enter(self) -> None:
        with self._gate:
            self._gate.wait_for(lambda: not self.paused)
            self._running += 1

    def _leave(self) -> None:
        with self._gate:
            self._running -= 1
            self._gate.notify_all()

    # --- samples and scores --------------------------------------------------------------------

    def complete(self, body: Json) -> Json:
        """`/v1/completions`."""
        self._check_model(body)
        prompts = fields.prompts(body.get("prompt"))
        self._enter()
        try:
            if body.get("prompt_logprobs") is not None:
                choices = self._scores(prompts, self._weights(body["model"]))
            else:
                groups = self._sample(prompts, body)
                drawn = [(c, group) for group in groups for c in group.completions]
                top = self._top(prompts[0], body) if body.get("logprobs") else None
                choices = [
                    {**_portable(n, c, top), **_echo(body, group)}
                    for n, (c, group) in enumerate(drawn)
                ]
        finally:
            self._leave()
        answer = {"id": f"cmpl-{_request_id(body)}", "object": "text_completion"}
        return {**answer, "model": body["model"], "choices": choices}

    def generate(self, body: Json) -> Json:
        """`/inference/v1/generate`."""
        self._check_model(body)
        self._enter()
        try:
            prompt = fields.token_ids(body.get("token_ids"), "token_ids")
            options = fields.section(body, "sampling_params")
            (group,) = self._sample([prompt], {**options, "model": body["model"]})
        finally:
            self._leave()
        choices = [_native(n, c) for n, c in enumerate(group.completions)]
        answer = {"request_id": f"generate-tokens-{_request_id(body)}", **_echo(body, group)}
        return {**answer, "model": body["model"], "choices": choices}

    def _check_model(self, body: Json) -> None:
        name = body.get("model")
        if not isinstance(name, str) or (name != self.name and name not in self.adapters):
            raise BadRequest(f"The model `{name!s:.80}` does not exist.", 404)

    def _weights(self, name: str) -> Any:
        return self.params if name == self.name else self.adapters.params(name, self.params)

    def _sample(self, prompts: list[IntArray], options: Json) -> list[Group]:
        sampling = self._sampling(prompts, options)
        with self._sampler:
            self._drawn += 1
            seed = fields.whole(options, "seed", self._drawn, -(1 << 63), (1 << 63) - 1)
            weights = self._weights(options["model"])
            if weights is not self._sampled:
                self.model.engine.publish(weights, self.place.where()["version"])
                self._sampled = weights
            try:
                groups = self.model.engine.generate(prompts, sampling, seed)
            except ValueError as error:  # asked again, it is refused again
                raise BadRequest(str(error)) from error
            self.generated += sum(len(c.token_ids) for g in groups for c in g.completions)
        return groups

    def _sampling(self, prompts: list[IntArray], options: Json) -> Sampling:
        self._check_ids(prompts)
        longest = max(map(len, prompts))
        max_tokens = fields.whole(options, "max_tokens", 16, 1, 1 << 31)
        tokens = min(max_tokens, self.model.max_model_len - longest)
        temperature = fields.number(options, "temperature", 1.0, most=1e6)
        n = fields.whole(options, "n", 1, 1, fields.MOST_CHOICES)
        if tokens < 1:
            raise BadRequest(f"the prompt has {longest} tokens, too many for this model")
        if temperature == 0 and n > 1:
            raise BadRequest(f"n is {n} at temperature {temperature}")
        if options.get("top_p", 1.0) != 1.0 or options.get("top_k", 0) not in (0, -1):
            raise BadRequest("the embedded sampler draws from all tokens: leave top_p and top_k")
        greedy = temperature == 0
        return Sampling(1.0 if greedy else temperature, tokens, n, greedy=greedy)

    def _check_ids(self, prompts: list[IntArray]) -> None:
        for prompt in prompts:
            if len(prompt) == 0 or prompt.min() < 0 or prompt.max() >= self.model.vocab_size:
                raise BadRequest("a prompt is empty or has a token id out of the vocabulary")
            if len(prompt) > self.model.max_model_len:
                most = self.model.max_model_len
                raise BadRequest(f"a prompt has {len(prompt)} tokens: this model takes {most}")

    def _scores(self, sequences: list[IntArray], params: Any) -> list[Json]:
        self._check_ids(sequences)
        with self._sampler:
            scores = self.model.score_fn(params, sequences)
        return [
            {
                "index": n,
                "finish_reason": "length",
                "prompt_logprobs": [None, *map(_scored, ids[1:].tolist(), values.tolist())],
            }
            for n, (ids, values) in enumerate(zip(sequences, scores, strict=True))
        ]

    def _top(self, prompt: IntArray, body: Json) -> list[dict[str, float]]:
        self._check_ids([prompt])
        temperature = fields.number(body, "temperature", 1.0, most=1e6)
        if temperature == 0:
            raise BadRequest("temperature is 0: log-probs need one above it")
        z = self.model.next_fn(self.params, prompt) / temperature
        log_probs = z - np.logaddexp.reduce(z)
        count = fields.whole(body, "logprobs", 1, 0, self.model.vocab_size)
        best = np.argsort(-log_probs)[:count].tolist()
        return [{f"token_id:{token}": float(log_probs[token]) for token in best}]


def _request_id(body: Json) -> str:
    return f"{body.get('request_id') or uuid4().hex!s:.80}"


def _echo(body: Json, group: Group) -> Json:
    return {"prompt_token_ids": group.prompt_ids.tolist() if body.get("return_token_ids") else None}


def _scored(token: int, log_prob: float) -> Json:
    return {str(token): {"logprob": log_prob}}


def _portable(index: int, drawn: Completion, top: Any) -> Json:
    return _choice(index, drawn, {"token_logprobs": drawn.log_probs.tolist(), "top_logprobs": top})


def _native(index: int, drawn: Completion) -> Json:
    label = "default" if drawn.policy_version == UNPUSHED else str(drawn.policy_version)
    span = {"version": label, "start": 0, "end": len(drawn.token_ids)}
    log_probs = {"content": [{"logprob": x} for x in drawn.log_probs.tolist()]}
    return {**_choice(index, drawn, log_probs), "weight_versions": [span]}


def _choice(index: int, drawn: Completion, log_probs: Json) -> Json:
    ids, reason = drawn.token_ids.tolist(), drawn.finish_reason
    return {"index": index, "token_ids": ids, "finish_reason": reason, "logprobs": log_probs}


class Endpoint:
    """A service behind HTTP.

    Args:
        service: what answers.
        host: interface; pushes are remote control, so keep to the loopback or a private network.
        port: 0 takes a free one.
        native: whether to offer `/inference/v1/generate`.
        dev_mode: whether to offer what changes weights.
    """

    def __init__(
        self,
        service: Service,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        native: bool = True,
        dev_mode: bool = True,
    ) -> None:
        self.service = service
        routes = _routes(service, native=native, dev_mode=dev_mode)
        self._server = HttpServer((host, port), _handler(routes))
        self.url = url_of(host, self._server.server_port)

    def serve_forever(self) -> None:
        """Answers until `close`."""
        self._server.serve_forever(poll_interval=0.05)

    def close(self) -> None:
        """Stops answering."""
        self._server.shutdown()
        self._server.server_close()


Route = Callable[[Json, dict[str, str]], Any]


def _routes(service: Service, *, native: bool, dev_mode: bool) -> dict[tuple[str, str], Route]:
    routes: dict[tuple[str, str], Route] = {
        ("GET", "/health"): lambda *_: {},
        ("GET", "/version"): lambda *_: {"version": VERSION},
        ("GET", "/v1/models"): lambda *_: {"object": "list", "data": service.cards()},
        ("GET", "/metrics"): lambda *_: service.metrics(),
        ("POST", "/detokenize"): lambda body, _: service.detokenize(body),
        ("POST", "/v1/completions"): lambda body, _: service.complete(body),
    }
    if native:
        routes["POST", "/inference/v1/generate"] = lambda body, _: service.generate(body)
    if dev_mode:
        routes |= {
            ("POST", "/pause"): lambda _, query: service.pause(drain=query.get("mode") != "keep"),
            ("GET", "/get_world_size"): lambda *_: {"world_size": 1},
            ("GET", "/is_paused"): lambda *_: {"is_paused": service.paused},
            ("POST", "/resume"): lambda *_: service.resume(),
            ("POST", "/reset_prefix_cache"): lambda *_: {},
            ("POST", "/start_weight_update"): lambda *_: service.start_update(),
            ("POST", "/update_weights"): lambda body, _: service.update(body),
            ("POST", "/finish_weight_update"): lambda *_: service.finish_update(),
            ("POST", "/collective_rpc"): lambda body, _: {
                "results": service.call(body.get("method"), fields.section(body, "kwargs"))
            },
        }
    if service.lora_rank:
        routes |= {
            ("POST", "/v1/load_lora_adapter"): lambda body, _: service.adapters.load(body),
            ("POST", "/v1/unload_lora_adapter"): lambda body, _: service.adapters.unload(body),
        }
    return routes


def _handler(routes: Mapping[tuple[str, str], Route]) -> type[Handler]:
    class EndpointHandler(Handler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def _answer(self) -> None:
            try:
                self.send_json(self._result())
            except BadRequest as error:
                self.refuse(error)
            except OSError:  # the client did not wait
                raise
            except Exception as error:  # the outermost boundary: the client is told, and waits not
                log.warning("%s: %s: %s", shown(self.path), type(error).__name__, shown(error))
                self.send_json({"error": {"message": "the server failed; its log says how"}}, 500)

        def _result(self) -> Any:
            body = self.read_body()
            if self.headers.get("Origin") is not None:
                raise BadRequest("this server is not for web pages", HTTPStatus.FORBIDDEN)
            try:
                parts = urlsplit(self.path)
                query = parse_qs(parts.query, max_num_fields=32)
                value = parse_json(body.decode("utf-8"), "the body") if body else {}
            except ValueError as error:
                raise BadRequest(str(error)) from error
            route = routes.get((str(self.command), parts.path))
            if route is None:
                raise BadRequest("Not Found", HTTPStatus.NOT_FOUND)
            if not isinstance(value, dict):
                raise BadRequest(f"the body is a {type(value).__name__}: send an object")
            return route(value, {name: values[-1] for name, values in query.items()})

    return EndpointHandler


def wait_until_up(url: str, seconds: float) -> None:
    """Returns when a server answers /health.

    Raises:
        TimeoutError: it does not within `seconds`.
    """
    import httpx

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=2, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise TimeoutError(f"{url} did not come up within {seconds:g} s")
