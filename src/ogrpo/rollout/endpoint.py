"""The servers' HTTP protocol in front of the embedded sampler: a vLLM of one file, for any machine.

Each request of `ogrpo.rollout.vllm` is answered here from plain functions, in the same words,
errors included, so that the bridge can be tested, and a set-up rehearsed, without vLLM. Sampling
is done one request at a time. It is no vLLM: no batching across requests, no abort on the way.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import numpy as np
from safetensors import safe_open

from ogrpo.protocol import Completion, Engine, Group, IntArray, Sampling
from ogrpo.rollout.address import url_of
from ogrpo.rollout.extension import ogrpo_releases as releases
from ogrpo.rollout.http_server import BadRequest, Handler, HttpServer
from ogrpo.system.files import parse_json
from ogrpo.system.terminal import shown

log = logging.getLogger(__name__)
Json = dict[str, Any]
UNPUSHED = -1
SOURCE = {"path", "url", "token"}
"""Fields of an update that say where its release is."""
VERSION = "0.0.0+ogrpo-embedded"
FAILED = "Internal Server Error"
"""All that vLLM says of what a worker raised."""
MOST_PROMPTS, MOST_CHOICES, MOST_IDS = 4096, 4096, 1 << 22
"""Prompts, choices a prompt and token ids of one request at most; a model takes fewer ids, and its
refusal says how many."""


# --- values of a request's body: a wrong one is refused by its name -------------------------------


def token_ids(value: Any, name: str) -> IntArray:
    """Returns token ids as an array."""
    short = isinstance(value, list) and len(value) <= MOST_IDS
    if not short or not all(type(x) is int and 0 <= x < 1 << 31 for x in value):
        raise BadRequest(f"{name} is {value!r:.60}: give a list of token ids")
    return np.array(value, np.int32)


def prompts_of(value: Any) -> list[IntArray]:
    """Returns one prompt or several, as token ids."""
    several = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if len(several) > MOST_PROMPTS:
        raise BadRequest(f"there are {len(several)} prompts: give at most {MOST_PROMPTS}")
    return [token_ids(each, "prompt") for each in several]


def whole(options: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """Returns a whole number of an option; null is the default."""
    value = options.get(name)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise BadRequest(f"{name} is {value!r:.60}: give a whole number from {least} to {most}")
    return value


def number(options: Mapping[str, Any], name: str, default: float, most: float) -> float:
    """Returns a number of an option from 0 on; null is the default."""
    value = options.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise BadRequest(f"{name} is {value!r:.60}: give a number from 0 to {most:g}")
    return float(value)


def section(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns an object of the body; empty where it is not there."""
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is {value!r:.60}: give an object")
    return value


