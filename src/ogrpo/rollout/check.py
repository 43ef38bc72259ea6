"""One check of completions against what was ordered; nothing else is learned from.

    engine -> groups -> flaws(groups, terms) -> whole and possible: used
                                             -> the others: counted by reason, asked for again

A completion is whole if it has its tokens, a log-prob for each, an end that fits them, and versions
that were published; it is possible if its policy could have drawn it. The servers' client checks
every answer before it counts, the collector checks what any engine gives.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ogrpo.rollout.protocol import Completion, Group, Sampling

REFUSED = "rollout/refused"
"""The metric that counts completions that were refused; a reason and a server may follow it."""
ABOVE_ZERO = 1e-4
"""How far above 0 rounding may lift a log-prob: float32 rounds logits below 1,024 in size by at
most 6e-5, and a sampler may round the token's logit and the normaliser apart."""
IMPOSSIBLE = -9999.0
"""What vLLM writes for minus infinity: the sampler says that the token could not be drawn."""
NO_CHANCE = -40.0
"""Log of the chance, 4e-18, below which completions that are alike are one, returned again."""

REMEDIES = {
    "count": "look whether a proxy in between changes requests",
    "repeated": "draw each completion with random numbers of its own",
    "tokens": "serve the trainer's model with its tokenizer",
    "length": "look for limits of the engine's own, such as --max-model-len",
    "log_probs": "look for NaN in the engine's log; vLLM wants --logprobs-mode processed_logprobs",
    "finish": "serve the trainer's tokenizer, with --generation-config vllm",
    "aborted": "look in the engine's log why it gives requests up",
    "version": "let nobody else change the weights",
    "temperature": "let nothing in between change sampling options",
    "malformed": "look whether the URL is a vLLM server's, and in the server's log",
}
"""What helps, by the reason for which a completion is refused."""


class Flaw(NamedTuple):
    """Why a completion is refused: the reason by which it is counted, and what was found."""

    reason: str
    found: str

    def __str__(self) -> str:
        return f"{self.found} ({self.reason}): {REMEDIES[self.reason]}"


@dataclass(frozen=True)
class Terms:
    """What was ordered.

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


def flaws(groups: Sequence[Group], terms: Terms) -> dict[int, Flaw]:
    """The first flaw of each group that has one, by the group's place."""
    owners = [place for place, group in enumerate(groups) for _ in group.completions]
    drawn = [completion for group in groups for completion in group.completions]
    found: dict[int, Flaw] = {}
    for place, group in enumerate(groups):
        _note(found, place, _flaw_of_group(group, terms.sampling))
    for place, completion in zip(owners, drawn, strict=True):
        _note(found, place, _flaw_of_completion(completion, terms))
    for n, flaw in _flaws_of_tokens(drawn, terms.vocab_size).items():
        _note(found, owners[n], flaw)
    for place, group in enumerate(groups):
        if place not in found and not terms.sampling.greedy:
            _note(found, place, _repeated(group))
    return found


def _note(found: dict[int, Flaw], place: int, flaw: Flaw | None) -> None:
    if flaw is not None:
        found.setdefault(place, flaw)


def _flaw_of_group(group: Group, sampling: Sampling) -> Flaw | None:
    size, wanted = len(group.completions), sampling.group_size
    return None if size == wanted else Flaw("count", f"{size} completions for {wanted} ordered")


def _flaw_of_completion(completion: Completion, terms: Terms) -> Flaw | None:
    sampling = terms.sampling
    if completion.temperature != sampling.temperature:
        text = f"temperature {completion.temperature} for {sampling.temperature} ordered"
        return Flaw("temperature", text)
    return (
        _flaw_of_length(len(completion.token_ids), sampling.max_tokens)
        or _flaw_of_end(completion, terms)
        or _flaw_of_versions(completion, terms.versions)
    )


def _flaw_of_length(length: int, most: int) -> Flaw | None:
    if length == 0:
        return Flaw("tokens", "a completion without a token")
    return None if length <= most else Flaw("length", f"{length} tokens for at most {most}")


def _flaw_of_end(completion: Completion, terms: Terms) -> Flaw | None:
    reason, length = completion.finish_reason, len(completion.token_ids)
    last, most = int(completion.token_ids[-1]), terms.sampling.max_tokens
    if reason == "abort":
        return Flaw("aborted", f"a completion was given up after {length} tokens")
    if reason == "length" and length < most:
        return Flaw("length", f"a completion was cut off at {length} of {most} tokens")
    if reason == "stop" and terms.eos_id not in (None, last):
        return Flaw("finish", f"a completion ends at token {last}, the end token is {terms.eos_id}")
    return None


def _flaw_of_versions(completion: Completion, published: Container[int] | None) -> Flaw | None:
    spans, length = completion.version_spans, len(completion.token_ids)
    if spans:
        ends = [0, *(span.end for span in spans)]
        starts = [*(span.start for span in spans), length]
        if starts != ends or any(span.start > span.end for span in spans):
            text = ", ".join(f"[{s.start}, {s.end})" for s in spans)
            return Flaw("version", f"versions are told of tokens {text} of {length}")
    if published is None:
        return None
    named = {completion.policy_version, *(span.version for span in spans)}
    if unknown := sorted(version for version in named if version not in published):
        return Flaw("version", f"version {unknown[0]}, which was not published")
    return None


def _flaws_of_tokens(drawn: Sequence[Completion], vocab_size: int | None) -> Mapping[int, Flaw]:
    """The first flaw among the tokens of each completion that has one, all looked at at once."""
    if not drawn:
        return {}
    ids = np.concatenate([completion.token_ids for completion in drawn])
    log_probs = np.concatenate([completion.log_probs for completion in drawn])
    possible = (log_probs > IMPOSSIBLE) & (log_probs <= ABOVE_ZERO)  # False of NaN
    known = (ids >= 0) if vocab_size is None else (ids >= 0) & (ids < vocab_size)
    if possible.all() and known.all():
        return {}
    ends = np.cumsum([len(completion.token_ids) for completion in drawn])
    found: dict[int, Flaw] = {}
    for place in np.flatnonzero(~(possible & known)).tolist():
        owner = int(np.searchsorted(ends, place, side="right"))
        text = f"token {ids[place]} with log-prob {log_probs[place]:g}"
        if not known[place]:
            found.setdefault(owner, Flaw("tokens", f"{text} of a vocabulary of {vocab_size}"))
        found.setdefault(owner, Flaw("log_probs", text))
    return found


def _repeated(group: Group) -> Flaw | None:
    """Whether completions are alike that by their own log-probs cannot be, drawn independently.

    At low entropy equal completions are as they should be; of `n` that are equal with probability p
    each, the chance is about `comb(G - 1, n - 1) * p^(n - 1)`.
    """
    written = Counter(completion.token_ids.tobytes() for completion in group.completions)
    if len(written) == len(group.completions):
        return None
    size = len(group.completions)
    for completion in group.completions:
        count = written[completion.token_ids.tobytes()]
        own = float(completion.log_probs[completion.carries_loss].sum(dtype=np.float64))
        chance = math.log(math.comb(size - 1, count - 1)) + (count - 1) * own
        if count > 1 and chance < NO_CHANCE:
            text = f"{count} of {size} completions are one, of a chance of exp({chance:.0f})"
            return Flaw("repeated", text)
    return None
