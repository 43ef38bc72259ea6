"""Capabilities of a server, asked for once before it is used, and refusals because of them.

What matters for log-probs is measured, not believed: the most likely first tokens are asked for at
two temperatures. Where log-probs are those of the distribution drawn from, their spread changes
with the temperature; where they are log softmax(z), it does not.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ogrpo.protocol import IntArray, Sampling
from ogrpo.rollout.extension.ogrpo_releases import PROTOCOL
from ogrpo.rollout.vllm import wire
from ogrpo.rollout.vllm.api import Json, ServerApi
from ogrpo.rollout.vllm.errors import Flawed, Refused, Rejected, Unavailable
from ogrpo.rollout.vllm.wire import Echo, Order
from ogrpo.system.terminal import shown

LogProbs = Literal["raw", "processed"]
COLD, HOT = 0.5, 2.0
TOP = 5
TAKES_NONE = (
    "takes no weights: start vLLM >= 0.23 with VLLM_SERVER_DEV_MODE=1, --worker-extension-cls "
    """ogrpo_weight_sync.WeightSync and --weight-transfer-config '{"backend": "ogrpo"}' """
    "(ogrpo-serve does all three)"
)
SAID: Mapping[str, Any] = {
    "instance": str,
    "sha256": str,
    "dtype": str,
    "vocab_size": int,
    "quantization": str | None,
    "chunked_prefill": bool,
}
"""Fields of the worker extension's description that are used, and their types."""


@dataclass(frozen=True)
class Expected:
    """The trainer's side of the set-up."""

    vocab_size: int
    eos_id: int
    max_length: int
    """Longest prompt plus completion."""


@dataclass(frozen=True)
class Capabilities:
    """The measured capabilities of one server.

    Attributes:
      url, vllm, model, max_model_len: its address, version, model's name and context.
      log_probs: of which distribution its log-probs are, as measured.
      native: `/inference/v1/generate` answers, with the version of each token's weights.
      echoes: what its answers say of their requests, so that none is taken for another's.
      extension: what the worker extension says of itself.
      ranks: data-parallel ranks, each with the weights.
    """

    url: str
    vllm: str
    model: str
    max_model_len: int
    log_probs: LogProbs
    native: bool
    echoes: frozenset[Echo]
    extension: Json
    ranks: int

    @property
    def dtype(self) -> str:
        """Returns the served dtype."""
        return self.extension["dtype"]

    @property
    def seeds(self) -> bool:
        """Returns whether requests may carry a seed: with chunked prefill one kills vLLM."""
        return not self.extension["chunked_prefill"]


def table(servers: list[Capabilities]) -> str:
    """Returns what will be used, one block a server."""
    blocks = []
    for able in servers:
        ranks = f", {able.ranks} data-parallel ranks" if able.ranks > 1 else ""
        rows = {
            "server": f"{able.url} (vLLM {able.vllm})",
            "model": f"{able.model}, {able.dtype}, {able.max_model_len} tokens",
            "samples from": "/inference/v1/generate" if able.native else "/v1/completions",
            "log-probs": f"{able.log_probs} (measured)",
            "versions": "of each token" if able.native else "of each request",
            "answers bound": f"by the {' and the '.join(sorted(able.echoes))}",
            "weight pushes": f"ogrpo_weight_sync{ranks}",
            "reproducible": "yes" if able.seeds else "no: the server prefills in chunks",
        }
        blocks.append("\n".join(f"{name:<14} {shown(value)}" for name, value in rows.items()))
    return "\n\n".join(blocks)


