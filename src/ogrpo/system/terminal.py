"""Text for a terminal: text of somebody else's, text with a secret in it, notes, hints."""

import difflib
import re
import unicodedata
from collections.abc import Iterable

_SECRET = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)[^\s'\"\]]*[@?#][^\s'\"\]]*")


class RunNote(str):
    """A note beside the error that ended a run: what was saved, and how to go on.

    It is a type of its own, as libraries put notes beside errors, too.
    """


def shown(text: object) -> str:
    """Returns a foreign text with nothing in it that is a command to a terminal.

    Control characters (colours, titles, a cleared screen) and those that turn the direction of
    writing around are written as in a Python literal; lines and tabs stay.

    >>> print(shown("red \\x1b[31m"))
    red \\x1b[31m
    """
    whole = str(text)
    return whole if whole.isprintable() else "".join(map(_shown, whole))


def _shown(character: str) -> str:
    if character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs":
        return character
    return ascii(character)[1:-1]


def without_secrets(text: str) -> str:
    """Returns a text without what follows the scheme of addresses, which may be a secret.

    >>> without_secrets("at http://me:pass@host:1/ and http://host:2/v1")
    'at http://... and http://host:2/v1'
    """
    return _SECRET.sub(r"\1...", text)


def nearest(name: str, names: Iterable[object], hint: str = " Did you mean {!r}?") -> str:
    """Returns a hint at the most similar of some names, or nothing if none is similar."""
    near = difflib.get_close_matches(name, list(map(str, names)), n=1)
    return hint.format(near[0]) if near else ""
