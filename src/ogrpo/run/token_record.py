"""The line of tokens.jsonl of a step: completions as a reader sees them, token by token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogrpo.loop.judge import Decode
from ogrpo.loop.tokens import TokenSample
from ogrpo.protocol import IntArray

DIGITS = 4
"""Decimals of log-probs and advantages."""


def token_record(step: int, samples: Sequence[TokenSample], decode: Decode) -> dict[str, Any]:
    """Returns the record of completions that a step was trained on.

    Of each: `prompt`; `tokens`, their texts; `mu` and `pi`, log-probs of the sampler and of the
    trainer before the step's updates, null where the token is not learned from; `advantage`, one
    for each token where they differ; `removed`, the places of the tokens whose gradient the method
    removed; `reward`; `staleness` in steps; `length` in tokens, of which the first are here; `why`
    it was picked.

    Args:
      step: of the run's record beside it.
      samples: the completions.
      decode: token ids -> text.
    """
    completions = []
    for sample in samples:
        mu, pi = (
            [x if known else None for x, known in zip(_rounded(values), sample.active, strict=True)]
            for values in (sample.behavior_log_probs, sample.log_probs)
        )
        advantages = _rounded(sample.advantages)
        completions.append(
            {
                "prompt": decode(sample.prompt_ids),
                "tokens": pieces(sample.token_ids, decode),
                "mu": mu,
                "pi": pi,
                "advantage": advantages[0] if len({*advantages}) == 1 else advantages,
                "removed": np.flatnonzero(sample.removed).tolist(),
                "reward": sample.reward,
                "staleness": step - 1 - sample.version,
                "length": sample.length,
                "why": "large ratio" if sample.farthest else "first of the batch",
            }
        )
    return {"step": step, "completions": completions}


def _rounded(values: NDArray[np.float32]) -> list[float]:
    return np.round(values.astype(np.float64), DIGITS).tolist()


def pieces(token_ids: IntArray, decode: Decode) -> list[str]:
    """Returns the text that each token adds; its id in brackets where it adds none.

    A token that ends within a character adds nothing, and the one that completes it all of it.
    """
    texts, before = [], ""
    for end, token in enumerate(token_ids, start=1):
        text = decode(token_ids[:end])
        whole = text.removesuffix("\ufffd")
        new = whole[len(before) :] if len(whole) > len(before) else ""
        texts.append(new or f"⟨{token}⟩")
        before = whole if new else before
    return texts
