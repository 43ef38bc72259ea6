"""Random answers with verdicts that are known, through every judge: no crash, no wrong acceptance.

    python -m benchmarks.fuzz_judges                      # 80,000 judgements
    python -m benchmarks.fuzz_judges --judgements 6000    # a look: 2.5 minutes on 2 busy cores

A gold answer is a number, a list of numbers, words or a choice. An answer is another writing of it,
of something else whose value is known, two answers at once, or noise. What is right is decided here
by fractions and sets, without math-verify. The same seed asks the same questions.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NamedTuple

import tyro

from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.judge import ExactMatch, Judge
from ogrpo.rewards.math import MathReward

BATCH = 256
TENTH = Fraction(1, 10)
DASHES = "-\N{MINUS SIGN}\N{EN DASH}"
WORDS = ("even", "odd", "Evelyn", "Carlos", "red", "blue", "parallel", "hyperbola", "Monday")
PIECES = (
    *("\\boxed{", "\\boxed{}", "{", "}", "$", "$$", "\\(", "\\)", "\\[", "\\]", "####", "\\frac"),
    *("</think>", "<think>", "\\sqrt", "^", "_", "&", "\\\\", "%", "~", "\\text{", "\\left(", "<"),
    *("\\begin{pmatrix}", "\\end{pmatrix}", "\\right.", "\\infty", "\\cup", "\\in", "=", ">", ","),
    *(";", ".", ":", "-", "+", "*", "/", "and", "or", "answer is", "9**9**9", "(" * 40, "\0"),
    *("\ud800", "\N{ARABIC-INDIC DIGIT SEVEN}", "\N{RIGHT-TO-LEFT OVERRIDE}", "x", "y", "e", "i"),
    *("\N{FULLWIDTH DIGIT ONE}", "\n", " ", "0"),
)


class Question(NamedTuple):
    """A completion with its gold answer, whose judge it is, and whether it is right."""

    judge: str
    text: str
    gold: str
    right: bool
    finish_reason: str = "stop"


def number(rng: random.Random) -> Fraction:
    """A number that a few digits write, whole or not; never 0, which has no sign."""
    size = rng.choice((9, 99, 999, 99_999, 9_999_999))
    value = Fraction(rng.randint(1, size), rng.choice((1, 1, 1, 2, 4, 5, 8, 3, 7)))
    return value * rng.choice((1, 1, -1))


def near(value: Fraction, rng: random.Random) -> Fraction:
    """Another number, as slips make it."""
    slips = (-value, value + 1, value - 1, value * 10, value / 10, 1 / value, value + TENTH)
    return rng.choice([slip for slip in slips if slip != value])


def is_decimal(value: Fraction) -> bool:
    """Whether a few decimals write it."""
    return (value * 10**6).denominator == 1


def written(value: Fraction, rng: random.Random) -> str:
    """A writing of a number in LaTeX."""
    sign = rng.choice(DASHES) + rng.choice(("", "", " ")) if value < 0 else ""
    over, under = abs(value.numerator), value.denominator
    factor = rng.randint(1, 4)
    ways = [
        rf"\frac{{{over * factor}}}{{{under * factor}}}",
        rf"\dfrac{{{over}}}{{{under}}}",
        f"{over * factor}/{under * factor}",
    ]
    if is_decimal(value):
        ways += [plain(abs(value)), plain(abs(value))]
    return sign + rng.choice(ways)


def plain(value: Fraction, *, commas: bool = False) -> str:
    """A number in digits."""
    text = f"{float(value):,.6f}".rstrip("0").rstrip(".")
    return text if commas else text.replace(",", "")


def marked(rng: random.Random) -> Question:
    """A number behind GSM8K's marker."""
    gold = Fraction(rng.randint(1, 10**5)) * rng.choice((1, 1, -1))
    said = gold if rng.random() < 0.5 else near(gold, rng)
    while not is_decimal(said):
        said = near(gold, rng)
    sign = rng.choice(DASHES) + rng.choice(("", " ")) if said < 0 else ""
    digits = plain(abs(said), commas=rng.random() < 0.3)
    money = rng.choice(("", "$", r"\$"))
    ending = rng.choice(("", ".", " dollars", "\n"))
    text = f"2 * 9 = 18, {noise(rng, 1)}\n#### {sign}{money}{digits}{ending}"
    if rng.random() < 0.1:  # two answers are none
        return Question("marker", f"{text} or {plain(gold)}", plain(gold), False)
    return Question("marker", text, plain(gold), said == gold and "<think>" not in text)