async def look(api: ServerApi, extension: Json, expected: Expected) -> Capabilities:
    """Asks a server what it can do; `extension` is from `describe`.

    Raises:
      Refused: its vocabulary or context does not fit the trainer's.
      RolloutError: it does not answer, or answers what vLLM does not.
    """
    vllm, cards = await asyncio.gather(api.version(), api.models())
    with understood(api.url, "/v1/models", cards):
        model, context = str(cards[0]["id"]), int(cards[0].get("max_model_len") or 0)
    _check_fit(api.url, extension, context, expected)
    counts = [await api.workers(all_ranks=all_ranks) for all_ranks in (True, False)]
    with understood(api.url, "/get_world_size", counts):
        ranks = max(1, int(counts[0]) // max(1, int(counts[1])))
    rank = None if ranks == 1 else 0
    log_probs, portable = await measure_log_probs(api, model, expected, rank=rank)
    native = await _native(api, model, expected)
    echoes = portable if native is None else native
    if not echoes:
        raise Refused(
            f"{api.url} returns neither a prompt's token ids nor a request's id, so that nobody "
            "knows whose answer one is: serve vLLM >= 0.23, and have no proxy take them out"
        )
    return Capabilities(
        url=api.url,
        vllm=vllm,
        model=model,
        max_model_len=context,
        log_probs=log_probs,
        native=native is not None,
        echoes=echoes,
        extension=extension,
        ranks=ranks,
    )


@contextmanager
def understood(url: str, what: str, answer: Any) -> Iterator[None]:
    """Turns what cannot be taken out of an odd answer into an error that passes."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, Flawed) as error:
        raise Unavailable(f"{url}: {what} answered {str(answer)[:80]!r}") from error


async def describe(api: ServerApi) -> Json:
    """Returns what the worker extension says of itself; no sha256 where its workers disagree.

    Raises:
      RolloutError: it does not answer, or answers what the extension does not.
    """
    try:
        answers = await api.describe()
    except (Rejected, Unavailable) as error:
        # So vLLM answers where the route or the method is missing, and so may one that starts.
        if error.status in (404, 500):
            raise Unavailable(f"{api.url} {TAKES_NONE}; {error}", error.status) from error
        raise
    with understood(api.url, "ogrpo_describe", answers):
        held = {answer["sha256"] for answer in answers}
        for name, kind in SAID.items():
            if not isinstance(answers[0][name], kind):
                raise TypeError(name)
    # What a push that failed halfway left is no version; the next one makes them alike.
    return answers[0] if len(held) == 1 else {**answers[0], "sha256": ""}


def _check_fit(url: str, extension: Json, context: int, expected: Expected) -> None:
    if extension.get("protocol") != PROTOCOL:
        raise Refused(
            f"{url} has the worker extension of another version of ogrpo: start it with the folder "
            "of this one (ogrpo-serve does)"
        )
    if extension.get("transfer") != "ogrpo":
        raise Refused(f"{url} {TAKES_NONE}")
    if context < expected.max_length:
        raise Refused(
            f"{url} takes {context} tokens, prompt and completion need {expected.max_length}; "
            "it would cut completions short in silence: start it with a larger --max-model-len"
        )
    if extension["vocab_size"] != expected.vocab_size:
        raise Refused(
            f"{url} serves a vocabulary of {extension['vocab_size']}, the trainer's model has "
            f"{expected.vocab_size}: serve the folder that the trainer started from"
        )
    if extension["quantization"] is not None:
        raise Refused(
            f"{url} serves {extension['quantization']} weights, which cannot be replaced and whose "
            "log-probs are not the policy's: serve it unquantised"
        )


async def measure_log_probs(
    api: ServerApi, model: str, expected: Expected, *, rank: int | None
) -> tuple[LogProbs, frozenset[Echo]]:
    """Returns whose log-probs are reported, by experiment, and what answers say of their requests.

    The spread of log softmax(z/T) over the same tokens is that of z divided by T: 4 times as large
    at T = 1/2 as at T = 2. The threshold lies between 4 and 1.
    """

    async def first_tokens(temperature: float) -> tuple[dict[str, float], frozenset[Echo]]:
        """Returns the most likely tokens after the end token, with their log-probs, and echoes."""
        prompt, order = _question(model, expected, temperature)
        payload = wire.completions_payload([prompt], order)
        payload |= {"logprobs": TOP}
        reply = await api.complete(payload, rank=rank)
        with understood(api.url, "/v1/completions", reply):
            top = reply["choices"][0]["logprobs"]["top_logprobs"][0]
            tokens = {str(token): float(value) for token, value in top.items()}
            return tokens, wire.echoes_of(reply, "id", prompt, order)

    (cold, echoes), (hot, others) = await asyncio.gather(first_tokens(COLD), first_tokens(HOT))
    common = sorted(cold.keys() & hot.keys())
    if not common:
        raise Unavailable(
            f"{api.url} has other first tokens at one temperature than at another: its weights "
            "may just have been replaced"
        )
    spreads = [np.ptp([tokens[token] for token in common]) for tokens in (cold, hot)]
    processed = spreads[0] > (HOT / COLD) ** 0.5 * spreads[1]
    return "processed" if processed else "raw", echoes & others


def _question(model: str, expected: Expected, temperature: float) -> tuple[IntArray, Order]:
    """Returns the end token as a prompt, and the order of one token after it."""
    sampling = Sampling(temperature=temperature, max_tokens=1, group_size=1)
    return np.array([expected.eos_id], np.int32), Order(model, sampling, expected.eos_id, -1)


async def _native(api: ServerApi, model: str, expected: Expected) -> frozenset[Echo] | None:
    """Returns what the native endpoint says of its requests; None where it knows no versions.

    It is not in openapi.json.
    """
    prompt, order = _question(model, expected, 1.0)
    try:
        reply = await api.generate(wire.generate_payload(prompt, order))
    except Rejected as error:
        if error.status in (403, 404, 405):
            return None
        raise
    with understood(api.url, "/inference/v1/generate", reply):
        drawn = [(x["token_ids"], x.get("weight_versions")) for x in reply["choices"]]
        echoes = wire.echoes_of(reply, "request_id", prompt, order)
        return echoes if all(versions for _, versions in drawn) else None


def check_sampling(able: Capabilities, sampling: Sampling, longest_prompt: int) -> None:
    """Refuses sampling whose log-probs would be wrong, and requests that would be cut short.

    Raises:
      Refused: a temperature other than 1, or tokens left out, with raw log-probs, or more tokens
        than the server takes.
    """
    altered = not sampling.greedy and (sampling.temperature != 1 or sampling.truncates)
    if altered and able.log_probs != "processed":
        raise Refused(
            f"temperature is {sampling.temperature}, min_p {sampling.min_p}, top_k {sampling.top_k}"
            f" and top_p {sampling.top_p}, but {able.url} reports log-probs of temperature 1 over "
            "all tokens (raw): start it with --logprobs-mode processed_logprobs (ogrpo-serve does),"
            " or sample at temperature 1 from all"
        )
    if longest_prompt + sampling.max_tokens > able.max_model_len:
        raise Refused(
            f"a prompt of {longest_prompt} tokens and {sampling.max_tokens} to draw do not fit "
            f"the {able.max_model_len} that {able.url} takes: raise its --max-model-len"
        )
