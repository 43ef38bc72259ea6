"""Sampled completions token by token, as the first update of a step met them, and their record."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.learner.hosts import fetch, is_first
from ogrpo.learner.state import Hypers, TrainState
from ogrpo.loop.judge import Decode
from ogrpo.loop.parts import Parts
from ogrpo.protocol import IntArray

LONGEST = 512
"""Tokens of a completion that are kept, at most: the first."""


class TokenSample(NamedTuple):
    """The first T tokens of a completion."""

    prompt_ids: IntArray
    token_ids: IntArray
    length: int
    """Tokens of the whole completion; T is at most `LONGEST`."""
    behavior_log_probs: NDArray[np.float32]
    """[T], log mu."""
    log_probs: NDArray[np.float32]
    """[T], log pi of the weights before the step's updates."""
    advantages: NDArray[np.float32]
    """[T]."""
    removed: NDArray[np.bool_]
    """[T], the method's clip, gate or mask removed the token's gradient."""
    active: NDArray[np.bool_]
    """[T], the policy wrote the token, and it is to be learned from."""
    reward: float
    version: int
    """Step at which the weights that drew it were published."""
    farthest: bool
    """Whether it was picked for the largest |log pi - log mu| of its tokens."""


def sample_tokens(
    train: TrainState, batch: Batch, hypers: Hypers, parts: Parts
) -> tuple[TokenSample, ...]:
    """Returns completions of a batch that is on the devices, before its first update.

    Half of `evaluator.token_samples` are those with the largest |log pi - log mu|, the others the
    batch's first. All processes call it together; the first alone gets any.
    """
    findings = parts.learner.tokens(train, batch, hypers)
    kept = batch._replace(packing=None, top_ids=None, top_log_probs=None)
    fetched = fetch((kept, findings), everywhere=False)
    if not is_first():
        return ()
    batch, findings = jax.tree.map(np.asarray, fetched)
    log_probs, count = findings.log_probs, parts.evaluator.token_samples
    mask, group_size = batch.active_mask, batch.rewards.shape[1]
    gaps = np.where(mask, np.abs(log_probs - batch.behavior_log_probs), 0).max(axis=-1).ravel()
    computed = np.flatnonzero(np.repeat(findings.computed, group_size))
    farthest = computed[np.argsort(-gaps[computed], kind="stable")][: (count + 1) // 2]
    others = computed[~np.isin(computed, farthest)][: count - len(farthest)]
    picked = []
    for place in (*farthest, *others):
        n, g = divmod(int(place), group_size)
        length = int(batch.completion_mask[n, g].sum())
        until = min(length, LONGEST)
        advantages = np.broadcast_to(findings.advantages[n, g], log_probs.shape[-1:])
        picked.append(
            TokenSample(
                prompt_ids=batch.prompt_ids[n][batch.prompt_mask[n]],
                token_ids=batch.completion_ids[n, g, :until],
                length=length,
                behavior_log_probs=batch.behavior_log_probs[n, g, :until],
                log_probs=log_probs[n, g, :until],
                advantages=advantages[:until],
                removed=findings.removed[n, g, :until],
                active=mask[n, g, :until],
                reward=float(batch.rewards[n, g]),
                version=int(batch.policy_versions[n, g]),
                farthest=place in farthest,
            )
        )
    return tuple(picked)


DIGITS = 4
"""Decimals of log-probs and advantages."""


def token_record(step: int, samples: Sequence[TokenSample], decode: Decode) -> dict[str, Any]:
    """Returns the record of completions that a step was trained on.

    `docs/metrics.md` says what each entry is.
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