def boxed(rng: random.Random) -> Question:
    """One number or several in boxes."""
    gold = {number(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))}
    said = set(gold)
    if rng.random() < 0.5:
        one = rng.choice(sorted(gold))
        said = said - {one} if rng.random() < 0.3 else said - {one} | {near(one, rng)}
        said |= {near(one, rng)} if rng.random() < 0.3 else set()
    said = said or {near(min(gold), rng)}
    items = [written(value, rng) for value in rng.sample(sorted(said), len(said))]
    apart = rng.random() < 0.5
    between = rng.choice((", ", " and ", r" \text{ or } ", "; ")) if apart else ", "
    text = between.join(rf"\boxed{{{item}}}" for item in items)
    unit = r"\text{ cm}" if len(said) == len(gold) == 1 and rng.random() < 0.2 else ""
    text = text if apart else rf"\boxed{{{', '.join(items)}{unit}}}"
    judge = rng.choice(("boxed", "free"))
    gold_text = ", ".join(written(value, rng) for value in sorted(gold))
    return Question(judge, f"Hence ${text}$.", gold_text, said == gold)


def worded(rng: random.Random) -> Question:
    """A word or a choice."""
    words = WORDS if rng.random() < 0.5 else list("ABCDE")
    gold = rng.choice(words)
    said = gold if rng.random() < 0.5 else rng.choice(words)
    ways = (said, said.upper(), f" {said} ", rf"\text{{{said}}}", rf"\textbf{{{said}}}.")
    text = f"So it is \\boxed{{{rng.choice(ways)}}}."
    if rng.random() < 0.1 and said == gold:
        other = rng.choice([word for word in words if word != gold])
        return Question("exact", rf"{text[:-1]} or \boxed{{{other}}}", gold, False)
    return Question(rng.choice(("exact", "choice", "boxed")), text, gold, said == gold)


def noise(rng: random.Random, most: int = 30) -> str:
    """Fragments in any order, out of which no number of nine digits comes."""
    return " ".join(rng.choice(PIECES) for _ in range(rng.randint(0, most)))


def noisy(rng: random.Random) -> Question:
    """Noise, which is never the answer."""
    text = noise(rng)
    text = rng.choice((text, rf"\boxed{{{text}}}", f"#### {text}", f"The answer is {text}"))
    judge = rng.choice(("marker", "boxed", "free", "exact", "choice"))
    return Question(judge, text, str(rng.randint(10**8, 10**9)), False)


KINDS: tuple[Callable[[random.Random], Question], ...] = (marked, boxed, worded, noisy)


def questions(count: int, seed: int) -> Iterator[Question]:
    """Asks this many; one in twenty was cut off, and is then not right."""
    rng = random.Random(seed)
    for _ in range(count):
        one = rng.choice(KINDS)(rng)
        if rng.random() < 0.05:
            one = one._replace(finish_reason=rng.choice(("length", "abort")), right=False)
        yield one


class Fuzzed(NamedTuple):
    """The verdicts on the questions."""

    outcomes: Counter[str]
    accepted: list[Question]
    """Called right, and wrong."""
    refused: list[Question]
    """Called something else, and right."""


def fuzz(count: int, seed: int) -> Fuzzed:
    """Puts questions to their judges, in batches as a trainer does."""
    math = MathReward(processes=2)
    judges: dict[str, Judge] = {"exact": ExactMatch()}
    judges["choice"] = ExactMatch(EXTRACTORS["choice"])
    for name in ("marker", "boxed", "free"):
        judges[name] = one = math.counting_apart()
        one.extract = EXTRACTORS[name]
    verdicts = Fuzzed(Counter(), [], [])
    try:
        every = list(questions(count, seed))
        for name, judge in judges.items():
            batch = [one for one in every if one.judge == name]
            for start in range(0, len(batch), BATCH):
                part = batch[start : start + BATCH]
                outcomes = judge.judge_all(
                    [one.text for one in part],
                    [one.finish_reason for one in part],
                    [one.gold for one in part],
                )
                verdicts.outcomes.update(outcomes)
                for one, outcome in zip(part, outcomes, strict=True):
                    if (outcome == "correct") != one.right:
                        (verdicts.refused if one.right else verdicts.accepted).append(one)
    finally:
        math.close()
    return verdicts


def main(judgements: int = 80_000, seed: int = 0) -> None:
    """Prints the outcomes, and every verdict that is wrong."""
    verdicts = fuzz(judgements, seed)
    for one in verdicts.accepted:
        print(f"wrongly accepted: {one!r}")
    for one in verdicts.refused:
        print(f"wrongly refused: {one!r}")
    outcomes = ", ".join(f"{count:,} {name}" for name, count in sorted(verdicts.outcomes.items()))
    print(
        f"{judgements:,} judgements with seed {seed}: {outcomes}; "
        f"{len(verdicts.accepted)} wrongly accepted, {len(verdicts.refused)} wrongly refused"
    )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