# --- the service ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServedModel:
    """The functions of a served model.

    Attributes:
      engine: samples from what was published last; ends completions at `eos_id`.
      params_fn: what gives a tensor by its Hugging Face name -> parameters to publish.
      score_fn: `(params, sequences)` -> log softmax(z) of tokens 1.. of each.
      shapes: name -> shape of the tensors that a push must bring.
      dtype: the served one.
      vocab_size: V.
      eos_id: the end token.
      max_model_len: longest prompt plus completion.
    """

    engine: Engine
    params_fn: Callable[[Callable[[str], np.ndarray]], Any]
    score_fn: Callable[[Any, Sequence[IntArray]], Sequence[np.ndarray]]
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
    worker: releases.WorkerState = field(default_factory=releases.WorkerState)
    paused: bool = False
    updating: bool = False
    generated: int = 0
    _gate: threading.Condition = field(default_factory=threading.Condition)
    _running: int = 0
    _sampler: threading.Lock = field(default_factory=threading.Lock)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self.model.engine.publish(self.params, UNPUSHED)

    def cards(self) -> list[Json]:
        """Returns the model's card."""
        return [{"id": self.name, "object": "model", "max_model_len": self.model.max_model_len}]

    def describe(self) -> Json:
        """Answers as the vLLM worker extension's `ogrpo_describe` does."""
        return {
            **self.worker.status(),
            "protocol": releases.PROTOCOL,
            "transfer": "ogrpo",
            "dtype": self.model.dtype,
            "vocab_size": self.model.vocab_size,
            "quantization": None,
            "chunked_prefill": False,
        }

    def metrics(self) -> str:
        """Returns a Prometheus page with what the trainer shows."""
        return (
            f"vllm:num_requests_running {self._running}\n"
            f"vllm:num_requests_waiting 0\n"
            f"vllm:generation_tokens_total {self.generated}\n"
        )

    # --- weights -------------------------------------------------------------------------------

    def toggle_update(self, *, start: bool) -> None:
        """Answers `/start_weight_update`, one at a time as in vLLM, and `/finish_weight_update`.

        There is nothing to label at the end: completions carry their version.
        """
        self._require(self.updating != start)
        self.updating = start

    def update(self, body: Json) -> None:
        """Answers `/update_weights`; one that fails ends the update, and says no more than 500."""
        self._require(self.updating)
        ticket = section(body, "update_info")
        arguments = {"version": None, "manifest_sha256": None, **ticket}
        self.updating = False
        self._require(ticket.keys() <= {"version", "manifest_sha256", "install"} | SOURCE)
        try:
            served = releases.Served(lambda: self.model.shapes, self.model.dtype, self._install)
            releases.update(self.worker, served, **arguments)
        except releases.Refusal as refusal:
            raise BadRequest(FAILED, 500) from refusal
        self.updating = True

    def _require(self, holds: bool) -> None:
        if not holds:
            raise BadRequest(FAILED, 500)

    def _install(self, release: releases.Checked) -> None:
        with self._sampler, safe_open(release.file, "np") as opened:
            self.params = self.model.params_fn(opened.get_tensor)
            self.model.engine.publish(self.params, release.version)

    def call(self, method: object, arguments: Json) -> list[Json]:
        """Answers `/collective_rpc` for the method that the trainer calls."""
        if method != "ogrpo_describe":
            raise BadRequest(f"this server has no method {method!r:.60}", 500)
        if arguments:
            raise BadRequest(f"{method} does not take {', '.join(arguments)!r:.80}")
        return [self.describe()]

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

    @contextmanager
    def _let_in(self) -> Iterator[None]:
        """Waits until nothing is paused, and counts a request as running."""
        with self._gate:
            self._gate.wait_for(lambda: not self.paused)
            self._running += 1
        try:
            yield
        finally:
            with self._gate:
                self._running -= 1
                self._gate.notify_all()

    # --- samples and scores --------------------------------------------------------------------

    def complete(self, body: Json) -> Json:
        """Answers `/v1/completions`."""
        self._check_model(body)
        prompts = prompts_of(body.get("prompt"))
        with self._let_in():
            if body.get("prompt_logprobs") is not None:
                choices = self._scores(prompts)
            else:
                drawn = [
                    (c, group) for group in self._sample(prompts, body) for c in group.completions
                ]
                choices = [
                    {
                        **_choice(n, c),
                        "logprobs": {
                            "token_logprobs": c.log_probs.tolist(),
                            "top_logprobs": [dict(place) for place in _top(c)] or None,
                        },
                        **_echo(body, group),
                    }
                    for n, (c, group) in enumerate(drawn)
                ]
        answer = {"id": f"cmpl-{_request_id(body)}", "object": "text_completion"}
        return {**answer, "model": body["model"], "choices": choices}

    def generate(self, body: Json) -> Json:
        """Answers `/inference/v1/generate`."""
        self._check_model(body)
        with self._let_in():
            prompt = token_ids(body.get("token_ids"), "token_ids")
            options = section(body, "sampling_params")
            (group,) = self._sample([prompt], options)
        choices = []
        for n, c in enumerate(group.completions):
            label = "default" if c.policy_version == UNPUSHED else str(c.policy_version)
            span = {"version": label, "start": 0, "end": len(c.token_ids)}
            content: list[Json] = [{"logprob": x} for x in c.log_probs.tolist()]
            for entry, place in zip(content, _top(c), strict=False):
                entry["top_logprobs"] = [{"token": name, "logprob": x} for name, x in place]
            log_probs = {"content": content}
            choices.append({**_choice(n, c), "logprobs": log_probs, "weight_versions": [span]})
        answer = {"request_id": f"generate-tokens-{_request_id(body)}", **_echo(body, group)}
        return {**answer, "model": body["model"], "choices": choices}

    def _check_model(self, body: Json) -> None:
        name = body.get("model")
        if name != self.name:
            raise BadRequest(f"The model `{name!s:.80}` does not exist.", 404)

    def _sample(self, prompts: list[IntArray], options: Json) -> list[Group]:
        sampling = self._sampling(prompts, options)
        with self._sampler:
            seed = whole(options, "seed", self._drawn, -(1 << 63), (1 << 63) - 1) % (1 << 32)
            self._drawn += len(prompts)  # the engine adds a prompt's place to the seed
            try:
                groups = self.model.engine.generate(prompts, sampling, seed)
            except ValueError as error:  # it will be refused again
                raise BadRequest(str(error)) from error
            self.generated += sum(len(c.token_ids) for g in groups for c in g.completions)
        return groups

    def _sampling(self, prompts: list[IntArray], options: Json) -> Sampling:
        self._check_ids(prompts)
        longest = max(map(len, prompts))
        max_tokens = whole(options, "max_tokens", 16, 1, 1 << 31)
        tokens = min(max_tokens, self.model.max_model_len - longest)
        temperature = number(options, "temperature", 1.0, 1e6)
        n = whole(options, "n", 1, 1, MOST_CHOICES)
        if tokens < 1:
            raise BadRequest(f"the prompt has {longest} tokens, too many for this model")
        if temperature == 0 and n > 1:
            raise BadRequest(f"n is {n} at temperature {temperature}")
        greedy = temperature == 0
        try:
            return Sampling(
                1.0 if greedy else temperature,
                tokens,
                n,
                greedy=greedy,
                min_p=number(options, "min_p", 0.0, 1.0),
                top_k=max(0, whole(options, "top_k", 0, -1, 1 << 31)),
                top_p=number(options, "top_p", 1.0, 1.0),
                record=whole(options, "logprobs", 0, 0, self.model.vocab_size),
            )
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def _check_ids(self, prompts: list[IntArray]) -> None:
        most = self.model.max_model_len
        for prompt in prompts:
            if len(prompt) == 0 or prompt.min() < 0 or prompt.max() >= self.model.vocab_size:
                raise BadRequest("a prompt is empty or has a token id out of the vocabulary")
            if len(prompt) > most:
                raise BadRequest(f"a prompt has {len(prompt)} tokens: this model takes {most}")

    def _scores(self, sequences: list[IntArray]) -> list[Json]:
        self._check_ids(sequences)
        with self._sampler:
            scores = self.model.score_fn(self.params, sequences)
        choices = []
        for n, (ids, values) in enumerate(zip(sequences, scores, strict=True)):
            pairs = zip(ids[1:].tolist(), values.tolist(), strict=True)
            scored = [None, *({str(token): {"logprob": value}} for token, value in pairs)]
            choices.append({"index": n, "finish_reason": "length", "prompt_logprobs": scored})
        return choices


