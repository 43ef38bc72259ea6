"""Judges of answers: counts of the outcomes, TRL's signature, the judge of words and choices."""

import copy
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self, get_args

from ogrpo.rewards.extract import LONGEST_ANSWER, Extractor, boxed_answer
from ogrpo.rewards.text import same_text, unboxed

Outcome = Literal["correct", "wrong", "unparsable", "timeout", "truncated"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
TextOrChat = str | Sequence[Mapping[str, Any]]
"""A text, or chat messages; of those of a completion the last one counts."""
SHOWN = 5
"""Bad gold answers that an error message lists; the others are counted."""


class RewardCounts(NamedTuple):
    """Completions by their outcome; `total` is their sum."""

    correct: int = 0
    wrong: int = 0
    unparsable: int = 0
    timeout: int = 0
    truncated: int = 0

    @property
    def total(self) -> int:
        """All completions."""
        return sum(self)


class Judge:
    """A reward of 1 for a finished completion whose answer is the gold one, else 0, counted.

    Called with TRL's signature; a subclass brings `judge` and `check_golds`. A completion that did
    not end itself (a finish reason other than "stop") scores 0 in any case. Many threads may call
    at once.

    Attributes:
      name: of the reward, in metrics; `__name__`, which TRL reads, is the same.
      bounded: True, since a judge bounds its own time.
      counts: the outcomes since the start.
    """

    bounded = True

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name
        self.counts = RewardCounts()
        self._lock = threading.Lock()

    def judge(self, text: str, finish_reason: str, gold: Any) -> Outcome:
        """Returns the outcome of a completion, without counting it.

        Raises:
          ValueError: the gold answer cannot be judged.
        """
        raise NotImplementedError

    def judge_all(
        self, texts: Sequence[str], finish_reasons: Sequence[str], golds: Sequence[Any]
    ) -> list[Outcome]:
        """Returns the outcomes of completions, without counting them."""
        return [self.judge(*one) for one in zip(texts, finish_reasons, golds, strict=True)]

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Checks that each gold answer can be judged.

        Raises:
          ValueError: names the first that cannot, with their sources (`file:line`).
        """
        raise NotImplementedError

    def __call__(
        self,
        prompts: Sequence[Any],  # noqa: ARG002 - it and the other columns belong to the signature
        completions: Sequence[TextOrChat],
        answer: Sequence[Any],
        finish_reasons: Sequence[str] | None = None,
        **columns: Any,  # noqa: ARG002
    ) -> list[float]:
        """Returns 1.0 or 0.0 for each completion; without `finish_reasons` all count as finished.

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
        with self._lock:
            self.counts = RewardCounts(
                *(n + outcomes.count(o) for n, o in zip(self.counts, OUTCOMES, strict=True))
            )
        return [float(outcome == "correct") for outcome in outcomes]

    def counting_apart(self) -> Self:
        """Returns a judge that shares this one's memory and processes, and counts by itself."""
        other = copy.copy(self)
        other.counts, other._lock = RewardCounts(), threading.Lock()
        return other

    def close(self) -> None:
        """Ends what was started for judging; a later call starts it again."""


class ExactMatch(Judge):
    r"""Scores completions whose answer is the gold text, or the letter of the right choice.

    Case, spaces, `\text{...}` and the punctuation around are put aside, and so are the parentheses
    around one letter: `\boxed{\text{(b)}}` is `B`. Nothing else is.

    >>> reward = ExactMatch()
    >>> reward.judge(r"So it is \boxed{(B)}.", "stop", "B")
    'correct'

    Args:
      extract: returns the answer in a completion, or None; `choice_answer` also reads "the answer
        is (B)".
    """

    def __init__(self, extract: Extractor = boxed_answer) -> None:
        super().__init__("exact_match")
        self.extract = extract

    def judge(self, text: str, finish_reason: str, gold: Any) -> Outcome:
        """Returns the outcome of a completion; raises as `Judge.judge`."""
        if fault := text_fault(gold):
            raise ValueError(f"the gold answer cannot be compared: {fault}.")
        if finish_reason != "stop":
            return "truncated"
        answer = self.extract(text)
        if answer is None or len(answer) > LONGEST_ANSWER or not unboxed(answer):
            return "unparsable"
        return "correct" if same_text(unboxed(answer), gold) else "wrong"

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Refuses gold answers that are no texts, or empty ones."""
        refuse({n: fault for n, gold in enumerate(golds) if (fault := text_fault(gold))}, sources)


def text_fault(gold: Any) -> str:
    """Returns why no answer can ever equal a gold answer, as a text; empty if one can."""
    if not isinstance(gold, str):
        return f"{gold!r} is no text"
    return "" if same_text(gold, gold) else f"{gold!r} has no letters to compare"


def completion_text(completion: TextOrChat) -> str:
    """Returns a completion's text: itself, or the content of its last message.

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
    """Raises a ValueError that names the sources of bad gold answers, if there are any."""
    if not bad:
        return
    listed = [f"{sources[n]}: {fault}" for n, fault in list(bad.items())[:SHOWN]]
    more = [f"and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []
    raise ValueError(
        f"{len(bad)} gold answers cannot be judged, so that every completion would be called "
        "wrong; mend them or leave their lines out:\n" + "\n".join(listed + more)
    )
