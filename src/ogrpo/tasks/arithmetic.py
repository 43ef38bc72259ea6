"""Word problems in the format of GSM8K, made from a seed, and a careless teacher's answers to them.

A problem is a start value and one or more steps `value operator operand`, told in words:

    Tom has 7 apples . Tom finds 5 more . How many apples does Tom have now ?
    7 + 5 = 12 #### 12

Words are separated by single spaces, so that one token is one word or one number from 0 to 99.

Some steps are told inconsistently: "Tom has 7 apples . That is 3 fewer than Ann has ." asks for an
addition, but the keyword suggests a subtraction. People reverse the operator on just these (Lewis
and Mayer, "Students' miscomprehension of relational statements in arithmetic word problems",
Journal of Educational Psychology 79(4), 1987). A teacher who reverses more often than not makes the
most likely answer wrong while the right one is still sampled: what a policy gradient can correct.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import perm
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from ogrpo.config.train import Teacher
from ogrpo.tasks.problems import MARKER, Problem, Split

T = TypeVar("T")
Operator = Literal["+", "-", "*", "/"]
OPERATORS: tuple[Operator, ...] = ("+", "-", "*", "/")
REVERSED: dict[Operator, Operator] = {"+": "-", "-": "+", "*": "/", "/": "*"}
LARGEST = 99  # the largest number with a token

NAMES = (
    *("Tom", "Ann", "Ben", "Eva", "Sam", "Mia", "Leo", "Zoe"),
    *("Max", "Amy", "Dan", "Ida", "Jim", "Kim", "Ned", "Liv"),
)
OBJECTS = (
    *("apples", "pears", "plums", "nuts", "figs", "shells"),
    *("cards", "coins", "books", "pens", "balls", "beads"),
)
OPENINGS = ("{who} has {n} {what} .", "{who} starts with {n} {what} .")
QUESTIONS = ("How many {what} does {who} have now ?", "How many {what} does {who} have ?")


class Phrase(NamedTuple):
    """One way to tell a step; with `{other}` in it, the other person's amount is asked for next."""

    text: str
    inconsistent: bool = False


