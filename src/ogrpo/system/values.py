"""Values of options: what they take, under which conditions they act, and their plain form.

A field's annotation says what it takes: `Count` is a whole number of at least 1. A whole config is
held to its annotations (`check`) and to tables of conditions (`check_conditions`) where it is made.
The bounds are those of `annotated-types`, which Hypothesis and pydantic read too.
"""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro
from annotated_types import Ge, GroupedMetadata, Gt, Interval

from ogrpo.system.terminal import nearest, without_secrets

Config = TypeVar("Config")


def require(condition: bool, message: str) -> None:
    """Raises ValueError with a message, which names a value and the remedy, where it is false."""
    if not condition:
        raise ValueError(message)


def metavar(text: str) -> Any:
    """Returns an annotation: how `--help` shows what an option takes."""
    return tyro.conf.arg(metavar=text)


Count = Annotated[int, Ge(1), metavar("INT>=1")]
OptionalCount = Annotated[Count | None, metavar("{None}|INT>=1")]
Index = Annotated[int, Ge(0), metavar("INT>=0")]
OptionalIndex = Annotated[Index | None, metavar("{None}|INT>=0")]
Seed = Annotated[int, Interval(ge=0, lt=1 << 32), metavar("INT in [0, 2^32)")]
OptionalSeed = Annotated[Seed | None, metavar("{None}|INT in [0, 2^32)")]
Temperature = Annotated[float, Ge(0.01), metavar("FLOAT>=0.01")]
Positive = Annotated[float, Gt(0), metavar("FLOAT>0")]
OptionalPositive = Annotated[Positive | None, metavar("{None}|FLOAT>0")]
NonNegative = Annotated[float, Ge(0), metavar("FLOAT>=0")]
Share = Annotated[float, Interval(ge=0, le=1), metavar("FLOAT in [0, 1]")]
PositiveShare = Annotated[float, Interval(gt=0, le=1), metavar("FLOAT in (0, 1]")]
Decay = Annotated[float, Interval(ge=0, lt=1), metavar("FLOAT in [0, 1)")]
OptionalChance = Annotated[
    Annotated[float, Interval(gt=0, lt=1)] | None, metavar("{None}|FLOAT in (0, 1)")
]

Conditions = tuple[tuple[str, Callable[[Any], object], str], ...]
"""Rows of options, separated by blanks, a condition, and what to say where it does not hold."""
INERT = "which changes nothing here: "


def check(config: Any, prefix: str = "") -> None:
    """Holds a config, and tables within it, to the annotations of their fields.

    Raises:
      ValueError: a number is not finite or out of its bounds, or a word is none of those that an
        option has; names the option, its value and what to give.
    """
    for name, (hint, bounds, words, optional) in _limits(type(config)).items():
        value, option = getattr(config, name), prefix + dashed(name)
        if dataclasses.is_dataclass(hint) and isinstance(value, typing.cast(type, hint)):
            check(value, f"{option}.")
            continue
        for each in value if isinstance(value, tuple) else (value,):
            if each is None and optional:
                continue
            if isinstance(each, float) and not math.isfinite(each):
                raise ValueError(f"{option} is {each}: give a finite number")
            held = bounds if isinstance(each, float | int) else ()
            if not all(getattr(operator, sign)(each, bound) for sign, bound in held):
                limits = " and ".join(f"{_SIGNS[sign]} {bound}" for sign, bound in bounds)
                none = ", or None" if optional else ""
                raise ValueError(f"{option} is {each}: give {limits}{none}")
            if words and each not in words:
                raise ValueError(f"{option} is {each!r}: choose one of {words}")
        if (kind := as_field(hint, value)) is OTHER or kind != value:  # such as a list
            raise ValueError(_wrong_kind(option, value, hint))


def check_conditions(
    config: Any, table: Conditions, *, clause: str = "", prefix: str = "", **words: object
) -> None:
    """Walks a table of conditions: options may differ from their defaults where one holds.

    Args:
      config: has the options.
      table: its rows; a message may name the config as {c}, and `words`.
      clause: what an error says between "OPTION is VALUE, " and the message.
      prefix: the config's place in the whole one, with a dot.
      words: of conditions and messages that need more than the config; `subject` is what conditions
        take in its place.

    Raises:
      ValueError: an option differs from its default although its condition does not hold.
    """
    for options, holds, otherwise in table:
        for option in options.split():
            *path, name = option.replace("-", "_").split(".")
            part = reduce(getattr, path, config)
            value, default = getattr(part, name), getattr(type(part), name)
            if value != default and not holds(words.get("subject", config)):  # which may take long
                why = otherwise.format(c=config, prefix=prefix, **words)
                raise ValueError(without_secrets(f"{prefix}{option} is {value}, {clause}{why}"))


def dashed(name: str) -> str:
    """Returns an option as it is typed."""
    return name.replace("_", "-")


_SIGNS = {"ge": "at least", "gt": "a number above", "le": "at most", "lt": "below"}
FieldLimits = tuple[Any, list[tuple[str, float]], list[object], bool]


@cache
def _limits(kind: type[Any]) -> dict[str, FieldLimits]:
    """Returns what each field takes: its kind, signs and bounds, words, and whether None."""
    plain = typing.get_type_hints(kind)
    hints, limits = typing.get_type_hints(kind, include_extras=True), {}
    for field in dataclasses.fields(kind):
        parts = [*_parts(hints[field.name])]
        bounds = [(s, getattr(x, s)) for s in _SIGNS for x in parts if hasattr(x, s)]
        words = [w for x in parts if typing.get_origin(x) is Literal for w in typing.get_args(x)]
        limits[field.name] = plain[field.name], bounds, words, types.NoneType in parts
    return limits


