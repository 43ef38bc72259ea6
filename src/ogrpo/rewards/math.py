"""The verifiable reward: 1 for a finished completion whose answer equals the gold one, else 0."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence

from ogrpo.rewards.bounded import (
    BadGold,
    BoundedVerifier,
    Pair,
    Verdict,
    compare_plain,
    is_plain,
)
from ogrpo.rewards.boxes import BOXED
from ogrpo.rewards.extract import LONGEST_ANSWER, Extractor, marker_answer
from ogrpo.rewards.golds import check_golds, math_gold
from ogrpo.rewards.judge import Judge, Outcome, RewardCounts
from ogrpo.rewards.quantities import parts, surely_wrong
from ogrpo.rewards.text import (
    ascii_minus,
    is_choice,
    is_text,
    plain_writing,
    same_text,
    unboxed,
    undelimited,
    upright_constants,
)

__all__ = ["MathReward", "Outcome", "RewardCounts", "VerdictMemory"]


class MathReward(Judge):
    r"""Scores completions against gold answers, and counts how they came out.

    An answer is compared by math-verify, so `18`, `18.0` and `\boxed{36/2}` are one number; a gold
    answer that is words, a choice, a time or a number with its base is compared as a text
    (docs/judging.md). What is no plain number goes to verifying processes, side by side.

    Args:
        extract: finds the answer in a completion (`ogrpo.rewards.extract`).
        seconds: of CPU time, the bound on one comparison; an overrun scores 0 and is counted, and
            is remembered, so that the same pair is not tried again in this run.
        processes: that compare side by side.
        cache_size: how many different (answer, gold) pairs to remember, 200 bytes each.
    """

    def __init__(
        self,
        extract: Extractor = marker_answer,
        *,
        seconds: float = 2.0,
        processes: int = 2,
        cache_size: int = 1 << 16,
    ) -> None:
        super().__init__("math")
        self.extract = extract
        self._verifier = BoundedVerifier(seconds, processes=processes)
        self._memory = VerdictMemory(cache_size)

    def judge(self, text: str, finish_reason: str, gold: str) -> Outcome:
        """Say how a completion comes out, without counting it."""
        return self.judge_all([text], [finish_reason], [gold])[0]

    def judge_all(
        self, texts: Sequence[str], finish_reasons: Sequence[str], golds: Sequence[str]
    ) -> list[Outcome]:
        """Say how completions come out, without counting them; each different pair once.

        Raises:
            ValueError: a gold answer that is needed cannot be parsed, or is no text.
        """
        for gold in golds:
            if not isinstance(gold, str):
                raise BadGold(f"the gold answer {gold!r} is no text: write it as one.")
        found: list[Pair | Outcome] = [
            self._find(*one) for one in zip(texts, finish_reasons, golds, strict=True)
        ]
        verdicts = self._compare({one for one in found if not isinstance(one, str)})
        return [one if isinstance(one, str) else verdicts[one] for one in found]

    def check_golds(self, golds: Sequence[str], sources: Sequence[str]) -> None:
        """Refuse gold answers that math-verify cannot parse (`ogrpo.rewards.golds`)."""
        check_golds(golds, sources, seconds=self._verifier.seconds)

    def close(self) -> None:
        """End the verifying processes, if any were needed; a later call starts others."""
        self._verifier.close()

    def _find(self, text: str, finish_reason: str, gold: str) -> Pair | Outcome:
        if finish_reason != "stop":
            return "truncated"
        answer = self.extract(text)
        if answer is None or len(answer) > LONGEST_ANSWER:
            return "unparsable"
        return answer, gold

    def _compare(self, pairs: set[Pair]) -> dict[Pair, Verdict]:
        known: dict[Pair, Verdict] = {}
        asked: list[Pair] = []
        for pair in sorted(pairs):
            verdict = self._memory.recall(pair) or compare_here(*pair)
            if verdict is None:
                asked.append(pair)
            else:
                known[pair] = verdict
        questions = [(pair, question) for pair in asked for question in math_questions(*pair)]
        verdicts = self._verifier.compare_all([question for _, question in questions])
        errors: list[BadGold] = []
        for (pair, _), verdict in zip(questions, verdicts, strict=True):
            if isinstance(verdict, BadGold):
                errors.append(verdict)
            elif known.get(pair, "correct") == "correct":  # every part has to be right
                known[pair] = verdict
        self._memory.keep(known)
        if errors:
            raise errors[0]
        return known


def compare_here(answer: str, gold: str) -> Verdict | None:
    r"""Compare what needs no mathematics: plain numbers, texts, equal writings; else None.

    >>> compare_here(r"\boxed{18.0}", "18"), compare_here(r"\boxed{(b)}", r"\text{(B)}")
    ('correct', 'correct')
    >>> compare_here(r"\boxed{36/2}", "18")
    """
    inside, gold = plain_writing(undelimited(unboxed(answer))), plain_writing(undelimited(gold))
    if is_plain(inside) and is_plain(gold):
        return compare_plain(inside, gold)
    if not inside:
        return "unparsable"
    if is_text(gold):
        return "correct" if same_text(inside, gold) else "wrong"
    if inside == gold or (is_choice(gold) and same_text(inside, gold)):
        return "correct"
    return "wrong" if answer.startswith(BOXED) and surely_wrong(inside, gold) else None


def math_questions(answer: str, gold: str) -> list[Pair]:
    r"""Return the pairs that math-verify has to find equal: the answer's parts, each with the gold.

    A box stays one, any other text is searched.

    >>> math_questions(r"\boxed{8 = 7}", "7")
    [('\\boxed{8}', '7'), ('\\boxed{7}', '7')]
    """
    if not answer.startswith(BOXED):
        return [(upright_constants(ascii_minus(answer)), math_gold(gold))]
    inside = plain_writing(upright_constants(unboxed(answer)))
    return [(f"{BOXED}{part}}}", math_gold(gold)) for part in parts(inside, gold)]


class VerdictMemory:
    """Verdicts by a hash of answer and gold, the `size` last used ones; threads may share it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._verdicts)

    def recall(self, pair: Pair) -> Verdict | None:
        """Return the verdict on a pair, if it is remembered."""
        key = _digest(pair)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
            return self._verdicts.get(key)

    def keep(self, verdicts: dict[Pair, Verdict]) -> None:
        """Remember verdicts, and forget the ones not used for longest."""
        with self._lock:
            for pair, verdict in verdicts.items():
                self._verdicts[_digest(pair)] = verdict
            while len(self._verdicts) > self.size:
                self._verdicts.popitem(last=False)


def _digest(pair: Pair) -> bytes:
    text = "\0".join((str(len(pair[0])), *pair))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
