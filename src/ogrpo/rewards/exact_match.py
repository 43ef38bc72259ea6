"""The reward for words and multiple choice: 1 for the gold text, but for case and punctuation."""

from collections.abc import Sequence
from typing import Any

from ogrpo.rewards.extract import LONGEST_ANSWER, Extractor, boxed_answer
from ogrpo.rewards.judge import Judge, Outcome, check_each
from ogrpo.rewards.text import same_text, unboxed


class ExactMatch(Judge):
    r"""Scores completions whose answer is the gold text, or the letter of the right choice.

    Case, spaces, `\text{...}` and the punctuation around are put aside, and so are the parentheses
    around one letter: `\boxed{\text{(b)}}` is `B`. Nothing else is.

    >>> reward = ExactMatch()
    >>> reward.judge(r"So it is \boxed{(B)}.", "stop", "B")
    'correct'

    Args:
        extract: finds the answer in a completion; the last closed box unless told, `choice_answer`
            also finds "the answer is (B)".
    """

    def __init__(self, extract: Extractor = boxed_answer) -> None:
        super().__init__("exact_match")
        self.extract = extract

    def judge(self, text: str, finish_reason: str, gold: Any) -> Outcome:
        """Say how a completion comes out, without counting it.

        Raises:
            ValueError: the gold answer is no text, or an empty one.
        """
        if found := _fault(gold):
            raise ValueError(f"the gold answer cannot be compared: {found}.")
        if finish_reason != "stop":
            return "truncated"
        answer = self.extract(text)
        if answer is None or len(answer) > LONGEST_ANSWER or not unboxed(answer):
            return "unparsable"
        return "correct" if same_text(unboxed(answer), gold) else "wrong"

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Refuse gold answers that are no texts, or empty ones."""
        check_each(golds, sources, _fault)


def _fault(gold: Any) -> str:
    if not isinstance(gold, str):
        return f"{gold!r} is no text"
    return "" if same_text(gold, gold) else f"{gold!r} has no letters to compare"
