"""Text of somebody else's, as a terminal may print it."""

import unicodedata


def shown(text: object) -> str:
    """The text of a server, a task or a model, with nothing in it that is a command to a terminal.

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