def _request_id(body: Json) -> str:
    return f"{body.get('request_id') or uuid4().hex!s:.80}"


def _echo(body: Json, group: Group) -> Json:
    return {"prompt_token_ids": group.prompt_ids.tolist() if body.get("return_token_ids") else None}


def _top(drawn: Completion) -> list[list[tuple[str, float]]]:
    """Returns the likeliest tokens at each place by name, with their log-probs; [] if not asked."""
    if drawn.top_ids is None or drawn.top_log_probs is None:
        return []
    places = zip(drawn.top_ids.tolist(), drawn.top_log_probs.tolist(), strict=True)
    return [
        [(f"token_id:{token}", x) for token, x in zip(*place, strict=True) if token >= 0]
        for place in places
    ]


def _choice(index: int, drawn: Completion) -> Json:
    ids = drawn.token_ids.tolist()
    return {"index": index, "token_ids": ids, "finish_reason": drawn.finish_reason}


Route = Callable[[Json, dict[str, str]], Any]


class Endpoint(HttpServer):
    """Serves a service over HTTP, by `serve_forever` until `close`.

    Args:
      service: what answers.
      host: interface; pushes are remote control, so keep to the loopback or a private network.
      port: 0 takes a free one.
      native: whether to offer `/inference/v1/generate`.

    Raises:
      ValueError: the port is taken or there is none such, or the interface is not this machine's.
    """

    def __init__(
        self, service: Service, *, host: str = "127.0.0.1", port: int = 0, native: bool = True
    ) -> None:
        self.service = service
        routes: dict[tuple[str, str], Route] = {
            ("GET", "/health"): lambda *_: {},
            ("GET", "/version"): lambda *_: {"version": VERSION},
            ("GET", "/v1/models"): lambda *_: {"object": "list", "data": service.cards()},
            ("GET", "/metrics"): lambda *_: service.metrics(),
            ("POST", "/v1/completions"): lambda body, _: service.complete(body),
            ("POST", "/pause"): lambda _, query: service.pause(drain=query.get("mode") != "keep"),
            ("GET", "/get_world_size"): lambda *_: {"world_size": 1},
            ("GET", "/is_paused"): lambda *_: {"is_paused": service.paused},
            ("POST", "/resume"): lambda *_: service.resume(),
            ("POST", "/reset_prefix_cache"): lambda *_: {},
            ("POST", "/start_weight_update"): lambda *_: service.toggle_update(start=True),
            ("POST", "/update_weights"): lambda body, _: service.update(body),
            ("POST", "/finish_weight_update"): lambda *_: service.toggle_update(start=False),
            ("POST", "/collective_rpc"): lambda body, _: {
                "results": service.call(body.get("method"), section(body, "kwargs"))
            },
        }
        if native:
            routes["POST", "/inference/v1/generate"] = lambda body, _: service.generate(body)
        try:
            super().__init__((host, port), _handler(routes))
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"{host}:{port} cannot be listened on ({error}): give another --host or --port"
            ) from error
        self.url = url_of(host, self.server_port)


def _handler(routes: Mapping[tuple[str, str], Route]) -> type[Handler]:
    class EndpointHandler(Handler):
        def do_GET(self) -> None:
            try:
                self.send_json(self._result())
            except BadRequest as error:
                self.refuse(error)
            except OSError:  # the client did not wait
                raise
            except Exception as error:  # the outermost boundary: the client is told, and waits not
                log.warning("%s: %s: %s", shown(self.path), type(error).__name__, shown(error))
                self.send_json({"error": {"message": "the server failed; its log says how"}}, 500)

        do_POST = do_GET

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
