"""The verifiable reward: 1 for a finished completion whose answer equals the gold one, else 0."""

import copy
import threading
from functools import lru_cache
from typing import Literal, NamedTuple

from ogrpo.rewards.bounded import BoundedVerifier, Verdict, compare_plain, is_plain
from ogrpo.rewards.extract import Extractor, marker_answer

Outcome = Literal["correct", "wrong", "unparsable", "timeout", "truncated"]


class RewardCounts(NamedTuple):
    """How many completions came out how; `total` is their sum."""

    correct: int = 0
    wrong: int = 0
    unparsable: int = 0
    timeout: int = 0
    truncated: int = 0

    @property
    def parsed(self) -> int:
        """Completions in which an answer was found and compared."""
        return self.correct + self.wrong

    @property
    def total(self) -> int:
        """All completions."""
        return sum(self)

    def plus(self, outcome: Outcome) -> "RewardCounts":
        """Count one more."""
        return self._replace(**{outcome: getattr(self, outcome) + 1})


class _Overrun(Exception):
    """A comparison that gave no verdict: raised, as results are remembered and errors are not."""


class MathReward:
    r"""Scores completions against gold answers, and counts how they came out.

    An answer is compared by math-verify, so `18`, `18.0` and `\boxed{36/2}` are one number. A
    completion that did not end itself (`finish_reason` other than "stop") scores 0 in any case.

    Args:
        extract: finds the answer in a completion (`ogrpo.rewards.extract`).
        seconds: of CPU time, the bound on one comparison; an overrun scores 0 and is counted.
        cache_size: how many different (answer, gold) pairs to remember. An overrun is not
            remembered: the pair is compared again when it is met again.
    """

    def __init__(
        self,
        extract: Extractor = marker_answer,
        *,
        seconds: float = 2.0,
        cache_size: int = 1 << 16,
    ) -> None:
        self.extract = extract
        self.counts = RewardCounts()
        self._lock = threading.Lock()
        self._verifier = BoundedVerifier(seconds)
        self._compare = lru_cache(maxsize=cache_size)(self._compare_anew)

    def __call__(self, text: str, finish_reason: str, gold: str) -> float:
        """Return 1.0 or 0.0 for one completion."""
        outcome = self.judge(text, finish_reason, gold)
        with self._lock:
            self.counts = self.counts.plus(outcome)
        return 1.0 if outcome == "correct" else 0.0

    def judge(self, text: str, finish_reason: str, gold: str) -> Outcome:
        """Say how a completion comes out, without counting it."""
        if finish_reason != "stop":
            return "truncated"
        answer = self.extract(text)
        if answer is None:
            return "unparsable"
        try:
            return self._compare(answer, gold)
        except _Overrun:
            return "timeout"

    def take_counts(self) -> RewardCounts:
        """Return the counts since the last call, and start again from zero."""
        with self._lock:
            counts, self.counts = self.counts, RewardCounts()
        return counts

    def counting_apart(self) -> "MathReward":
        """Return a reward that shares this one's memory and process, and counts by itself."""
        other = copy.copy(self)
        other.counts, other._lock = RewardCounts(), threading.Lock()
        return other

    def close(self) -> None:
        """End the verifying process, if one was needed."""
        self._verifier.close()

    def _compare_anew(self, answer: str, gold: str) -> Verdict:
        if is_plain(answer) and is_plain(gold):
            return compare_plain(answer, gold)
        verdict = self._verifier.compare(answer, gold)
        if verdict == "timeout":
            raise _Overrun
        return verdict
