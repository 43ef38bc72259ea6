"""Worked answers with the fields of GSM8K: the number that one ends in, and what its lines earn."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from ogrpo.rewards.text import ascii_minus

MARKER = "####"
AnyProblem = TypeVar("AnyProblem", bound="Problem")
_LINE_END = re.compile(rf";|{re.escape(MARKER)}")
_DIGITS = r"\s*(\d{1,99})\s*"  # Python makes no number of more than 4,300 digits
_EQUATION = re.compile(f"{_DIGITS}([-+*/]){_DIGITS}={_DIGITS}")


@dataclass(frozen=True)
class Problem:
    """A question and a worked answer that ends in `#### number` (the JSON fields of GSM8K).

    `source` says where it was read, `file:line`, for error messages; it is not part of the problem.
    """

    question: str
    answer: str
    source: str = field(default="", compare=False, repr=False, kw_only=True)


class Split(NamedTuple, Generic[AnyProblem]):
    """Problems to train on, and problems held out."""

    train: list[AnyProblem]
    heldout: list[AnyProblem]


def final_answer(problem: Problem) -> str:
    """Returns the number after the last `####`, plainly: no commas, dollar signs or trailing dot.

    A dash before it is a minus.

    >>> final_answer(Problem("How much ?", "2 * 500 = 1,000 #### $1,000."))
    '1000'

    Raises:
      ValueError: there is no `####`, or nothing after it.
    """
    _, marker, tail = problem.answer.rpartition(MARKER)
    answer = re.sub(r"[,$ \t\n\r\xa0]", "", ascii_minus(tail)).rstrip(".")
    if not marker or not answer:
        where = problem.source or f"question {problem.question[:60]!r}"
        raise ValueError(
            f"{where}: field 'answer' must end in '{MARKER} <number>', "
            f"got {problem.answer[-60:]!r}."
        )
    return answer


def calculate(left: int, operator: str, right: int) -> int:
    """Returns what a step comes to; a quotient is rounded down.

    >>> calculate(12, "/", 4), calculate(3, "*", 5)
    (3, 15)
    """
    return {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]


class StepReward(NamedTuple):
    """A step of a text: the index of the character behind it, and its reward."""

    end: int
    reward: float


def line_rewards(text: str, solution: str) -> list[StepReward]:
    """Returns 1/K for each right line, K the lines of the worked solution; 0 for any other line.

    A line ends at `;` or `####`. It is right if it is an equation of two numbers that holds, and
    its result is that of the worked solution's line of the same number. So a text earns at most 1,
    however many lines it has.

    >>> line_rewards("7 + 5 = 12 ; 12 - 3 = 8 #### 8", "7 + 5 = 12 ; 12 - 3 = 9 #### 9")
    [StepReward(end=12, reward=0.5), StepReward(end=28, reward=0.0)]

    Raises:
      ValueError: the worked solution has a line that is no equation, or none at all.
    """
    expected = [result for _, result in _lines(solution)]
    if not expected or None in expected:
        raise ValueError(
            f"the worked solution {solution!r:.80} has no lines such as `7 + 5 = 12 ;` before its"
            f" {MARKER}: rewards of steps need them"
        )
    return [
        StepReward(end, (result is not None and expected[n : n + 1] == [result]) / len(expected))
        for n, (end, result) in enumerate(_lines(text))
    ]


def _lines(text: str) -> Iterator[tuple[int, int | None]]:
    """Yields the end of each line, and its result; None where it is no equation, or a wrong one."""
    begin = 0
    for mark in _LINE_END.finditer(text):
        result = None
        if parts := _EQUATION.fullmatch(text[begin : mark.start()]):
            left, right, written = (int(parts[n]) for n in (1, 3, 4))
            holds = {
                "+": left + right == written,
                "-": left - right == written,
                "*": left * right == written,
                "/": right != 0 and left == right * written,
            }
            result = written if holds[parts[2]] else None
        yield mark.end(), result
        begin = mark.end()
