"""Gold answers, checked before a run: each must be right when it is judged against itself."""

import os
from collections.abc import Sequence

from ogrpo.rewards.bounded import BadGold, BoundedVerifier, is_plain
from ogrpo.rewards.judge import refuse
from ogrpo.rewards.text import (
    is_text,
    plain_writing,
    undelimited,
    unwrapped,
    upright_constants,
)


def check_golds(
    golds: Sequence[str],
    sources: Sequence[str],
    *,
    seconds: float = 2.0,
    processes: int | None = None,
) -> None:
    """Refuse gold answers that `MathReward` can never judge.

    Call it when a task is loaded, with the lines that are used. Plain numbers and texts cost
    nothing; any other gold takes math-verify some 10 ms on one core (docs/judging.md).

    Args:
        golds: the answers, LaTeX without delimiters.
        sources: where each was read, `file:line`.
        seconds: of CPU time, the bound on one of them.
        processes: that check side by side, 100 MB each; one for each core, up to 16, unless told.

    Raises:
        ValueError: names the source and the fault of the first few of them, and their number.
    """
    refuse(find_bad_golds(golds, seconds=seconds, processes=processes), sources)


def find_bad_golds(
    golds: Sequence[str], *, seconds: float = 2.0, processes: int | None = None
) -> dict[int, str]:
    """Return what is wrong with gold answers, by their places; empty if nothing is.

    For a reader that leaves such lines out and says how many.
    """
    bad = {n: f"{gold!r} is no text" for n, gold in enumerate(golds) if not isinstance(gold, str)}
    bad |= {n: "it is empty" for n, gold in enumerate(golds) if n not in bad and not gold.strip()}
    asked = sorted({golds[n] for n in range(len(golds)) if n not in bad and _is_asked(golds[n])})
    faults = _faults(asked, seconds, processes)
    bad |= {n: faults[gold] for n, gold in enumerate(golds) if n not in bad and gold in faults}
    return dict(sorted(bad.items()))


def _is_asked(gold: str) -> bool:
    gold = undelimited(gold)
    return not (is_plain(gold) or is_text(gold))


def _faults(golds: Sequence[str], seconds: float, processes: int | None) -> dict[str, str]:
    verifier = BoundedVerifier(seconds, processes=processes or min(os.cpu_count() or 1, 16))
    try:
        pairs = [(f"\\boxed{{{gold}}}", gold) for gold in map(math_gold, golds)]
        verdicts = verifier.compare_all(pairs)
    finally:
        verifier.close()
    return {
        gold: _say(gold, verdict)
        for gold, verdict in zip(golds, verdicts, strict=True)
        if verdict != "correct"
    }


def math_gold(gold: str) -> str:
    """Return a gold answer as it is handed to math-verify."""
    return unwrapped(plain_writing(undelimited(upright_constants(gold))))


def _say(gold: str, verdict: object) -> str:
    if isinstance(verdict, BadGold) or verdict == "unparsable":
        return f"math-verify cannot parse {gold!r}"
    if verdict == "timeout":
        return f"math-verify does not come to an end with {gold!r}"
    return f"math-verify does not find {gold!r} equal to itself"
