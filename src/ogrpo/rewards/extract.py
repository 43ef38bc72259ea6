"""Where in a completion the answer stands. An extractor takes a text and returns it, or None."""

import re
from collections.abc import Callable

Extractor = Callable[[str], str | None]

_NUMBER = re.compile(r"-?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?|-?\.[0-9]+")
_BOXED = "\\boxed{"


def marker_answer(text: str) -> str | None:
    """Return the number after the last `####`, if there is exactly one (the format of GSM8K).

    >>> marker_answer("2 * 9 = 18 #### $18.")
    '18'
    >>> marker_answer("#### 18 or 19"), marker_answer("#### 3 * 6"), marker_answer("18")
    (None, None, None)
    """
    _, marker, tail = text.replace("\N{MINUS SIGN}", "-").rpartition("####")
    numbers = _NUMBER.findall(tail)
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


EXTRACTORS: dict[str, Extractor] = {
    "marker": marker_answer,
    "boxed": boxed_answer,
    "free": free_answer,
}
"""The extractors by name, for a command line."""
