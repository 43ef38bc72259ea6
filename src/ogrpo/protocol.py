"""The interface of an engine: `generate(prompts, sampling, seed) -> groups`, `publish`.

A group is one prompt with its `G` completions. A completion carries everything an off-policy update
needs to know about where it came from: its token ids, the log-probability the sampler drew each of
them with, the version of the policy that drew them, the temperature, why it ended, and which of its
tokens are to be learned from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Sampling:
    """A sampling setting: `group_size` completions a prompt, of at most `max_tokens` tokens each.

    With `greedy` the most likely token is taken, and the temperature, which may be 0, is not used:
    log-probs are of temperature 1.

    Attributes:
      temperature: divides the logits, before any token is left out.
      min_p: tokens below this share of the likeliest token's probability are left out first.
      top_k: then all but this many of the likeliest; 0 leaves none out.
      top_p: then all but the smallest set of likeliest tokens whose share of what is left is at
        least this. The order is vLLM's; where min_p and top_p are both used, transformers' is
        another.
      record: how many of the likeliest tokens that are left are recorded at each place, with
        their log-probs.

    Raises:
      ValueError: a number with which nothing can be drawn.
    """

    temperature: float
    max_tokens: int
    group_size: int
    greedy: bool = False
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    record: int = 0

    def __post_init__(self) -> None:
        if not self.greedy and not 0.01 <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature is {self.temperature}; vLLM draws at none below 0.01: give a finite"
                " one from there on, or greedy=True for the most likely token."
            )
        for name in ("max_tokens", "group_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")
        if not (0 <= self.min_p <= 1 and 0 < self.top_p <= 1 and min(self.top_k, self.record) >= 0):
            raise ValueError(
                f"min_p is {self.min_p}, top_p {self.top_p}, top_k {self.top_k} and record "
                f"{self.record}; give min_p in [0, 1], top_p in (0, 1], and counts of at least 0."
            )

    @property
    def truncates(self) -> bool:
        """Whether tokens are left out, so that log-probs are of what is left."""
        return self.min_p > 0 or self.top_k > 0 or self.top_p < 1


@dataclass(frozen=True)
class VersionSpan:
    """Tokens `[start, end)` of a completion and the version of the weights that drew them."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Completion:
    """One sampled answer, the end-of-sequence token included when `finish_reason` is "stop".

    Attributes:
      token_ids: int32 `[T]`.
      log_probs: float32 `[T]`, log mu(token) under the distribution that was sampled from, that
        is, at `temperature`.
      policy_version: version of the weights that drew it; the oldest of them where they changed
        on the way.
      temperature: the sampling temperature.
      finish_reason: "stop" (it ended itself), "length" (cut off) or "abort" (given up by the
        engine).
      version_spans: the version of each token, where the engine knows it; empty otherwise.
      loss_mask: bool `[T]`, True on the tokens that are to be learned from, those that the policy
        wrote; False on what a tool returned. None where all of them are.
      top_ids: int32 `[T, K]`, the likeliest tokens that could be drawn at each place, -1 for
        none; None where they were not recorded.
      top_log_probs: float32 `[T, K]`, their log-probs; -inf for none.

    Raises:
      ValueError: an array of another type or length, or an unknown finish_reason.
    """

    token_ids: IntArray
    log_probs: FloatArray
    policy_version: int
    temperature: float
    finish_reason: FinishReason
    version_spans: tuple[VersionSpan, ...] = ()
    loss_mask: BoolArray | None = None
    top_ids: IntArray | None = None
    top_log_probs: FloatArray | None = None

    def __post_init__(self) -> None:
        _check_vector("token_ids", self.token_ids, np.int32)
        _check_vector("log_probs", self.log_probs, np.float32)
        if len(self.token_ids) != len(self.log_probs):
            raise ValueError(
                f"{len(self.token_ids)} token_ids but {len(self.log_probs)} log_probs; "
                "a completion needs one log-probability a token."
            )
        if self.finish_reason not in get_args(FinishReason):
            raise ValueError(
                f"finish_reason is {self.finish_reason!r}; use one of {get_args(FinishReason)}."
            )
        if self.loss_mask is not None:
            _check_vector("loss_mask", self.loss_mask, np.bool_)
            if len(self.loss_mask) != len(self.token_ids):
                raise ValueError(
                    f"{len(self.token_ids)} token_ids but {len(self.loss_mask)} entries in "
                    "loss_mask; give one for each token, or None where all carry loss."
                )

    @property
    def carries_loss(self) -> BoolArray:
        """Returns the loss mask, bool `[T]`; all True where there is none."""
        if self.loss_mask is None:
            return np.ones(len(self.token_ids), np.bool_)
        return self.loss_mask


