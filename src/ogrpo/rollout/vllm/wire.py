"""Requests and answers as JSON: pure functions between the engine's types and vLLM's two dialects.

`/v1/completions` is understood by every version; `/inference/v1/generate` ("native") carries the
version of the weights behind each token on vLLM 0.32. Every sampling option is sent, as a
server fills in those left out from the model's generation_config.json, and unknown ones are ignored
in silence: what matters is checked in the answer (`ogrpo.rollout.check`).

An answer is taken apart strictly: what is no number, missing or of another shape is told apart from
what is there and wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args
from uuid import uuid4

import numpy as np

from ogrpo.protocol import (
    Completion,
    FinishReason,
    FloatArray,
    Group,
    IntArray,
    Sampling,
    VersionSpan,
)
from ogrpo.rollout.check import IMPOSSIBLE, MASS_TOLERANCE, Flaw
from ogrpo.rollout.vllm.errors import Flawed

Json = dict[str, Any]
Echo = Literal["prompt", "request"]
"""What an answer may say of its request: the prompt's token ids, the request's id."""
UNLABELLED = -1
FINAL_ONLY = 2  # vLLM's RequestOutputKind; without it 0.23 drops all but one of n choices.


@dataclass(frozen=True)
class Order:
    """One request, in the terms of both dialects."""

    model: str
    sampling: Sampling
    eos_id: int
    version: int
    seed: int | None = None
    """Sent where the server can take it; see `Capabilities.seeds`."""
    echoes: frozenset[Echo] = frozenset()
    """What the server says of the request in its answer, and is held to."""
    request_id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def draws(self) -> int:
        """Returns the choices a prompt: greedy ones are all alike, and more are an error."""
        return 1 if self.sampling.greedy else self.sampling.group_size


def sampling_options(order: Order) -> Json:
    """Returns the sampling options that both dialects share, none left to the server."""
    sampling = order.sampling
    options = {
        "n": order.draws,
        "max_tokens": sampling.max_tokens,
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": [order.eos_id],
        "ignore_eos": True,  # else a model's further end tokens stop completions, too
        # The native dialect puts the token drawn first, and drops one more likely for it.
        "logprobs": sampling.record and sampling.record + (not _is_whole(sampling)),
    }
    return options if order.seed is None else {**options, "seed": order.seed}


def _is_whole(sampling: Sampling) -> bool:
    """Whether all that could be drawn is recorded."""
    return 0 < sampling.top_k <= sampling.record


def completions_payload(prompts: Sequence[IntArray], order: Order) -> Json:
    """Returns the body of `/v1/completions` for several prompts."""
    return {
        **sampling_options(order),
        "model": order.model,
        "prompt": [prompt.tolist() for prompt in prompts],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "cache_salt": f"v{order.version}",  # older weights' keys and values are not for these
        "request_id": order.request_id,
    }


def generate_payload(prompt: IntArray, order: Order) -> Json:
    """Returns the body of `/inference/v1/generate` for one prompt."""
    options = {**sampling_options(order), "detokenize": False, "output_kind": FINAL_ONLY}
    return {
        "model": order.model,
        "token_ids": prompt.tolist(),
        "sampling_params": options,
        "return_token_ids": True,
        "cache_salt": f"v{order.version}",  # older weights' keys and values are not for these
        "request_id": order.request_id,
    }


def score_payload(sequences: Sequence[IntArray], model: str) -> Json:
    """Returns the body of `/v1/completions` that scores tokens and draws one that nobody reads."""
    return {
        "model": model,
        "prompt": [ids.tolist() for ids in sequences],
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def read_scores(reply: Json, sequences: Sequence[IntArray]) -> list[FloatArray]:
    """Returns log softmax(z) of tokens 1.. of each sequence, float32 `[S - 1]`.

    Raises:
      Flawed: the answer is none.
    """
    scores = []
    for choice, sequence in zip(_choices(reply, len(sequences)), sequences, strict=True):
        scored, ids = choice.get("prompt_logprobs"), sequence[1:].tolist()
        if not isinstance(scored, list) or len(scored) != len(sequence):
            raise _malformed(f"prompt_logprobs is {_shown(scored)} for {len(sequence)} tokens")
        entries = [_of(entry, str(token)) for entry, token in zip(scored[1:], ids, strict=True)]
        scores.append(_floats([_of(entry, "logprob") for entry in entries]))
    return scores


def read_completions(reply: Json, prompts: Sequence[IntArray], order: Order) -> list[Group]:
    """Returns the groups of an answer of `/v1/completions`; a choice's prompt is `index // n`.

    Raises:
      Flawed: the answer is none.
    """
    n, drawn = order.draws, []
    for place, choice in enumerate(_ordered(reply, len(prompts) * n, order, "id")):
        _check_prompt(choice, prompts[place // n], order)
        reported = _of(choice, "logprobs")
        top = None
        if order.sampling.record:
            try:
                top = [[*place.items()] for place in _of(reported, "top_logprobs")]
            except (TypeError, AttributeError) as error:
                raise _malformed("top_logprobs is no list of objects") from error
        drawn.append(_completion(choice, _of(reported, "token_logprobs"), order, top))
    return [
        _group(prompt, drawn[place * n : (place + 1) * n], order)
        for place, prompt in enumerate(prompts)
    ]


def read_generated(reply: Json, prompt: IntArray, order: Order) -> Group:
    """Returns the group of an answer of `/inference/v1/generate`.

    Raises:
      Flawed: the answer is none.
    """
    choices, drawn = _ordered(reply, order.draws, order, "request_id"), []
    _check_prompt(reply, prompt, order)
    for choice in choices:
        content = _of(_of(choice, "logprobs"), "content")
        if not isinstance(content, list):
            raise _malformed(f"logprobs.content is {_shown(content)}")
        try:  # a call for each token would cost more than all else
            log_probs = [entry["logprob"] for entry in content]
        except (TypeError, KeyError) as error:
            raise _malformed("an entry of logprobs.content without logprob") from error
        top = None
        if order.sampling.record:
            try:
                top = [[(x["token"], x["logprob"]) for x in e["top_logprobs"]] for e in content]
            except (TypeError, KeyError) as error:
                raise _malformed("an entry of logprobs.content without top_logprobs") from error
        drawn.append(_completion(choice, log_probs, order, top))
    return _group(prompt, drawn, order)


def echoes_of(reply: Json, name: str, prompt: IntArray, order: Order) -> frozenset[Echo]:
    """Returns what an answer says of its request; `name` is that of the request's id in it.

    Raises:
      Flawed: it belongs to another prompt.
    """
    echoes: set[Echo] = set()
    if str(reply.get(name)).endswith(order.request_id):
        echoes.add("request")
    holder = reply["choices"][0] if name == "id" else reply
    if holder.get("prompt_token_ids") is not None:
        _check_prompt(holder, prompt, replace(order, echoes=frozenset({"prompt"})))
        echoes.add("prompt")
    return frozenset(echoes)


def _check_prompt(holder: Json, prompt: IntArray, order: Order) -> None:
    """Refuses the answer to another prompt."""
    if "prompt" in order.echoes and (echo := _of(holder, "prompt_token_ids")) != prompt.tolist():
        raise Flawed(Flaw("order", f"the prompt came back as {_shown(echo)}"))


def _ordered(reply: Any, count: int, order: Order, name: str) -> list[Json]:
    """Returns the choices of an answer to this order."""
    if "request" in order.echoes and not str(_of(reply, name)).endswith(order.request_id):
        what = f"the answer to request {_shown(reply[name])} came to {order.request_id}"
        raise Flawed(Flaw("order", what))
    return _choices(reply, count)


def _choices(reply: Any, count: int) -> list[Json]:
    """Returns the choices of an answer in the order of their indices, each index once."""
    choices = _of(reply, "choices")
    if not isinstance(choices, list):
        raise _malformed(f"choices is {_shown(choices)}")
    by_index: dict[int, Json] = {}
    for choice in choices:
        index = _of(choice, "index")
        if type(index) is not int:
            raise _malformed(f"the index of a choice is {_shown(index)}")
        if choice.get("finish_reason") == "abort":  # what there is of it may lack anything
            raise Flawed(Flaw("aborted", "a completion was given up"))
        if index in by_index:
            raise Flawed(Flaw("repeated", f"choice {index} came back twice"))
        by_index[index] = choice
    if sorted(by_index) != list(range(count)):
        raise Flawed(Flaw("count", f"{len(by_index)} choices for {count} ordered"))
    return [by_index[index] for index in range(count)]


def _group(prompt: IntArray, drawn: Sequence[Completion], order: Order) -> Group:
    alike = order.sampling.group_size if order.sampling.greedy else 1
    return Group(prompt, tuple(c for c in drawn for _ in range(alike)))


def _completion(
    choice: Json, log_probs: Any, order: Order, top: list[list[tuple[Any, Any]]] | None
) -> Completion:
    reason: Any = choice.get("finish_reason")
    if reason not in get_args(FinishReason):
        raise Flawed(Flaw("finish", f"finish_reason is {_shown(reason)}"))
    ids, values = _ints(_of(choice, "token_ids")), _floats(log_probs)
    if len(ids) != len(values):
        raise Flawed(Flaw("log_probs", f"{len(values)} log-probs for {len(ids)} tokens"))
    spans = _spans(choice)
    tops = (None, None) if top is None else _tops(top, len(ids), order.sampling)
    whole = tops[0] is not None and _is_whole(order.sampling)
    if whole and not np.any(tops[0] == ids[:, None], axis=1).all():
        raise Flawed(Flaw("tokens", "a token is none of those that could be drawn"))
    return Completion(
        token_ids=ids,
        log_probs=values,
        policy_version=min((s.version for s in spans), default=order.version),
        temperature=order.sampling.temperature,
        finish_reason=reason,
        version_spans=spans,
        top_ids=tops[0],
        top_log_probs=tops[1],
    )


def _tops(
    top: list[list[tuple[Any, Any]]], length: int, sampling: Sampling
) -> tuple[IntArray, FloatArray]:
    """Returns the likeliest tokens of each place and their log-probs, as `Completion` has them.

    Where all that could be drawn is to be there, its probabilities sum to 1.
    """
    if len(top) != length:
        raise Flawed(Flaw("log_probs", f"likeliest tokens at {len(top)} of {length} places"))
    ids = np.full((length, sampling.record), -1, np.int32)
    log_probs = np.full(ids.shape, -np.inf, np.float32)
    for place, entries in enumerate(top):
        names = [str(token).removeprefix("token_id:") for token, _ in entries]
        if not all(name.isdecimal() and len(name) < 10 for name in names):
            raise _malformed(f"likeliest tokens are {names[:3]}, not token_id:N")
        values = _floats([value for _, value in entries])
        left = np.flatnonzero(values > IMPOSSIBLE)
        left = left[np.argsort(-values[left], kind="stable")][: sampling.record]
        ids[place, : len(left)] = [int(names[n]) for n in left]
        log_probs[place, : len(left)] = values[left]
    off = np.abs(np.exp(log_probs, dtype=np.float64).sum(axis=1) - 1)
    if _is_whole(sampling) and off.max(initial=0) > MASS_TOLERANCE:
        text = f"the {sampling.record} likeliest tokens miss a probability of 1 by {off.max():.4f}"
        raise Flawed(Flaw("log_probs", f"{text}, as where more are equal at the edge of top_k"))
    return ids, log_probs


def _ints(values: Any) -> IntArray:
    if not isinstance(values, list):
        raise _malformed(f"token_ids is {_shown(values)}")
    for value in values if {*map(type, values)} - {int} else ():
        if type(value) is not int:
            raise Flawed(Flaw("tokens", f"a token id is {_shown(value)}"))
    if values and not 0 <= min(values) <= max(values) <= np.iinfo(np.int32).max:
        worst = min(values) if min(values) < 0 else max(values)
        raise Flawed(Flaw("tokens", f"a token id is {_shown(worst)}"))
    return np.array(values, np.int32)


def _floats(values: Any) -> FloatArray:
    if not isinstance(values, list):
        raise _malformed(f"the log-probs are {_shown(values)}")
    for value in values if {*map(type, values)} - {int, float} else ():
        if type(value) not in (int, float):
            raise Flawed(Flaw("log_probs", f"a log-prob is {_shown(value)}"))
    try:
        with np.errstate(over="ignore"):  # infinity is refused by the check
            return np.array(values, np.float64).astype(np.float32)
    except OverflowError as error:
        raise Flawed(Flaw("log_probs", "a log-prob is larger than any float")) from error


def _spans(choice: Json) -> tuple[VersionSpan, ...]:
    """Returns versions of tokens by the labels that pushes left.

    Weights that nobody pushed are called "default".
    """
    spans, labelled = choice.get("weight_versions") or [], []
    if not isinstance(spans, list):
        raise _malformed(f"weight_versions is {_shown(spans)}")
    for span in spans:
        label, start, end = (_of(span, name) for name in ("version", "start", "end"))
        if type(label) is not str or type(start) is not int or type(end) is not int:
            raise _malformed(f"weight_versions has {_shown(span)}")
        version = int(label) if label.isdecimal() and len(label) < 10 else UNLABELLED
        labelled.append(VersionSpan(version, start, end))
    return tuple(labelled)


def _of(part: Any, name: str) -> Any:
    """Returns what an object of the answer has under a name."""
    if not isinstance(part, dict) or name not in part:
        raise _malformed(f"no {name} in {_shown(part)}")
    return part[name]


def _malformed(what: str) -> Flawed:
    return Flawed(Flaw("malformed", what))


def _shown(value: Any) -> str:
    """Returns what came in place of something else, in a few words."""
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        error = value.get("error")
        said = error.get("message") if isinstance(error, dict) else error
        return f"an error: {_shown(said)}" if said else f"an object of {[*value][:5]}"
    return repr(value)[:200]
