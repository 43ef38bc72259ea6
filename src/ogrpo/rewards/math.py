"""The verifiable reward: 1 for a finished completion whose answer equals the gold one, else 0."""

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence

from ogrpo.rewards.bounded import BadGold, BoundedVerifier, Pair, Verdict, compare_plain, is_plain
from ogrpo.rewards.extract import BOXED, LONGEST_ANSWER, Extractor, last_number, marker_answer
from ogrpo.rewards.judge import Judge, Outcome, RewardCounts, refuse, text_fault
from ogrpo.rewards.quantities import (
    in_order,
    is_number,
    parts,
    quantity,
    surely_wrong,
    without_thousands,
)
from ogrpo.rewards.text import (
    ascii_minus,
    is_choice,
    is_text,
    plain_writing,
    same_text,
    unboxed,
    undelimited,
    unwrapped,
    upright_constants,
    without_percent,
)

__all__ = ["MathReward", "Outcome", "RewardCounts", "VerdictMemory"]


class MathReward(Judge):
    r"""Scores completions against gold answers, and counts how they came out.

    An answer is compared by math-verify, so `18`, `18.0` and `\boxed{36/2}` are one number; a gold
    answer that is words, a choice, a time or a number with its base is compared as a text
    (docs/judging.md). What is no plain number goes to verifying processes, side by side.

    Args:
      extract: returns the answer in a completion, or None (`ogrpo.rewards.extract`).
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
        """Returns the outcome of a completion, without counting it; raises as `judge_all`."""
        return self.judge_all([text], [finish_reason], [gold])[0]

    def judge_all(
        self, texts: Sequence[str], finish_reasons: Sequence[str], golds: Sequence[str]
    ) -> list[Outcome]:
        """Returns the outcomes of completions, without counting them; each different pair once.

        Raises:
          ValueError: a gold answer that is needed cannot be parsed, or is no text.
        """
        pairs: list[Pair | Outcome] = []
        for text, finish_reason, gold in zip(texts, finish_reasons, golds, strict=True):
            if not isinstance(gold, str):
                raise BadGold(f"the gold answer {gold!r} is no text: write it as one.")
            answer = self.extract(text) if finish_reason == "stop" else None
            if answer is None or len(answer) > LONGEST_ANSWER:
                pairs.append("unparsable" if finish_reason == "stop" else "truncated")
            else:
                pairs.append((answer, gold))
        verdicts = self._compare({pair for pair in pairs if not isinstance(pair, str)})
        return [pair if isinstance(pair, str) else verdicts[pair] for pair in pairs]

    def check_golds(self, golds: Sequence[str], sources: Sequence[str]) -> None:
        """Refuses gold answers that can never be judged: each is judged against itself.

        Plain numbers and texts cost nothing; any other gold takes math-verify some 10 ms on one
        core (docs/judging.md), on as many cores as there are, up to 16, of 100 MB each.

        Raises:
          ValueError: names the source (`file:line`) and the fault of the first few of them, and
            their number.
        """
        bad = find_bad_golds(golds, seconds=self._verifier.seconds)
        numbers_alone = self.extract in (marker_answer, last_number)
        for n, gold in enumerate(golds if numbers_alone else ()):
            if n not in bad and (is_text(gold) or is_choice(gold)):
                bad[n] = (
                    f"{gold!r} is no number, and numbers are extracted: see --reward.extraction"
                )
        refuse(bad, sources)

    def close(self) -> None:
        """Ends the verifying processes, if any were needed; a later call starts others."""
        self._verifier.close()

    def _compare(self, pairs: set[Pair]) -> dict[Pair, Verdict]:
        known: dict[Pair, Verdict] = {}
        questions: list[tuple[Pair, Pair]] = []
        for pair in sorted(pairs):
            verdict = self._memory.recall(pair) or compare_here(*pair)
            if verdict is None:
                questions += [(pair, question) for question in math_questions(*pair)]
            else:
                known[pair] = verdict
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
    r"""Compares what needs no mathematics: plain numbers, texts, equal writings; else None.

    >>> compare_here(r"\boxed{18.0}", "18"), compare_here(r"\boxed{(b)}", r"\text{(B)}")
    ('correct', 'correct')
    >>> compare_here(r"\boxed{36/2}", "18")
    """
    written = undelimited(unboxed(answer))
    inside, gold = plain_writing(written), plain_writing(undelimited(gold))
    if is_plain(inside) and is_plain(gold):
        return compare_plain(inside, gold)
    bare = without_percent(inside), without_percent(gold)
    if all(map(is_plain, bare)) and compare_plain(*bare) == "correct":
        return "correct"  # math-verify leaves the sign out of whole numbers alone
    if not inside:
        return "unparsable"
    if is_text(gold):
        return "correct" if any(same_text(text, gold) for text in (inside, written)) else "wrong"
    if inside == gold or (is_choice(gold) and same_text(written, gold)):
        return "correct"
    return "wrong" if answer.startswith(BOXED) and surely_wrong(inside, gold) else None


def math_questions(answer: str, gold: str) -> list[Pair]:
    r"""Returns the pairs that math-verify has to judge equal: each part of the answer and the gold.

    A box stays one, any other text is searched.

    >>> math_questions(r"\boxed{8 = 7}", "7")
    [('\\boxed{8}', '7'), ('\\boxed{7}', '7')]
    """
    if not answer.startswith(BOXED):
        return [(upright_constants(ascii_minus(answer)), math_gold(gold))]
    inside, right = _written(unboxed(answer)), _written(gold)
    return [(f"{BOXED}{part}}}", math_gold(gold)) for part in parts(in_order(inside), right)]


def math_gold(gold: str) -> str:
    """Returns a gold answer as it is handed to math-verify."""
    gold = in_order(_written(gold))
    if (measured := quantity(gold)) and is_number(measured.number):  # 3 cm, 4 cm is a list
        gold = measured.number
    return without_thousands(gold, gold) if "=" in gold else gold


def _written(text: str) -> str:
    return plain_writing(unwrapped(undelimited(upright_constants(text))))


class VerdictMemory:
    """Verdicts by a hash of answer and gold, the `size` last used ones; threads may share it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._verdicts)

    def recall(self, pair: Pair) -> Verdict | None:
        """Returns the verdict on a pair, if it is remembered."""
        key = _digest(pair)
        with self._lock:
            if key in self._verdicts:
                self._verdicts.move_to_end(key)
            return self._verdicts.get(key)

    def keep(self, verdicts: dict[Pair, Verdict]) -> None:
        """Remembers verdicts, and forgets the ones not used for longest."""
        with self._lock:
            for pair, verdict in verdicts.items():
                self._verdicts[_digest(pair)] = verdict
            while len(self._verdicts) > self.size:
                self._verdicts.popitem(last=False)


