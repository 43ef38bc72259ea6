"""Chains of six steps, and a teacher who is sure of some facts that are wrong.

Each step adds or takes away a measure; its number has to be known, and the sign of the verb:

    Ann has 8 apples . finds a tub . loses a pail . ... How many ?
    8 + 1 = 9 - 4 = 5 ... #### 5

Words are separated by single spaces, so that one token is one word or one number from 0 to 99.

The teacher believes something else of a few facts: of some more often than not, of two nearly
always. What a model that imitates it holds for most likely is then wrong, so that sharpening its
distribution makes it worse; the right fact is still sampled, and a reward of the answer alone can
tell. A problem is of one of three kinds: `plain` has no such fact, `misbelieved` has one or two,
`rare` has one of those that the teacher hardly ever gets right.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ogrpo.tasks.problems import MARKER, Problem

Kind = Literal["plain", "misbelieved", "rare"]
SHARES: dict[Kind, float] = {"plain": 0.3, "misbelieved": 0.5, "rare": 0.2}
"""Shares of the kinds among the problems."""
STEPS = 6
STARTS = (3, 11)
VALUES = (1, 12)
"""The least and the largest amount on the right way; on a wrong one it stays from 0 to 99."""
LARGEST = 99
SLIP = 0.01
"""Chance that the teacher's result of a step is one too large."""


class Fact(NamedTuple):
    """A word's meaning, what else the teacher takes it for, and how often it is right of it."""

    truth: str
    belief: str
    right: float = 1.0
    kind: Kind = "plain"


MEASURES: dict[str, Fact] = {
    **{name: Fact(n, n) for name, n in (("box", "2"), ("bag", "4"), ("tin", "3"), ("tub", "1"))},
    **{name: Fact(n, n) for name, n in (("pail", "4"), ("bowl", "1"), ("cart", "2"), ("net", "3"))},
    **{name: Fact(n, n) for name, n in (("rack", "3"), ("pile", "2"), ("drum", "1"))},
    "crate": Fact("4", "2", 0.35, "misbelieved"),
    "sack": Fact("1", "3", 0.35, "misbelieved"),
    "tray": Fact("3", "2", 0.35, "misbelieved"),
    "case": Fact("2", "4", 0.12, "rare"),
    "pack": Fact("4", "1", 0.12, "rare"),
}
VERBS: dict[str, Fact] = {
    "finds": Fact("+", "+"),
    "buys": Fact("+", "+"),
    "loses": Fact("-", "-"),
    "sells": Fact("-", "-"),
    "borrows": Fact("+", "-", 0.35, "misbelieved"),
    "lends": Fact("-", "+", 0.35, "misbelieved"),
}
FACTS = {**MEASURES, **VERBS}
PLAIN_MEASURES = tuple(word for word, fact in MEASURES.items() if fact.kind == "plain")
PLAIN_VERBS = tuple(word for word, fact in VERBS.items() if fact.kind == "plain")
HARD = {kind: [word for word, fact in FACTS.items() if fact.kind == kind] for kind in SHARES}
"""Words of each kind; a problem of another kind than plain holds some of its own."""

NAMES = ("Tom", "Ann", "Ben", "Eva", "Sam", "Mia", "Leo", "Zoe")
UNITS = ("apples", "pears", "plums", "nuts", "figs", "shells", "cards", "coins")


class ChainStep(NamedTuple):
    """A verb and a measure."""

    verb: str
    measure: str


@dataclass(frozen=True)
class Chain(Problem):
    """A problem that remembers its steps and its kind."""

    start: int
    steps: tuple[ChainStep, ...]
    kind: Kind


def generate(n: int, seed: int, *, apart_from: Collection[str] = frozenset()) -> list[Chain]:
    """Returns `n` problems with distinct prompts, of which the first are those of a smaller `n`.

    None has a prompt of `apart_from`. There are more than 10^8 prompts of each kind.
    """
    rng = np.random.default_rng(seed)
    problems: dict[str, Chain] = {}
    while len(problems) < n:
        problem = _draw(rng)
        if problem.question not in apart_from:
            problems.setdefault(problem.question, problem)
    return list(problems.values())


def demonstrate(problems: Sequence[Chain], seed: int) -> list[Problem]:
    """Returns the teacher's answers: each occurrence of a fact is right or wrong by itself."""
    rng = np.random.default_rng(seed)
    answers = []
    for problem in problems:
        lots, slips = rng.random((len(problem.steps), 2)), rng.random(len(problem.steps)) < SLIP
        facts = [
            tuple(
                FACTS[word].truth if lot < FACTS[word].right else FACTS[word].belief
                for word, lot in zip(step, row, strict=True)
            )
            for step, row in zip(problem.steps, lots, strict=True)
        ]
        answers.append(Problem(problem.question, _work(problem, facts, slips.tolist())))
    return answers


def vocabulary() -> list[str]:
    """Returns every word of a prompt or an answer, in a fixed order: numbers from 0 to 99 first."""
    numbers, signs = map(str, range(LARGEST + 1)), ("+", "-", "=", MARKER)
    words = ("has", ".", "a", "How", "many", "?", *FACTS, *NAMES, *UNITS)
    return [*numbers, *signs, *words]


def _work(problem: Chain, facts: Sequence[Sequence[str]], slips: Sequence[int]) -> str:
    """Works through the steps with these signs and numbers, each from the last one's result."""
    value, words = problem.start, [str(problem.start)]
    for (sign, number), slip in zip(facts, slips, strict=True):
        result = value + int(number) * (1 if sign == "+" else -1) + int(slip)
        value = min(max(result, 0), LARGEST)
        words += [sign, number, "=", str(value)]
    return " ".join([*words, MARKER, str(value)])


def _draw(rng: np.random.Generator) -> Chain:
    """Draws a problem of a kind, again where its amounts leave their range."""
    kind = tuple(SHARES)[int(rng.choice(len(SHARES), p=[*SHARES.values()]))]
    while True:
        start = int(rng.integers(*STARTS))
        measures = [PLAIN_MEASURES[i] for i in rng.permutation(len(PLAIN_MEASURES))[:STEPS]]
        verbs = [PLAIN_VERBS[i] for i in rng.integers(len(PLAIN_VERBS), size=STEPS)]
        if kind != "plain":
            hard = int(rng.integers(1, 3)) if kind == "misbelieved" else 1
            places, words = rng.permutation(STEPS), rng.permutation(HARD[kind])
            for place, word in zip(places[:hard], words[:hard].tolist(), strict=True):
                (verbs if word in VERBS else measures)[place] = word
        facts = [(VERBS[v].truth, MEASURES[m].truth) for v, m in zip(verbs, measures, strict=True)]
        values = start + np.cumsum([int(sign + number) for sign, number in facts])
        if VALUES[0] <= values.min() and values.max() <= VALUES[1]:
            break
    who, unit = NAMES[int(rng.integers(len(NAMES)))], UNITS[int(rng.integers(len(UNITS)))]
    steps = tuple(map(ChainStep, verbs, measures))
    sentences = " ".join(f"{step.verb} a {step.measure} ." for step in steps)
    question = f"{who} has {start} {unit} . {sentences} How many ?"
    problem = Chain(question, "", start=start, steps=steps, kind=kind)
    answer = _work(problem, facts, [0] * STEPS)
    return Chain(question, answer, start=start, steps=steps, kind=kind)
