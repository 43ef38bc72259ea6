"""One check of completions against what was ordered; nothing else is learned from.

    engine -> groups -> flaws(groups, required) -> whole and possible: used
                                             -> the others: counted by reason, asked for again

A completion is whole if it has its tokens, a log-prob for each, an end that fits them, and versions
that were published; it is possible if its policy could have drawn it. The servers' client checks
every answer before it counts, the collector checks what any engine gives.
"""

import math
from collections import Counter
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from ogrpo.protocol import Completion, Group, Sampling

Place = TypeVar("Place", bound=Hashable)
REFUSED = "rollout/refused"
"""The metric that counts completions that were refused; a reason and a server may follow it."""
ABOVE_ZERO = 1e-4
"""How far above 0 rounding may lift a log-prob: float32 rounds logits below 1,024 in size by at
most 6e-5, and a sampler may round the token's logit and the normaliser apart."""
SAME = 1e-3
"""Nats at most between a token's log-prob and its own among the likeliest, which are one number."""
MASS_TOLERANCE = 1e-3
"""By how much the probabilities of tokens that could be drawn may miss 1, or exceed it."""
IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity: the sampler says that the token could not be drawn."""
NO_CHANCE = -40.0
"""Log of the chance, 4e-18, below which completions that are alike are one, returned again."""

REMEDIES = {
    "order": "look for a cache or a proxy in between that mixes answers up",
    "count": "look whether a proxy in between changes requests",
    "repeated": "draw each completion with random numbers of its own",
    "tokens": "serve the trainer's model",
    "length": "look for limits of the engine's own, such as --max-model-len",
    "log_probs": "look for NaN in the engine's log; vLLM wants --logprobs-mode processed_logprobs",
    "finish": "look for stop tokens of the engine's own",
    "aborted": "look in the engine's log why it gives requests up",
    "version": "let nobody else change the weights",
    "temperature": "let nothing in between change sampling options",
    "malformed": "look whether the URL is a vLLM server's, and in the server's log",
}
"""What helps, by the reason for which a completion is refused."""


class Flaw(NamedTuple):
    """A reason to refuse a completion, by which it is counted, and what came."""

    reason: str
    what: str

    def __str__(self) -> str:
        return f"{self.what} ({self.reason}): {REMEDIES[self.reason]}"


@dataclass(frozen=True)
class Requirements:
    """The properties that completions are checked for.

    Attributes:
      sampling: how completions were to be drawn.
      vocab_size: token ids are below it; None where it is not known.
      eos_id: the token that ends a completion; None where others may, too.
      versions: those that were published; None where any will do.
    """

    sampling: Sampling
    vocab_size: int | None = None
    eos_id: int | None = None
    versions: Container[int] | None = None


def flaws(groups: Sequence[Group], required: Requirements) -> dict[int, Flaw]:
    """Returns the first flaw of each group that has one, by the group's place."""
    drawn = [completion for group in groups for completion in group.completions]
    of_tokens = _flaws_of_tokens(drawn, required.vocab_size)
    sampling, first = required.sampling, 0
    flawed: dict[int, Flaw] = {}
    for place, group in enumerate(groups):
        size, first = len(group.completions), first + len(group.completions)
        if size != sampling.group_size:
            flaw = Flaw("count", f"{size} completions for {sampling.group_size} ordered")
        else:
            flaw = (
                next(filter(None, (_flaw_of(c, required) for c in group.completions)), None)
                or next((of_tokens[n] for n in range(first - size, first) if n in of_tokens), None)
                or (None if sampling.greedy else _repeated(group))
            )
        if flaw is not None:
            flawed[place] = flaw
    return flawed


def _flaw_of(completion: Completion, required: Requirements) -> Flaw | None:
    """Returns a flaw of temperature, length, end or versions."""
    sampling, reason = required.sampling, completion.finish_reason
    length, most = len(completion.token_ids), sampling.max_tokens
    if completion.temperature != sampling.temperature:
        text = f"temperature {completion.temperature} for {sampling.temperature} ordered"
        return Flaw("temperature", text)
    if length == 0:
        return Flaw("tokens", "a completion without a token")
    if length > most:
        return Flaw("length", f"{length} tokens for at most {most}")
    if reason == "abort":
        return Flaw("aborted", f"a completion was given up after {length} tokens")
    if reason == "length" and length < most:
        return Flaw("length", f"a completion was cut off at {length} of {most} tokens")
    if completion.top_ids is not None and completion.top_log_probs is not None:
        ids, size = completion.top_ids, required.vocab_size or np.inf
        likeliest = completion.top_log_probs.max(initial=-np.inf)
        known = ids.min(initial=-1) >= -1 and ids.max(initial=-1) < size
        if not (known and likeliest <= ABOVE_ZERO):  # False of NaN
            text = f"likeliest tokens up to {ids.max(initial=-1)}, of log-probs up to {likeliest:g}"
            return Flaw("tokens", f"{text}, of a vocabulary of {required.vocab_size}")
        masses = np.exp(completion.top_log_probs, dtype=np.float64).sum(axis=-1)
        if (mass := masses.max(initial=0)) > 1 + MASS_TOLERANCE:
            return Flaw("log_probs", f"likeliest tokens have a probability of {mass:.4f} together")
        if ids.shape[:-1] == (length,) and ids.shape == completion.top_log_probs.shape:
            drawn = (ids >= 0) & (ids == completion.token_ids[:, None])
            places, ranks = np.nonzero(drawn & completion.carries_loss[:, None])
            one, other = completion.log_probs[places], completion.top_log_probs[places, ranks]
            if (apart := ~np.isclose(one, other, rtol=0, atol=SAME, equal_nan=True)).any():
                text = f"a log-prob is {one[apart][0]:g}, and {other[apart][0]:g} where its token"
                return Flaw("log_probs", f"{text} is among the likeliest")
    last = int(completion.token_ids[-1])
    if reason == "stop" and required.eos_id not in (None, last):
        text = f"a completion ends at token {last}, the end token is {required.eos_id}"
        return Flaw("finish", text)
    if completion.loss_mask is None and required.eos_id in completion.token_ids[:-1]:
        return Flaw("finish", f"tokens follow the end token {required.eos_id}")
    spans = completion.version_spans
    ends, starts = [0, *(span.end for span in spans)], [*(span.start for span in spans), length]
    if spans and (starts != ends or any(span.start > span.end for span in spans)):
        text = ", ".join(f"[{s.start}, {s.end})" for s in spans)
        return Flaw("version", f"versions are given for tokens {text} of {length}")
    versions = {completion.policy_version, *(span.version for span in spans)}
    published = versions if required.versions is None else required.versions
    if unknown := sorted(version for version in versions if version not in published):
        return Flaw("version", f"version {unknown[0]}, which was not published")
    return None