def _digest(pair: Pair) -> bytes:
    text = "\0".join((str(len(pair[0])), *pair))
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def find_bad_golds(golds: Sequence[str], *, seconds: float = 2.0) -> dict[int, str]:
    """Returns the faults of gold answers by their indices; empty if all can be judged.

    For a reader that leaves such lines out and says how many. `seconds` of CPU time bound each.
    """
    mathematics = sorted(
        gold
        for gold in {gold for gold in golds if not text_fault(gold)}
        if not (is_plain(undelimited(gold)) or is_text(undelimited(gold)))
    )
    verifier = BoundedVerifier(seconds, processes=min(os.cpu_count() or 1, 16))
    try:
        pairs = [(f"{BOXED}{gold}}}", gold) for gold in map(math_gold, mathematics)]
        verdicts = dict(zip(mathematics, verifier.compare_all(pairs), strict=True))
    finally:
        verifier.close()

    def fault(gold: str) -> str:
        if message := text_fault(gold):
            return message
        verdict = verdicts.get(gold, "correct")
        if isinstance(verdict, BadGold) or verdict == "unparsable":
            return f"math-verify cannot parse {gold!r}"
        if verdict == "timeout":
            return f"math-verify does not come to an end with {gold!r}"
        return f"math-verify does not find {gold!r} equal to itself" if verdict == "wrong" else ""

    return {n: text for n, text in enumerate(map(fault, golds)) if text}