PHRASES: dict[Operator, tuple[Phrase, ...]] = {
    "+": (
        Phrase("{who} finds {n} more ."),
        Phrase("{who} buys {n} more ."),
        Phrase("{other} has {n} more ."),
        Phrase("That is {n} fewer than {other} has .", inconsistent=True),
    ),
    "-": (
        Phrase("{who} loses {n} ."),
        Phrase("{who} gives away {n} ."),
        Phrase("{other} has {n} fewer ."),
        Phrase("That is {n} more than {other} has .", inconsistent=True),
    ),
    "*": (
        Phrase("{who} then has {n} times as many ."),
        Phrase("{other} has {n} times as many ."),
        Phrase("That is {n} times less than {other} has .", inconsistent=True),
    ),
    "/": (
        Phrase("{who} keeps one of {n} equal piles ."),
        Phrase("{other} has one of {n} equal shares ."),
        Phrase("That is {n} times more than {other} has .", inconsistent=True),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Difficulty:
    """Ranges that problems are drawn from, both ends included; every value stays in `values`.

    `inconsistent` is the probability that a step is told with the keyword of the reverse operator.

    Raises:
        ValueError: a range is empty or leaves 0 to 99, or a probability is none.
    """

    steps: tuple[int, int] = (1, 2)
    start: tuple[int, int] = (2, 9)
    add: tuple[int, int] = (2, 5)
    multiply: tuple[int, int] = (2, 3)
    values: tuple[int, int] = (1, 20)
    inconsistent: float = 0.25

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("start", 0), ("add", 1), ("multiply", 2), ("values", 0)):
            low, high = getattr(self, name)
            if not least <= low <= high <= LARGEST:
                raise ValueError(
                    f"{name} is {(low, high)}; give {least} <= low <= high <= {LARGEST}."
                )
        if self.steps[1] > len(NAMES) - 1:
            raise ValueError(f"steps is {self.steps}; there are names for {len(NAMES) - 1} steps.")
        if not 0.0 <= self.inconsistent <= 1.0:
            raise ValueError(
                f"inconsistent is {self.inconsistent}; it is a probability: give a number from 0 to"
                " 1."
            )


class Step(NamedTuple):
    """`value operator operand`, and whether its telling suggests the reverse operator."""

    operator: Operator
    operand: int
    inconsistent: bool


@dataclass(frozen=True)
class WordProblem(Problem):
    """A problem that remembers its equation."""

    start: int
    steps: tuple[Step, ...]


def split(
    train: int, heldout: int, seed: int, difficulty: Difficulty | None = None
) -> Split[WordProblem]:
    """Make `train + heldout` problems with distinct prompts and part them.

    Only prompts are disjoint: the equations behind them are few, so held-out problems tell known
    equations in new words. This measures reading and calculating, not whether
    arithmetic carries over to numbers never seen.
    """
    problems = generate(train + heldout, seed, difficulty)
    return Split(train=problems[:train], heldout=problems[train:])


def generate(
    n: int,
    seed: int,
    difficulty: Difficulty | None = None,
    *,
    apart_from: Collection[str] = frozenset(),
) -> list[WordProblem]:
    """Make `n` problems with distinct prompts; the same arguments give the same problems.

    None has a prompt of `apart_from`, so that sets with seeds of their own can be kept disjoint.

    Raises:
        ValueError: more problems, with those to keep apart from, than half the distinct prompts.
    """
    difficulty = difficulty or Difficulty()
    available, apart = count_prompts(difficulty), frozenset(apart_from)
    if n < 0 or n + len(apart) > available // 2:
        others = f" apart from {len(apart)} others" if apart else ""
        raise ValueError(
            f"{n} problems asked for{others}; this difficulty has {available} distinct prompts: "
            f"ask for 0 to {max(available // 2 - len(apart), 0)}, or widen its ranges."
        )
    rng = np.random.default_rng(seed)
    problems: dict[str, WordProblem] = {}
    while len(problems) < n:
        problem = _draw(rng, difficulty)
        if problem.question not in apart:
            problems.setdefault(problem.question, problem)
    return list(problems.values())


def demonstrate(problems: Sequence[WordProblem], seed: int, teacher: Teacher) -> list[Problem]:
    """Answer each problem as the careless teacher would: texts for the warm start."""
    rng = np.random.default_rng(seed)
    return [Problem(p.question, careless_answer(p, rng, teacher)) for p in problems]


def careless_answer(problem: WordProblem, rng: np.random.Generator, teacher: Teacher) -> str:
    """Work through a problem step by step with the teacher's errors, each carried on from there.

    A result that is not a whole number from 0 to 99 is rounded down and cut to that range.
    """
    misread = {
        "+": teacher.misread_add,
        "-": teacher.misread_subtract,
        "*": teacher.misread_multiply,
        "/": teacher.misread_divide,
    }
    value, equations = problem.start, []
    for step in problem.steps:
        operator: Operator = step.operator
        operand = step.operand
        if step.inconsistent and rng.random() < misread[operator]:
            operator = REVERSED[operator]
        if rng.random() < teacher.wrong_operator:
            others: list[Operator] = [other for other in OPERATORS if other != operator]
            operator = _pick(others, rng)
        elif rng.random() < teacher.wrong_operand:
            seen = {problem.start, *(s.operand for s in problem.steps), operand - 1, operand + 1}
            operand = _pick(sorted(seen - {operand, 0}), rng)
        result = _apply(value, operator, operand)
        if rng.random() < teacher.result_slip:
            result += _pick((-2, -1, 1, 2), rng)
        result = min(max(result, 0), LARGEST)
        equations.append(f"{value} {operator} {operand} = {result}")
        value = result
    return f"{' ; '.join(equations)} {MARKER} {value}"


def vocabulary() -> list[str]:
    """Return every word a prompt or an answer can hold, in a fixed order: numbers 0-99 first."""
    numbers = [str(number) for number in range(LARGEST + 1)]
    phrases = [phrase.text for operator in OPERATORS for phrase in PHRASES[operator]]
    texts = [*OPENINGS, *QUESTIONS, *phrases]
    words = [word for text in texts for word in text.split() if not word.startswith("{")]
    return list(dict.fromkeys([*numbers, *OPERATORS, "=", ";", MARKER, *words, *NAMES, *OBJECTS]))


def count_prompts(difficulty: Difficulty) -> int:
    """Return the exact number of distinct prompts: equations times tellings, persons, objects."""
    tellings = sum(
        count * perm(len(NAMES), others + 1)
        for origin in _origins(difficulty)
        for others, count in enumerate(_tellings_from(*origin, difficulty))
    )
    return tellings * len(OBJECTS) * len(OPENINGS) * len(QUESTIONS)


def _origins(difficulty: Difficulty) -> Iterator[tuple[int, int]]:
    """Return the start values with each number of steps."""
    (low, high), (least, most) = difficulty.start, difficulty.steps
    low, high = max(low, difficulty.values[0]), min(high, difficulty.values[1])
    return product(range(low, high + 1), range(least, most + 1))


@lru_cache(maxsize=4096)
def _tellings_from(value: int, n_steps: int, difficulty: Difficulty) -> tuple[int, ...]:
    # Entry k counts the tellings that bring in k people besides the first, before naming them.
    if n_steps == 0:
        return (1,)
    counts = [0] * (n_steps + 1)
    for operator, operands in _moves(value, difficulty).items():
        chances = (1.0 - difficulty.inconsistent, difficulty.inconsistent)
        allowed = [phrase for phrase in PHRASES[operator] if chances[phrase.inconsistent] > 0.0]
        with_other = sum("{other}" in phrase.text for phrase in allowed)
        for operand in operands:
            rest = _tellings_from(_apply(value, operator, operand), n_steps - 1, difficulty)
            for others, count in enumerate(rest):
                counts[others] += count * (len(allowed) - with_other)
                counts[others + 1] += count * with_other
    return tuple(counts)


@lru_cache(maxsize=4096)
def _moves(value: int, difficulty: Difficulty) -> dict[Operator, list[int]]:
    """Return the operands that each operator may have next."""
    low, high = difficulty.values
    moves: dict[Operator, list[int]] = {}
    for operator in OPERATORS:
        least, most = difficulty.add if operator in "+-" else difficulty.multiply
        operands = [
            n
            for n in range(least, most + 1)
            if (operator != "/" or value % n == 0) and low <= _apply(value, operator, n) <= high
        ]
        if operands:
            moves[operator] = operands
    return moves


def _draw(rng: np.random.Generator, difficulty: Difficulty) -> WordProblem:
    start, moves = _draw_equation(rng, difficulty)
    people = iter([NAMES[i] for i in rng.permutation(len(NAMES))])
    who, what = next(people), _pick(OBJECTS, rng)
    sentences = [_pick(OPENINGS, rng).format(who=who, n=start, what=what)]
    value, steps, equations = start, list[Step](), list[str]()
    for operator, operand in moves:
        inconsistent = rng.random() < difficulty.inconsistent
        phrase = _pick([p for p in PHRASES[operator] if p.inconsistent == inconsistent], rng)
        other = next(people) if "{other}" in phrase.text else who
        sentences.append(phrase.text.format(who=who, other=other, n=operand))
        steps.append(Step(operator, operand, phrase.inconsistent))
        result = _apply(value, operator, operand)
        equations.append(f"{value} {operator} {operand} = {result}")
        who, value = other, result
    sentences.append(_pick(QUESTIONS, rng).format(who=who, what=what))
    answer = f"{' ; '.join(equations)} {MARKER} {value}"
    return WordProblem(" ".join(sentences), answer, start=start, steps=tuple(steps))


def _draw_equation(
    rng: np.random.Generator, difficulty: Difficulty
) -> tuple[int, list[tuple[Operator, int]]]:
    origins = list(_origins(difficulty))
    while True:  # again after a dead end; `generate` made sure that there is a way
        start, n_steps = _pick(origins, rng)
        value, moves = start, list[tuple[Operator, int]]()
        while len(moves) < n_steps and (choices := _moves(value, difficulty)):
            operator = _pick(list(choices), rng)
            operand = _pick(choices[operator], rng)
            moves.append((operator, operand))
            value = _apply(value, operator, operand)
        if len(moves) == n_steps:
            return start, moves


def _apply(value: int, operator: Operator, operand: int) -> int:
    return {
        "+": value + operand, "-": value - operand,
        "*": value * operand, "/": value // operand,
    }[operator]  # fmt: skip


def _pick(choices: Sequence[T], rng: np.random.Generator) -> T:
    return choices[int(rng.integers(len(choices)))]
