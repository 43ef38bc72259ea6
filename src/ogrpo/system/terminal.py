"""Text for a terminal: text of somebody else's, text with a secret in it, notes of errors."""

import re
import unicodedata

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
