"""A word problem with the fields of GSM8K, and the number its answer ends in."""

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

MARKER = "####"
# Hyphens, the figure and en dash and the minus sign, each of which models write for a minus.
_MINUS = dict.fromkeys(map(ord, "\u2010\u2011\u2012\u2013\u2212\ufe63\uff0d"), "-")
AnyProblem = TypeVar("AnyProblem", bound="Problem")


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
    """Return what follows the last `####`, without commas, dollar signs and a trailing dot.

    Raises:
        ValueError: there is no `####`, or nothing after it.

    >>> final_answer(Problem("How much ?", "2 * 500 = 1,000 #### $1,000."))
    '1000'
    """
    _, marker, tail = problem.answer.rpartition(MARKER)
    answer = normalize_number(tail)
    if not marker or not answer:
        where = problem.source or f"question {problem.question[:60]!r}"
        raise ValueError(
            f"{where}: field 'answer' must end in '{MARKER} <number>', "
            f"got {problem.answer[-60:]!r}."
        )
    return answer


def normalize_number(text: str) -> str:
    """Write a number plainly: no commas, dollar signs, spaces or trailing dot, ASCII minus.

    A dash is a minus too.

    >>> normalize_number(" \N{MINUS SIGN}$1,234.50. ")
    '-1234.50'
    >>> normalize_number("- $7"), normalize_number("\N{EN DASH}7")
    ('-7', '-7')
    """
    plain = text.translate(_MINUS)
    for character in ",$ \t\n\r\N{NO-BREAK SPACE}":
        plain = plain.replace(character, "")
    return plain.rstrip(".")
