"""Values of a request's body, each checked: a wrong one is refused by its name."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ogrpo.protocol import IntArray
from ogrpo.rollout.http_server import BadRequest

MOST_PROMPTS = 4096
MOST_CHOICES = 4096
MOST_IDS = 1 << 22
"""Token ids of a prompt; a model takes fewer, and says how many."""


def token_ids(value: Any, name: str) -> IntArray:
    """Token ids as an array."""
    whole = isinstance(value, list) and len(value) <= MOST_IDS
    if not whole or not all(type(x) is int and 0 <= x < 1 << 31 for x in value):
        raise BadRequest(f"{name} is {value!r:.60}: give a list of token ids")
    return np.array(value, np.int32)


def prompts(value: Any) -> list[IntArray]:
    """One prompt or several, as token ids."""
    if not isinstance(value, list) or not 1 <= len(value) <= MOST_PROMPTS:
        raise BadRequest(f"prompt is {value!r:.60}: give token ids, or a list of lists of them")
    several = value if isinstance(value[0], list) else [value]
    return [token_ids(each, "prompt") for each in several]


def whole(options: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    """A whole number of an option; null is the default."""
    value = options.get(name)
    value = default if value is None else value
    if type(value) is not int or not least <= value <= most:
        raise BadRequest(f"{name} is {value!r:.60}: give a whole number from {least} to {most}")
    return value


def number(options: Mapping[str, Any], name: str, default: float, most: float) -> float:
    """A number of at least 0 of an option; null is the default."""
    value = options.get(name)
    value = default if value is None else value
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise BadRequest(f"{name} is {value!r:.60}: give a number from 0 to {most:g}")
    return float(value)


def section(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    """An object of the body; empty where it is not there."""
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise BadRequest(f"{name} is {value!r:.60}: give an object")
    return value
