"""Where in a completion the answer stands. An extractor takes a text and returns it, or None."""

import re
from collections.abc import Callable

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
_BOXED = "\\boxed{"


def marker_answer(text: str) -> str | None:
    """Return the number after the last `####`, if there is exactly one (the format of GSM8K).

    A minus may be written with a dash, and before a dollar sign.

    >>> marker_answer("2 * 9 = 18 #### $18."), marker_answer("9 - 16 = -7 #### -$7")
    ('18', '-7')
    >>> marker_answer("#### 18 or 19"), marker_answer("#### 3 * 6"), marker_answer("18")
    (None, None, None)
    """
    _, marker, tail = text.rpartition("####")
    numbers = _NUMBER.findall(_SIGN_APART.sub("-", ascii_minus(tail)))
    return numbers[0] if marker and len(numbers) == 1 else None


def boxed_answer(text: str) -> str | None:
    r"""Return the last `\boxed{...}`, with its braces, if it is closed.

    >>> boxed_answer(r"so \boxed{1}, no, \boxed{\frac{1}{2}} it is")
    '\\boxed{\\frac{1}{2}}'
    """
    start = text.rfind(_BOXED)
    if start < 0:
        return None
    depth = 0
    for i in range(start + len(_BOXED) - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start : i + 1]
    return None


def free_answer(text: str) -> str | None:
    r"""Return the last `\boxed{...}`, or else the whole text, for math-verify to search."""
    return boxed_answer(text) or text.strip() or None


_CHOICE = re.compile(r"(?i:answer)(?i:\s+is)?\s*:?\s*[*(\s]*(?P<letter>[A-Z])(?![A-Za-z'])")


def choice_answer(text: str) -> str | None:
    r"""Return the last box's content, or else the letter after the last "answer is" or "answer:".

    >>> choice_answer("The answer is (B)."), choice_answer("**Answer:** C")
    ('B', 'C')
    """
    boxed = boxed_answer(text)
    if boxed is not None:
        return boxed
    letters = _CHOICE.findall(text)
    return letters[-1] if letters else None


EXTRACTORS: dict[str, Extractor] = {
    "marker": marker_answer,
    "boxed": boxed_answer,
    "free": free_answer,
    "choice": choice_answer,
}
"""The extractors by name, for a command line."""