@dataclass(frozen=True, eq=False)
class Group:
    """A prompt, int32 `[P]`, and its completions: the unit that is scored, stored and batched."""

    prompt_ids: IntArray
    completions: tuple[Completion, ...]

    def __post_init__(self) -> None:
        _check_vector("prompt_ids", self.prompt_ids, np.int32)
        if len(self.prompt_ids) == 0:
            raise ValueError("prompt_ids is empty; a prompt needs at least one token.")
        if not self.completions:
            raise ValueError("completions is empty; a group needs at least one completion.")


class Engine(Protocol):
    """Anything that turns prompts into groups and takes new weights."""

    @property
    def version(self) -> int:
        """Returns the version of the weights in use."""
        ...

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Returns one group per prompt, in the order of `prompts`.

        What may succeed later it tries again by itself: any error ends a run.

        Raises:
          ValueError: `check_request` refuses it.
        """
        ...

    def publish(self, params: Any, version: int) -> None:
        """Serves `params` from now on, and stamps `version` on what they generate."""
        ...

    def metrics(self) -> Mapping[str, float]:
        """Returns what the engine counted and measured, by name; for a run's records."""
        ...


def derived_seed(*words: int) -> int:
    """Returns the 31-bit seed of these numbers, independent of that of any others."""
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def check_request(
    prompts: Sequence[IntArray],
    sampling: Sampling,
    *,
    vocab_size: int | None = None,
    max_prompt: int | None = None,
    max_length: int | None = None,
) -> None:
    """Refuses a request that no engine can answer; every engine, in tests too, calls it first.

    Args:
      prompts: int32 `[P]` each.
      sampling: how they are to be answered; it has checked its own numbers.
      vocab_size: the model's.
      max_prompt: tokens of a prompt at most.
      max_length: tokens of a prompt and its completion at most.

    Raises:
      ValueError: names the prompt by its place, both numbers, and the remedy.
    """
    for place, prompt in enumerate(prompts):
        _check_vector(f"prompt {place}", prompt, np.int32)
        if not len(prompt):
            raise ValueError(f"prompt {place} of the request has no token: leave it out")
        if max_prompt is not None and len(prompt) > max_prompt:
            raise ValueError(
                f"prompt {place} has {len(prompt)} tokens but the engine takes {max_prompt}: "
                "raise the prompt length or leave the prompt out"
            )
        if max_length is not None and len(prompt) + sampling.max_tokens > max_length:
            raise ValueError(
                f"prompt {place} of {len(prompt)} tokens and max_tokens {sampling.max_tokens} do "
                f"not fit the {max_length} that the model takes: lower max_tokens, or leave it out"
            )
        least, most = int(prompt.min()), int(prompt.max())
        if least < 0 or (vocab_size is not None and most >= vocab_size):
            raise ValueError(
                f"prompt {place} has token {least if least < 0 else most}, outside the "
                f"vocabulary of {vocab_size}: encode it with the model's own tokenizer"
            )


def _check_vector(name: str, value: np.ndarray, dtype: type[np.generic]) -> None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype or value.ndim != 1:
        what = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value)
        raise ValueError(f"{name} is {what}; give a one-dimensional {dtype.__name__} array.")
