r"""The last `\boxed{...}` of a text, or the last few of them where they are one answer."""

import re

BOXED = "\\boxed{"
_FARTHEST = 70
"""Characters between two boxes of one answer."""

_DELIMITER = re.compile(r"\\[()\[\]]|\\q?quad\b|\\[ ,;!\\]|\\\Z|[$~&]|\\text\s*\{([^{}]*)\}")
_LABEL = r"(?:[A-Za-z](?:_\{?\w+\}?|\(\w+\))?\s*=\s*)?"
_SEPARATOR = re.compile(rf"[\s,;]*(?:[^.,;:!?=]*\b(?:and|or)\b)?[\s,;]*{_LABEL}\Z")


def last_boxes(text: str) -> str | None:
    r"""Return the last `\boxed{...}` or `\fbox{...}`, as a box with its braces, if it is closed.

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
    text = text.replace("\\fbox{", BOXED)
    start = text.rfind(BOXED)
    end = _end(text, start, len(text)) if start >= 0 else -1
    if end < 0:
        return None
    contents = [_content(text, start, end)]
    first = start
    while contents[0] and (previous := text.rfind(BOXED, 0, first)) >= 0:
        end_of_it = _end(text, previous, first)
        content = _content(text, previous, end_of_it)
        if end_of_it < 0 or not content or not _joined(text[end_of_it:first]):
            break
        contents.insert(0, content)
        first = previous
    different = list(dict.fromkeys(contents))
    return text[start:end] if len(different) == 1 else f"{BOXED}{', '.join(different)}}}"


def _end(text: str, start: int, limit: int) -> int:
    """Where the box ends that begins at `start`, before `limit`; -1 if it does not."""
    depth = 0
    for i in range(start + len(BOXED) - 1, limit):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return i + 1
    return -1


def _content(text: str, start: int, end: int) -> str:
    return text[start + len(BOXED) : end - 1].strip().removesuffix(".").strip()


def _joined(between: str) -> bool:
    if len(between) > _FARTHEST:
        return False
    return _SEPARATOR.match(_DELIMITER.sub(r" \1 ", between).strip()) is not None
