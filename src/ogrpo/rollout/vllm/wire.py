"""Requests and answers as JSON: pure functions between the engine's types and vLLM's two dialects.

`/v1/completions` is understood by every version; `/inference/v1/generate` ("native") carries the
version of the weights behind each token on vLLM 0.32. Every sampling option is sent, as a
server fills in those left out from the model's generation_config.json, and unknown ones are ignored
in silence: what matters is checked in the answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ogrpo.rollout.protocol import Completion, Group, IntArray, Sampling, VersionSpan
from ogrpo.rollout.vllm.errors import RolloutError

Json = dict[str, Any]
UNLABELLED = -1
FINAL_ONLY = 2  # vLLM's RequestOutputKind; without it 0.23 drops all but one of n choices.


@dataclass(frozen=True)
class Truncation:
    """Nucleus and top-k sampling: draws from another distribution than the policy's."""

    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""

    @property
    def active(self) -> bool:
        """Whether any token is ruled out."""
        return self.top_p < 1.0 or self.top_k > 0


UNTRUNCATED = Truncation()


@dataclass(frozen=True)
class Order:
    """What one request asks for, in the terms of both dialects."""

    model: str
    sampling: Sampling
    truncation: Truncation
    eos_id: int
    version: int
    seed: int | None = None
    """Sent where the server can take it; see `Capabilities.seeds`."""

    @property
    def draws(self) -> int:
        """Choices a prompt: greedy ones are all alike, and asking for more is an error."""
        return 1 if self.sampling.greedy else self.sampling.group_size


def sampling_options(order: Order) -> Json:
    """The sampling options that both dialects share, none left to the server."""
    sampling = order.sampling
    options = {
        "n": order.draws,
        "max_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": order.truncation.top_p,
        "top_k": order.truncation.top_k,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [order.eos_id],
        "logprobs": 0,
    }
    return options if order.seed is None else {**options, "seed": order.seed}


def completions_payload(prompts: Sequence[IntArray], order: Order) -> Json:
    """The body of `/v1/completions` for several prompts."""
    return {
        **sampling_options(order),
        "model": order.model,
        "prompt": [prompt.tolist() for prompt in prompts],
        "return_token_ids": True,
        "skip_special_tokens": False,
        "cache_salt": salt(order.version),
    }


def generate_payload(prompt: IntArray, order: Order) -> Json:
    """The body of `/inference/v1/generate` for one prompt."""
    options = {**sampling_options(order), "detokenize": False, "output_kind": FINAL_ONLY}
    return {
        "model": order.model,
        "token_ids": prompt.tolist(),
        "sampling_params": options,
        "cache_salt": salt(order.version),
    }


def salt(version: int) -> str:
    """Keeps keys and values that older weights computed out of a version's prompts."""
    return f"v{version}"


def score_payload(sequences: Sequence[IntArray], model: str) -> Json:
    """The body of `/v1/completions` that scores given tokens and draws one that nobody reads."""
    return {
        "model": model,
        "prompt": [ids.tolist() for ids in sequences],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def read_scores(reply: Json, sequences: Sequence[IntArray]) -> list[np.ndarray]:
    """log softmax(z) of tokens 1.. of each sequence, float32 `[S - 1]`."""
    choices = sorted(reply["choices"], key=lambda choice: choice["index"])
    if len(choices) != len(sequences):
        raise RolloutError(f"{len(choices)} scores came back for {len(sequences)} sequences")
    return [
        np.array(
            [entry[str(token)]["logprob"] for entry, token in zip(given, ids, strict=True)],
            np.float32,
        )
        for given, ids in (
            (choice["prompt_logprobs"][1:], sequence[1:].tolist())
            for choice, sequence in zip(choices, sequences, strict=True)
        )
    ]


def read_completions(reply: Json, prompts: Sequence[IntArray], order: Order) -> list[Group]:
    """Groups from an answer of `/v1/completions`; the prompt of a choice is `index // n`."""
    choices = {choice["index"]: choice for choice in reply["choices"]}
    expected = len(prompts) * order.draws
    if sorted(choices) != list(range(expected)):
        raise RolloutError(f"{len(choices)} choices came back, {expected} were asked for")
    drawn = [_completion(choices[index], _portable(choices[index]), order) for index in choices]
    by_index = dict(zip(choices, drawn, strict=True))
    return [
        _group(prompt, [by_index[n * order.draws + g] for g in range(order.draws)], order)
        for n, prompt in enumerate(prompts)
    ]


def read_generated(reply: Json, prompt: IntArray, order: Order) -> Group:
    """The group of an answer of `/inference/v1/generate`."""
    choices = reply["choices"]
    if len(choices) != order.draws:
        raise RolloutError(f"{len(choices)} choices came back, {order.draws} were asked for")
    drawn = [_completion(choice, _native(choice), order) for choice in choices]
    return _group(prompt, drawn, order)


def _group(prompt: IntArray, drawn: Sequence[Completion], order: Order) -> Group:
    alike = order.sampling.group_size if order.sampling.greedy else 1
    return Group(prompt, tuple(c for c in drawn for _ in range(alike)))


def _portable(choice: Json) -> list[float]:
    return (choice.get("logprobs") or {}).get("token_logprobs") or []


def _native(choice: Json) -> list[float]:
    content = (choice.get("logprobs") or {}).get("content") or []
    return [entry["logprob"] for entry in content]


def _completion(choice: Json, log_probs: list[float], order: Order) -> Completion:
    token_ids = choice.get("token_ids")
    if token_ids is None:
        raise RolloutError("the answer has no token_ids: this server is older than vLLM 0.11")
    if len(log_probs) != len(token_ids):
        raise RolloutError(f"{len(log_probs)} log-probs came back for {len(token_ids)} tokens")
    reason = choice["finish_reason"]
    _check_end(reason, token_ids, order.eos_id)
    spans = _spans(choice)
    return Completion(
        token_ids=np.array(token_ids, np.int32),
        log_probs=np.array(log_probs, np.float32),
        policy_version=min((s.version for s in spans), default=order.version),
        temperature=order.sampling.temperature,
        finish_reason=reason,
        version_spans=spans,
    )


def _check_end(reason: str, token_ids: Sequence[int], eos_id: int) -> None:
    if reason == "stop" and (not token_ids or token_ids[-1] != eos_id):
        last = token_ids[-1] if token_ids else None
        raise RolloutError(
            f"the server ended a completion at token {last}, the tokenizer's end is {eos_id}: "
            "serve the model with the trainer's tokenizer and --generation-config vllm"
        )


def _spans(choice: Json) -> tuple[VersionSpan, ...]:
    return tuple(
        VersionSpan(_version(span["version"]), int(span["start"]), int(span["end"]))
        for span in choice.get("weight_versions") or ()
    )


def _version(label: str) -> int:
    """The label that a push left; weights that nobody pushed are called "default"."""
    return int(label) if label.isdecimal() else UNLABELLED
