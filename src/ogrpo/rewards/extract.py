"""Extractors of the answer from a completion: they take its text and return the answer, or None."""

import re
from collections.abc import Callable

from ogrpo.rewards.text import ascii_minus

Extractor = Callable[[str], str | None]

LONGEST_ANSWER = 4096
"""Characters of an answer that is compared; a longer one is unparsable."""
BOXED = "\\boxed{"
_FARTHEST = 70
"""Characters between two boxes of one answer."""

_NUMBER = re.compile(
    r"(?:(?<![0-9])-)?(?:[0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?|\.[0-9]+)"  # 3-5 is a range
)
_NUMBER_OR_MORE = re.compile(
    _NUMBER.pattern + r"|[√π½⅓⅔¼¾]|(?<=[0-9])[²³⁰¹⁴-⁹]|\^(?!\{?(?:\\circ|st|nd|rd|th))|\\pi"
    r"|\\?sqrt|\\d?frac"
)
_BOX = re.compile(r"\\(?:fbox|boxed)\s*\{")
# A minus that stands apart from its number: before a currency, behind an equals sign, or before all
# else. After a word, a dash with spaces around is no sign.
_MONEY = r"\\?[$€£¥]\s*"
_SIGN_APART = re.compile(
    rf"(?<![0-9])-{_MONEY}(?=[0-9.])|(?:\A[\s:=(*]*|=\s*+)(?:{_MONEY})?-\s*(?:{_MONEY})?(?=[0-9.])"
)

_DELIMITER = re.compile(r"\\[()\[\]]|\\q?quad\b|\\[ ,;!\\]|\\\Z|[$~&]|\\text\s*\{([^{}]*)\}")
_LABEL = r"(?:[A-Za-z](?:_\{?\w+\}?|\(\w+\))?\s*=\s*)?"
_SEPARATOR = re.compile(rf"[\s,;]*(?:[^.,;:!?=]*\b(?:and|or)\b)?[\s,;]*{_LABEL}\Z")
# Possessive, so that a long run of spaces is read once.
_OPEN = r"(?:\\(?:text(?:bf)?|math(?:bf|rm))\{|\\\(|(?i:(?:option|choice)\b)|[*(\s$`\"“])*+"
_CHOICE = re.compile(
    rf"(?i:answer|(?:correct|right|best) (?:option|choice))(?i:\s+is)?+\s*+:?+{_OPEN}"
    r"(?!I\s+[a-z])([A-Z])(?![A-Za-z'(+^_]|\s*=)"
    rf"((?:\\\)|[)*}}$`\"”])*(?:\s*(?:,|/|or\b|and\b))+{_OPEN}(?!I\b)[A-Z](?![\w'’]|\s+[a-z]))?"
)


def spoken(text: str) -> str:
    """Returns what stands behind a thought, in which no answer is given.

    A thought ends with `</think>`, whether or not its beginning was part of the prompt. One that
    begins and does not end leaves nothing.

    >>> spoken("<think>18?</think> 19"), spoken("18? </think>19"), spoken("<think>18"), spoken("18")
    (' 19', '19', '', '18')
    """
    return text.rpartition("</think>")[2].partition("<think>")[0]


def marker_answer(text: str) -> str | None:
    """Returns the number after the last `####`, if there is exactly one (the format of GSM8K).

    A minus may be written with a dash, and before a dollar sign.

    >>> marker_answer("2 * 9 = 18 #### $18."), marker_answer("9 - 16 = -7 #### -$7")
    ('18', '-7')
    >>> marker_answer("#### 18 or 19"), marker_answer("#### 3 * 6"), marker_answer("18")
    (None, None, None)
    >>> marker_answer("#### √2"), marker_answer(r"#### 2\\pi")
    (None, None)
    """
    _, marker, tail = spoken(text).rpartition("####")
    numbers = _NUMBER_OR_MORE.findall(_SIGN_APART.sub(" -", ascii_minus(tail)))
    return numbers[0] if marker and len(numbers) == 1 and numbers[0][-1].isdigit() else None


