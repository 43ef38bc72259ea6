"""Values of JSON, YAML, TOML and keyword arguments as the kinds that a config's fields are of."""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from ogrpo.system.terminal import without_secrets

Config = TypeVar("Config")

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


def changed(config: Config, values: Mapping[str, Any], where: str, prefix: str = "") -> Config:
    """Returns a config with other values of some of its fields, tables of them by their names.

    Raises:
      ValueError: a name is unknown (with the nearest one, or the table that has it), or a value is
        of the wrong kind; the message begins with `where`.
    """
    hints = typing.get_type_hints(type(config), include_extras=False)
    fields = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            raise ValueError(
                f"{where}there is no option {prefix}{key}.{_hint(config, name, prefix)}"
            )
        option = f"{prefix}{name.replace('_', '-')}"
        fields[name] = _changed(getattr(config, name), hints[name], value, option, where)
    try:
        return cast(Config, dataclasses.replace(cast(Any, config), **fields))
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def _changed(now: Any, hint: Any, value: Any, option: str, where: str) -> Any:
    if dataclasses.is_dataclass(now):
        if isinstance(value, type(now)):
            return value
        if not isinstance(value, Mapping):
            raise ValueError(
                f"{where}{option} is {_said(value)}: give a table of options, or in Python a "
                f"{type(now).__name__}(...)"
            )
        return changed(now, value, where, f"{option}.")
    if (found := as_field(hint, value)) is OTHER:
        raise ValueError(f"{where}{option} is {_said(value)}: give {wanted(hint)}")
    return found


def _hint(config: Any, name: str, prefix: str) -> str:
    """Where an option is that this table lacks: in one of its own tables, or by a name like it."""
    tables = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if dataclasses.is_dataclass(getattr(config, field.name))
    }
    holders = [
        f"{prefix}{table.replace('_', '-')}.{name.replace('_', '-')}, in Python"
        f" {table}={type(value).__name__}({name}=...)"
        for table, value in tables.items()
        if hasattr(value, name)
    ]
    if holders:
        return f" It is {', or '.join(holders)}."
    near = difflib.get_close_matches(
        name, [field.name for field in dataclasses.fields(config)], n=1
    )
    return f" Did you mean {prefix}{near[0].replace('_', '-')}?" if near else ""


def _said(value: Any) -> str:
    return without_secrets(repr(value))[:120]
