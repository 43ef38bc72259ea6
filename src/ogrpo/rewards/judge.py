"""What the judges of answers have in common: TRL's signature, and counts of the outcomes."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

Outcome = Literal["correct", "wrong", "unparsable", "timeout", "truncated"]
Completion = str | Sequence[Mapping[str, Any]]
"""A text, or chat messages, of which the last one counts."""
SHOWN = 5
"""Bad gold answers that an error message lists; the others are counted."""


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


class Judge:
    """A reward of 1 for a finished completion whose answer is the gold one, else 0, counted.

    Called with TRL's signature; a subclass brings `judge`. A completion that did not end itself (a
    finish reason other than "stop") scores 0 in any case. Many threads may call at once.

    Attributes:
        name: of the reward, in metrics; `__name__`, which TRL reads, is the same.
        bounded: True, since a judge bounds its own time.
        counts: the outcomes since the start or the last `take_counts`.
    """

    bounded = True

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.counts = RewardCounts()
        self._lock = threading.Lock()

    def judge(self, text: str, finish_reason: str, gold: Any) -> Outcome:
        """Say how a completion comes out, without counting it."""
        raise NotImplementedError

    def judge_all(
        self, texts: Sequence[str], finish_reasons: Sequence[str], golds: Sequence[Any]
    ) -> list[Outcome]:
        """Say how completions come out, without counting them."""
        return [self.judge(*one) for one in zip(texts, finish_reasons, golds, strict=True)]

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Judge nothing yet, but refuse gold answers that can never be judged.

        Raises:
            ValueError: names the first such golds with their sources (`file:line`).
        """
        raise NotImplementedError

    def __call__(
        self,
        prompts: Sequence[Any],  # noqa: ARG002 - it and the other columns belong to the signature
        completions: Sequence[Completion],
        answer: Sequence[Any],
        finish_reasons: Sequence[str] | None = None,
        **columns: Any,  # noqa: ARG002
    ) -> list[float]:
        """Return 1.0 or 0.0 for each completion; without `finish_reasons` all count as finished.

        Raises:
            ValueError: the lengths differ, a completion holds no text, or a gold answer cannot be
                judged; nothing is counted then.
        """
        reasons = ["stop"] * len(completions) if finish_reasons is None else finish_reasons
        if not len(completions) == len(answer) == len(reasons):
            raise ValueError(
                f"{self.name}: {len(completions)} completions, {len(answer)} answers and "
                f"{len(reasons)} finish reasons; give one of each for every completion."
            )
        outcomes = self.judge_all([completion_text(c) for c in completions], reasons, answer)
        self._count(outcomes)
        return [float(outcome == "correct") for outcome in outcomes]

    def score(self, text: str, finish_reason: str, gold: Any) -> float:
        """Return 1.0 or 0.0 for one completion, and count it."""
        outcome = self.judge(text, finish_reason, gold)
        self._count([outcome])
        return float(outcome == "correct")

    def take_counts(self) -> RewardCounts:
        """Return the counts since the last call, and start again from zero."""
        with self._lock:
            counts, self.counts = self.counts, RewardCounts()
        return counts

    def counting_apart(self: "AnyJudge") -> "AnyJudge":
        """Return a judge that shares this one's memory and processes, and counts by itself."""
        other = copy.copy(self)
        other.counts, other._lock = RewardCounts(), threading.Lock()
        return other

    def close(self) -> None:
        """End what was started for judging; a later call starts it again."""

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            for outcome in outcomes:
                self.counts = self.counts.plus(outcome)


AnyJudge = TypeVar("AnyJudge", bound=Judge)


def completion_text(completion: Completion) -> str:
    """Return a completion's text: itself, or the content of its last message.

    >>> completion_text([{"role": "assistant", "content": "#### 18"}])
    '#### 18'

    Raises:
        ValueError: there is no message, or the content is not a text.
    """
    text = completion
    if not isinstance(completion, str):
        text = completion[-1].get("content") if completion else None
    if not isinstance(text, str):
        raise ValueError(
            f"a completion is {completion!r:.200}; give a text, or messages of which the last has "
            'a text as its "content".'
        )
    return text


def refuse(bad: dict[int, str], sources: Sequence[str]) -> None:
    """Raise a ValueError that names the sources of bad gold answers, if there are any."""
    if not bad:
        return
    listed = [f"{sources[n]}: {fault}" for n, fault in list(bad.items())[:SHOWN]]
    more = [f"and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    raise ValueError(
        f"{len(bad)} gold answers cannot be judged, so that every completion would be called "
        "wrong; mend them or leave their lines out:\n" + "\n".join(listed + more)
    )


def check_each(golds: Sequence[Any], sources: Sequence[str], fault: Callable[[Any], str]) -> None:
    """Refuse the gold answers in which `fault` finds one (a text, empty if there is none)."""
    refuse({n: found for n, found in enumerate(map(fault, golds)) if found}, sources)