def _flaws_of_tokens(drawn: Sequence[Completion], vocab_size: int | None) -> Mapping[int, Flaw]:
    """Returns the first flaw among the tokens of each completion that has one."""
    if not drawn:
        return {}
    ids = np.concatenate([completion.token_ids for completion in drawn])
    log_probs = np.concatenate([completion.log_probs for completion in drawn])
    possible = (log_probs > IMPOSSIBLE) & (log_probs <= ABOVE_ZERO)  # False of NaN
    known = (ids >= 0) if vocab_size is None else (ids >= 0) & (ids < vocab_size)
    if possible.all() and known.all():
        return {}
    ends = np.cumsum([len(completion.token_ids) for completion in drawn])
    flawed: dict[int, Flaw] = {}
    for place in np.flatnonzero(~(possible & known)).tolist():
        owner = int(np.searchsorted(ends, place, side="right"))
        text = f"token {ids[place]} with log-prob {log_probs[place]:g}"
        if not known[place]:
            flawed.setdefault(owner, Flaw("tokens", f"{text} of a vocabulary of {vocab_size}"))
        flawed.setdefault(owner, Flaw("log_probs", text))
    return flawed


class Duplicates:
    """The completions of a batch by their content: none enters it under two orders.

    Two draws of a temperature above 0 have random numbers of their own, so that the second is the
    first, token by token, with the probability that its own log-probs say. Where that is below
    exp(-40), over all pairs, and every log-prob agrees to the bit, they are one completion that
    came back twice. What is likely may be alike by chance, and is no flaw.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, Hashable] = {}

    def repeated(self, groups: Mapping[Place, Group], *, greedy: bool) -> dict[Place, Flaw]:
        """Returns the flaw of each group with a completion that another order has brought.

        The others' are kept in mind by their place in the batch, which may bring a completion
        again, as a request that is repeated does.
        """
        flawed: dict[Place, Flaw] = {}
        for place, group in groups.items():
            keys = {} if greedy else self._keys(group)
            for key, log_prob in keys.items():
                if self._owners.get(key, place) != place:
                    text = f"a completion of chance exp({log_prob:.0f}) came for another prompt too"
                    flawed[place] = Flaw("repeated", text)
            if place not in flawed:
                self._owners.update(dict.fromkeys(keys, place))
        return flawed

    def _keys(self, group: Group) -> dict[bytes, float]:
        """Returns the contents of completions too unlikely to come twice, with their log-prob."""
        pairs = math.log(len(self._owners) + len(group.completions))
        keys: dict[bytes, float] = {}
        for completion in group.completions:
            log_prob = _log_prob(completion)
            if log_prob + pairs < NO_CHANCE:
                keys[completion.token_ids.tobytes() + completion.log_probs.tobytes()] = log_prob
        return keys


def _log_prob(completion: Completion) -> float:
    mask, log_probs = completion.loss_mask, completion.log_probs
    return float((log_probs if mask is None else log_probs[mask]).sum(dtype=np.float64))


def _repeated(group: Group) -> Flaw | None:
    """Returns a flaw where completions are alike that, drawn independently, cannot be.

    At low entropy equal completions are as they should be; of `n` that are equal with probability p
    each, the chance is about `comb(G - 1, n - 1) * p^(n - 1)`.
    """
    size = len(group.completions)
    written = Counter(completion.token_ids.tobytes() for completion in group.completions)
    for completion in group.completions if len(written) < size else ():
        count = written[completion.token_ids.tobytes()]
        chance = math.log(math.comb(size - 1, count - 1)) + (count - 1) * _log_prob(completion)
        if count > 1 and chance < NO_CHANCE:
            text = f"{count} of {size} completions are one, of a chance of exp({chance:.0f})"
            return Flaw("repeated", text)
    return None