def boxed_answer(text: str) -> str | None:
    r"""Returns the last `\boxed{...}`, if it is closed; boxes that are one answer, as one box.

    >>> boxed_answer(r"so \boxed{1}, no, \boxed{\frac{1}{2}} it is")
    '\\boxed{\\frac{1}{2}}'
    >>> boxed_answer(r"\boxed{1} or \boxed{2}")  # a list, and not equal to 2
    '\\boxed{1, 2}'
    """
    return last_boxes(spoken(text))


def last_number(text: str) -> str | None:
    """Returns the last number in a text, whatever stands behind it.

    >>> last_number("2 + 5 = 7. She has 7 apples."), last_number("$1,200."), last_number("none")
    ('7', '1,200', None)
    >>> last_number("3 - 8 = - 5."), last_number("$10-$15"), last_number("3,2019")
    ('-5', '15', '2019')
    """
    numbers = _NUMBER.findall(_SIGN_APART.sub(" -", ascii_minus(spoken(text))))
    return numbers[-1] if numbers else None


def free_answer(text: str) -> str | None:
    r"""Returns the last `\boxed{...}`, or else the whole text, for math-verify to search."""
    text = spoken(text)
    return last_boxes(text) or text.strip() or None


def choice_answer(text: str) -> str | None:
    r"""Returns the last box's content, or else the letter after the last "answer is" or "answer:".

    >>> choice_answer("The answer is (B)."), choice_answer("**Answer:** C")
    ('B', 'C')
    """
    text = spoken(text)
    letter, another = (_CHOICE.findall(text) or [("", "")])[-1]
    return last_boxes(text) or (None if another else letter or None)


def last_boxes(text: str) -> str | None:
    r"""Returns the last `\boxed{...}` or `\fbox{...}`, as a box with its braces, if it is closed.

    Boxes with no more between them than a comma or a semicolon, "and" or "or" (with the words
    before it) and the name of an unknown are one answer: their contents in one box, different ones
    once. So two answers are a list, and neither is right where one is asked for. Any other words
    between two boxes make the last one the answer.

    >>> last_boxes(r"so \boxed{1}, no, \boxed{\frac{1}{2}} it is")
    '\\boxed{\\frac{1}{2}}'
    >>> last_boxes(r"$x = \boxed{1}$ or $x = \boxed{-2}$, so \boxed{2"), last_boxes("2")
    (None, None)
    >>> last_boxes(r"$x = \boxed{1}$ or $x = \boxed{-2}$")
    '\\boxed{1, -2}'
    """
    text = _BOX.sub(lambda _: BOXED, text)
    answer, contents, limit = None, list[str](), len(text)
    while (start := text.rfind(BOXED, 0, limit)) >= 0:
        end = _box_end(text, start, limit)
        if end < 0 or (contents and not _joined(text[end:limit])):
            break
        content = text[start + len(BOXED) : end - 1].strip().removesuffix(".").strip()
        if contents and not content:
            break
        answer = answer or text[start:end]
        contents.append(content)
        if not content:
            break
        limit = start
    different = list(dict.fromkeys(reversed(contents)))
    return answer if len(different) <= 1 else f"{BOXED}{', '.join(different)}}}"


def _box_end(text: str, start: int, limit: int) -> int:
    """Returns the index behind the box that begins at `start`; -1 if `limit` comes before."""
    depth = 0
    for i in range(start + len(BOXED) - 1, limit):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return -1


def _joined(between: str) -> bool:
    if len(between) > _FARTHEST:
        return False
    return _SEPARATOR.match(_DELIMITER.sub(r" \1 ", between).strip()) is not None


EXTRACTORS: dict[str, Extractor] = {
    "marker": marker_answer,
    "boxed": boxed_answer,
    "free": free_answer,
    "choice": choice_answer,
    "last": last_number,
}
"""The extractors by name, for a command line."""