def _parts(hint: Any) -> Iterator[Any]:
    """Yields the types and the metadata that an annotation is made of."""
    if typing.get_origin(hint) is Annotated:
        for part in hint.__metadata__:
            yield from part if isinstance(part, GroupedMetadata) else (part,)
        yield from _parts(hint.__origin__)
    elif typing.get_origin(hint) in (typing.Union, types.UnionType, tuple):
        for part in typing.get_args(hint):
            yield from _parts(part)
    else:
        yield hint


LARGEST = 1 << 63
OTHER = object()
"""Stands for a value that is of no kind that a field takes."""


def as_field(hint: Any, value: Any) -> Any:
    """Returns the value as the first kind of the annotation that it is of, or `OTHER`."""
    values = (_as(kind, value) for kind in _kinds(hint))
    return next((each for each in values if each is not OTHER), OTHER)


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _as(kind: Any, value: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            return OTHER
        kinds = typing.get_args(kind)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            kinds = (kinds[0],) * len(value)
        if len(kinds) != len(value):
            return OTHER
        values = tuple(as_field(each, inner) for each, inner in zip(kinds, value, strict=True))
        return OTHER if OTHER in values else values
    if typing.get_origin(kind) is Literal:
        return value if value in typing.get_args(kind) else OTHER
    if kind in (None, types.NoneType):
        return None if value is None else OTHER
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else OTHER
    if getattr(kind, "_is_runtime_protocol", False):
        return value if isinstance(value, kind) else OTHER
    whole = type(value) is int  # and no bool
    if (whole and abs(value) >= LARGEST) or (isinstance(value, float) and math.isnan(value)):
        return OTHER
    if kind is float and (whole or isinstance(value, float)):  # numpy's, too
        return float(value)
    return value if type(value) is kind else OTHER


def changed(config: Config, values: Mapping[str, Any], where: str, prefix: str = "") -> Config:
    """Returns a config with other values of some of its fields, tables of them by their names.

    Args:
      config: the values that stay.
      values: plain values of JSON, YAML or keyword arguments.
      where: the beginning of an error, such as the file.
      prefix: the table's place in the whole config.

    Raises:
      ValueError: a name is unknown (with the nearest one, or the table that has it), or a value is
        of the wrong kind or out of its bounds.
    """
    hints = typing.get_type_hints(type(config))
    fields = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in hints:
            unknown = f"{where}there is no option {prefix}{key}."
            raise ValueError(f"{unknown} {_hint(config, name, prefix)}")
        option, now = f"{prefix}{dashed(name)}", getattr(config, name)
        if not dataclasses.is_dataclass(hints[name]):
            fields[name] = as_field(hints[name], value)
            if fields[name] is OTHER:
                raise ValueError(where + _wrong_kind(option, value, hints[name]))
        elif isinstance(value, Mapping):
            fields[name] = changed(now, value, where, f"{option}.")
        elif isinstance(value, type(now)):
            fields[name] = value
        else:
            raise ValueError(
                f"{where}{option} is {_short(value)}: give a table of options, or in Python a "
                f"{type(now).__name__}(...)"
            )
    try:
        return typing.cast(Config, dataclasses.replace(typing.cast(Any, config), **fields))
    except ValueError as error:
        raise ValueError(f"{where}{error}") from error


def _wrong_kind(option: str, value: Any, hint: Any) -> str:
    takes: dict[str, None] = {}
    for kind in _kinds(hint):
        words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        takes |= dict.fromkeys(words or [getattr(kind, "__name__", str(kind))])
    choices = " or ".join(takes).replace("NoneType", "null (in Python None)")
    size = " below 2^63" if type(value) is int and abs(value) >= LARGEST else ""
    return f"{option} is {_short(value)}: give {choices}{size}"


def _hint(config: Any, name: str, prefix: str) -> str:
    """Returns where an option is that a table lacks: in one of its tables, or by a name like it."""
    names = [field.name for field in dataclasses.fields(config)]
    tables = {table: getattr(config, table) for table in names}
    holders = [
        f"{prefix}{dashed(table)}.{dashed(name)}, in Python"
        f" {table}={type(value).__name__}({name}=...)"
        for table, value in tables.items()
        if dataclasses.is_dataclass(value) and hasattr(value, name)
    ]
    if holders:
        return f"It is {', or '.join(holders)}."
    near = nearest(dashed(name), map(dashed, names), f"Did you mean {prefix}{{}}?")
    return near or "Another version of ogrpo may have it."


def _short(value: Any) -> str:
    return without_secrets(repr(value))[:120]


def to_json(config: Any) -> Any:
    """Returns a config as plain JSON values; an algorithm of one's own is its name."""
    if dataclasses.is_dataclass(config):
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        if not isinstance(values.get("algorithm", ""), str):
            values["algorithm"] = values["algorithm"].name
        return {name: to_json(value) for name, value in values.items()}
    if isinstance(config, tuple | list):
        return [to_json(value) for value in config]
    return str(config) if isinstance(config, Path) else config


def from_json(kind: type[Config], values: Mapping[str, Any], where: str = "the config") -> Config:
    """Returns the config that `to_json` wrote; what it lacks is as in a new one.

    Raises:
      ValueError: as `changed`; begins with `where`, the file.
    """
    return changed(kind(), values, f"{where}: ")
