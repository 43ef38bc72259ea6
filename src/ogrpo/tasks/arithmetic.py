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

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from ogrpo.tasks.problems import MARKER, Problem, Split, calculate

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


ORIGINS = tuple(product(range(2, 10), (1, 2)))
"""Start values with numbers of steps."""
OPERANDS: dict[Operator, range] = {
    "+": range(2, 6),
    "-": range(2, 6),
    "*": range(2, 4),
    "/": range(2, 4),
}
VALUES = range(1, 21)
"""What a step may result in."""
INCONSISTENT = 0.25
"""Probability that a step is told with the keyword of the reverse operator."""


class ArithmeticStep(NamedTuple):
    """`value operator operand`, and whether its telling suggests the reverse operator."""

    operator: Operator
    operand: int
    inconsistent: bool


@dataclass(frozen=True)
class WordProblem(Problem):
    """A problem that remembers its equation."""

    start: int
    steps: tuple[ArithmeticStep, ...]


def split(train: int, heldout: int, seed: int) -> Split[WordProblem]:
    """Makes `train + heldout` problems with distinct prompts and parts them.

    Only prompts are disjoint: the equations behind them are few, so held-out problems tell known
    equations in new words. This measures reading and calculating, not whether
    arithmetic carries over to numbers never seen.
    """
    problems = generate(train + heldout, seed)
    return Split(train=problems[:train], heldout=problems[train:])


def generate(n: int, seed: int, *, apart_from: Collection[str] = frozenset()) -> list[WordProblem]:
    """Makes `n` problems with distinct prompts; the same arguments give the same problems.

    None has a prompt of `apart_from`, so that sets with seeds of their own can be kept disjoint.
    There are more than 10^8 prompts.
    """
    rng = np.random.default_rng(seed)
    problems: dict[str, WordProblem] = {}
    while len(problems) < n:
        problem = _draw(rng)
        if problem.question not in apart_from:
            problems.setdefault(problem.question, problem)
    return list(problems.values())


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Carelessness of the teacher: probabilities, for each step anew."""

    wrong_operator: float = 0.175
    """Another operator is used."""
    wrong_operand: float = 0.21
    """Otherwise, another operand is used."""
    result_slip: float = 0.21
    """The result written down is off by one or two."""
    misread_add: float = 0.6
    """A "fewer than" that means + is read as -."""
    misread_subtract: float = 0.6
    """A "more than" that means - is read as +."""
    misread_multiply: float = 0.6
    """A "times less than" that means * is read as /."""
    misread_divide: float = 0.6
    """A "times more than" that means / is read as *."""


TEACHER = Teacher(result_slip=0.15)
"""The teacher that a decoder imitates which is made here."""


def demonstrate(problems: Sequence[WordProblem], seed: int, teacher: Teacher) -> list[Problem]:
    """Answers each problem as the careless teacher would: texts for the warm start."""
    rng = np.random.default_rng(seed)
    return [Problem(p.question, careless_answer(p, rng, teacher)) for p in problems]


def careless_answer(problem: WordProblem, rng: np.random.Generator, teacher: Teacher) -> str:
    """Works through a problem step by step with the teacher's errors, each carried on from there.

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
        result = calculate(value, operator, operand)
        if rng.random() < teacher.result_slip:
            result += _pick((-2, -1, 1, 2), rng)
        result = min(max(result, 0), LARGEST)
        equations.append(f"{value} {operator} {operand} = {result}")
        value = result
    return f"{' ; '.join(equations)} {MARKER} {value}"


def vocabulary() -> list[str]:
    """Returns every word a prompt or an answer can hold, in a fixed order: numbers 0-99 first."""
    numbers = [str(number) for number in range(LARGEST + 1)]
    phrases = [phrase.text for operator in OPERATORS for phrase in PHRASES[operator]]
    texts = [*OPENINGS, *QUESTIONS, *phrases]
    words = [word for text in texts for word in text.split() if not word.startswith("{")]
    return list(dict.fromkeys([*numbers, *OPERATORS, "=", ";", MARKER, *words, *NAMES, *OBJECTS]))


@cache
def _moves(value: int) -> dict[Operator, list[int]]:
    """Returns the operands that each operator may have next."""
    moves: dict[Operator, list[int]] = {
        operator: [
            n
            for n in OPERANDS[operator]
            if (operator != "/" or value % n == 0) and calculate(value, operator, n) in VALUES
        ]
        for operator in OPERATORS
    }
    return {operator: operands for operator, operands in moves.items() if operands}


def _draw(rng: np.random.Generator) -> WordProblem:
    start, moves = _draw_equation(rng)
    people = iter([NAMES[i] for i in rng.permutation(len(NAMES))])
    who, what = next(people), _pick(OBJECTS, rng)
    sentences = [_pick(OPENINGS, rng).format(who=who, n=start, what=what)]
    value, steps, equations = start, list[ArithmeticStep](), list[str]()
    for operator, operand in moves:
        inconsistent = rng.random() < INCONSISTENT
        phrase = _pick([p for p in PHRASES[operator] if p.inconsistent == inconsistent], rng)
        other = next(people) if "{other}" in phrase.text else who
        sentences.append(phrase.text.format(who=who, other=other, n=operand))
        steps.append(ArithmeticStep(operator, operand, phrase.inconsistent))
        result = calculate(value, operator, operand)
        equations.append(f"{value} {operator} {operand} = {result}")
        who, value = other, result
    sentences.append(_pick(QUESTIONS, rng).format(who=who, what=what))
    answer = f"{' ; '.join(equations)} {MARKER} {value}"
    return WordProblem(" ".join(sentences), answer, start=start, steps=tuple(steps))


def _draw_equation(rng: np.random.Generator) -> tuple[int, list[tuple[Operator, int]]]:
    while True:  # again after a dead end
        start, n_steps = _pick(ORIGINS, rng)
        value, moves = start, list[tuple[Operator, int]]()
        while len(moves) < n_steps and (choices := _moves(value)):
            operator = _pick(list(choices), rng)
            operand = _pick(choices[operator], rng)
            moves.append((operator, operand))
            value = calculate(value, operator, operand)
        if len(moves) == n_steps:
            return start, moves


def _pick(choices: Sequence[T], rng: np.random.Generator) -> T:
    return choices[int(rng.integers(len(choices)))]
