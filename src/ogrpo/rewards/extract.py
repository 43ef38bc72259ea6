"""Where in a completion the answer stands. An extractor takes a text and returns it, or None."""

import re
from collections.abc import Callable

from ogrpo.rewards.boxes import last_boxes
from ogrpo.rewards.text import ascii_minus

Extractor = Callable[[str], str | None]

LONGEST_ANSWER = 4096
"""Characters of an answer that is compared; a longer one is unparsable."""

_NUMBER = re.compile(r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|-?\.[0-9]+")
# A minus that stands apart from its number: before a currency, or before all else. After a word, a
# dash with spaces around is no sign.
_MONEY = r"\\?[$€£¥]\s*"
_SIGN_APART = re.compile(
    rf"-{_MONEY}(?=[0-9.])|\A[\s:=(*]*(?:{_MONEY})?-\s*(?:{_MONEY})?(?=[0-9.])"
)


def spoken(text: str) -> str:
    """Return what stands behind a thought, in which no answer is given.

    A thought ends with `</think>`, whether or not its beginning was part of the prompt. One that
    begins and does not end leaves nothing.

    >>> spoken("<think>18?</think> 19"), spoken("18? </think>19"), spoken("<think>18"), spoken("18")
    (' 19', '19', '', '18')
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def marker_answer(text: str) -> str | None:
    """Return the number after the last `####`, if there is exactly one (the format of GSM8K).

    A minus may be written with a dash, and before a dollar sign.

    >>> marker_answer("2 * 9 = 18 #### $18."), marker_answer("9 - 16 = -7 #### -$7")
    ('18', '-7')
    >>> marker_answer("#### 18 or 19"), marker_answer("#### 3 * 6"), marker_answer("18")
    (None, None, None)
    """
    _, marker, tail = spoken(text).rpartition("####")
    numbers = _NUMBER.findall(_SIGN_APART.sub("-", ascii_minus(tail)))
    return numbers[0] if marker and len(numbers) == 1 else None


def boxed_answer(text: str) -> str | None:
    r"""Return the last `\boxed{...}`, if it is closed; boxes that are one answer, as one box.

    >>> boxed_answer(r"so \boxed{1}, no, \boxed{\frac{1}{2}} it is")
    '\\boxed{\\frac{1}{2}}'
    >>> boxed_answer(r"\boxed{1} or \boxed{2}")  # a list, and not equal to 2
    '\\boxed{1, 2}'
    """
    return last_boxes(spoken(text))


def last_number(text: str) -> str | None:
    """Return the last number in a text, whatever stands behind it.

    >>> last_number("2 + 5 = 7. She has 7 apples."), last_number("$1,200."), last_number("none")
    ('7', '1,200', None)
    """
    numbers = _NUMBER.findall(_SIGN_APART.sub("-", ascii_minus(spoken(text))))
    return numbers[-1] if numbers else None


def free_answer(text: str) -> str | None:
    r"""Return the last `\boxed{...}`, or else the whole text, for math-verify to search."""
    text = spoken(text)
    return last_boxes(text) or text.strip() or None


_CHOICE = re.compile(r"(?i:answer)(?i:\s+is)?\s*:?\s*[*(\s]*(?P<letter>[A-Z])(?![A-Za-z'])")


def choice_answer(text: str) -> str | None:
    r"""Return the last box's content, or else the letter after the last "answer is" or "answer:".

    >>> choice_answer("The answer is (B)."), choice_answer("**Answer:** C")
    ('B', 'C')
    """
    text = spoken(text)
    boxed = last_boxes(text)
    if boxed is not None:
        return boxed
    letters = _CHOICE.findall(text)
    return letters[-1] if letters else None


EXTRACTORS: dict[str, Extractor] = {
    "marker": marker_answer,
    "boxed": boxed_answer,
    "free": free_answer,
    "choice": choice_answer,
    "last": last_number,
}
"""The extractors by name, for a command line."""
