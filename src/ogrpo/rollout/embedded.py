"""The engine without a server: the trainer's own sampler behind the engine interface."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ogrpo.protocol import BoolArray, Completion, Group, IntArray, Sampling, check_request

SampleFn = Callable[..., Any]


def pad(sequences: Sequence[IntArray], width: int) -> tuple[IntArray, BoolArray]:
    """Returns token ids int32 `[N, width]`, 0 behind each sequence, and a mask of its tokens."""
    ids = np.zeros((len(sequences), width), np.int32)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    lengths = np.array([len(sequence) for sequence in sequences])
    return ids, np.arange(width)[None] < lengths[:, None]


class EmbeddedEngine:
    """Samples with a function, from the weights published last.

    The caller publishes weights that nobody overwrites before newer ones are published: a trainer
    that donates its buffers to the next update publishes a copy. Other threads may publish and
    generate meanwhile: a call samples all its groups from the weights it began with, and stamps
    their version on them.

    Args:
      sample_fn: `(params, prompt_ids, prompt_mask, seed, *, temperature, greedy, group_size,
        max_tokens)` -> an object with arrays `token_ids`, `log_probs`, `mask` `[N, G, T]` and
        `finished` `[N, G]`; with `min_p`, `top_k`, `top_p` and `record` where tokens are left out
        or recorded, then with `top_ids` and `top_log_probs` `[N, G, T, K]` as well.
      batch_size: prompts in one call; a shorter last call is filled up with its first prompt.
      prompt_length: tokens that prompts are padded to; None: the next power of two in each batch,
        from 64 on the next quarter of one, as far as the model has positions.
      vocab_size, max_length: the model's, where they are known: see `check_request`.
      prepare_fn: published parameters -> those that `sample_fn` gets, once for each `generate`,
        which lets go of them at its end: the update that follows has their memory.
    """

    def __init__(
        self,
        sample_fn: SampleFn,
        *,
        batch_size: int,
        prompt_length: int | None,
        vocab_size: int | None = None,
        max_length: int | None = None,
        prepare_fn: Callable[[Any], Any] = lambda params: params,
    ) -> None:
        self._sample_fn = sample_fn
        self._prepare_fn = prepare_fn
        self._batch_size = batch_size
        self._prompt_length, self._vocab_size = prompt_length, vocab_size
        self._max_length = max_length
        # Replaced together: a call reads both once, at its start.
        self._weights: tuple[Any, int] | None = None

    @property
    def version(self) -> int:
        """Returns the version of the weights in use, -1 before there are any."""
        return -1 if self._weights is None else self._weights[1]

    def publish(self, params: Any, version: int) -> None:
        """Serves `params` from now on, as policy `version`."""
        self._weights = params, version

    def withdraw(self) -> None:
        """Lets go of the weights, so that a trainer may donate their memory."""
        self._weights = None

    def metrics(self) -> dict[str, float]:
        """Returns nothing: the loop measures all there is."""
        return {}

    def generate(self, prompts: Sequence[IntArray], sampling: Sampling, seed: int) -> list[Group]:
        """Returns one group per prompt, in order.

        Raises:
          ValueError: `check_request` refuses it.
          RuntimeError: nothing was published yet.
        """
        check_request(
            prompts,
            sampling,
            vocab_size=self._vocab_size,
            max_prompt=self._prompt_length,
            max_length=self._max_length,
        )
        if (weights := self._weights) is None:
            raise RuntimeError("generate() before publish(): the engine has no weights yet")
        published, version = weights
        params = self._prepare_fn(published)
        size, groups = self._batch_size, []
        names = ("min_p", "top_k", "top_p", "record")
        passed = sampling.truncates or sampling.record > 0
        truncation = {name: getattr(sampling, name) for name in names} if passed else {}
        for start in range(0, len(prompts), size):
            chunk = prompts[start : start + size]
            width = self._prompt_length
            if width is None:
                longest = max(map(len, chunk))
                width = 1 << (longest - 1).bit_length()
                step = width // 8 if longest > 64 else width
                width = -(-longest // step) * step
                if self._max_length is not None:
                    width = min(width, self._max_length - sampling.max_tokens)
            filled = [*chunk, *[chunk[0]] * (size - len(chunk))]
            out = self._sample_fn(
                params,
                *pad(filled, width),
                seed + start,
                temperature=1.0 if sampling.greedy else sampling.temperature,
                greedy=sampling.greedy,
                group_size=sampling.group_size,
                max_tokens=sampling.max_tokens,
                **truncation,
            )
            arrays = [np.asarray(x) for x in (out.token_ids, out.log_probs, out.mask, out.finished)]
            top = (out.top_ids, out.top_log_probs) if sampling.record else ()
            tops = list(zip(*map(np.asarray, top), strict=True)) or [None] * len(chunk)
            for prompt, token_ids, log_probs, drawn, finished, recorded in zip(
                chunk, *arrays, tops, strict=False
            ):
                completions = [
                    Completion(
                        token_ids=token_ids[g, :length],
                        log_probs=log_probs[g, :length],
                        policy_version=version,
                        temperature=sampling.temperature,
                        finish_reason="stop" if finished[g] else "length",
                        top_ids=None if recorded is None else recorded[0][g, :length],
                        top_log_probs=None if recorded is None else recorded[1][g, :length],
                    )
                    for g, length in enumerate(drawn.sum(axis=-1))
                ]
                groups.append(Group(prompt, tuple(completions)))
        return groups
