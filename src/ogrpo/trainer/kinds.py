"""Values of JSON, YAML and TOML as the kinds that a config's fields are annotated with."""

import math
import types
import typing
from pathlib import Path
from typing import Any

LARGEST = 1 << 63
OTHER = object()
"""Stands for a value that is of no kind that a field takes."""


def as_field(hint: Any, value: Any) -> Any:
    """The value as the first kind of the annotation that it is of; `OTHER` where it is of none."""
    return next((found for kind in _kinds(hint) if (found := _as(kind, value)) is not OTHER), OTHER)


def wanted(hint: Any) -> str:
    """What an annotation takes, for an error."""
    return " or ".join(str(getattr(kind, "__name__", kind)) for kind in _kinds(hint))


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _as(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        found = _as_tuple(typing.get_args(kind), value)
        return OTHER if OTHER in found else found
    if typing.get_origin(kind) is typing.Literal:
        return value if value in typing.get_args(kind) else OTHER
    if kind in (None, types.NoneType):
        return None if value is None else OTHER
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else OTHER
    whole = type(value) is int  # and no bool
    if (whole and abs(value) >= LARGEST) or (isinstance(value, float) and math.isnan(value)):
        return OTHER
    if kind is float and whole:
        return float(value)
    return value if type(value) is kind else OTHER


def _as_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        return (OTHER,)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return (OTHER,)
    return tuple(as_field(kind, inner) for kind, inner in zip(kinds, value, strict=True))
