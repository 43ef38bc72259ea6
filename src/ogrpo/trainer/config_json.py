"""A config as JSON and back, each value of the kind that its field wants."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ogrpo.core.algorithms import Algorithm


def to_json(config: Any) -> dict[str, Any]:
    """A config as plain JSON values."""
    algorithm = getattr(config, "algorithm", None)
    if isinstance(algorithm, Algorithm):
        config = dataclasses.replace(config, algorithm=algorithm.name)
    return dataclasses.asdict(
        config,
        dict_factory=lambda items: {k: str(v) if isinstance(v, Path) else v for k, v in items},
    )


def from_json(kind: type[Any], values: Mapping[str, Any], where: str = "the config") -> Any:
    """The config that `to_json` wrote; what it lacks is as in a new one.

    Args:
      kind: the config's class.
      values: what JSON gave.
      where: the file, for errors.

    Raises:
      ValueError: a field is unknown, or its value is not of the field's kind; names file and field.
    """
    try:
        return _read(kind, values, "")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _read(kind: type[Any], values: Any, prefix: str) -> Any:
    if not isinstance(values, Mapping):
        raise ValueError(f"{prefix.rstrip('.')} is {values!r}: give an object of options")
    hints = typing.get_type_hints(kind)
    given = {}
    for name, value in values.items():
        if name not in hints:
            near = difflib.get_close_matches(name, hints, n=1)
            hint = f"did you mean {prefix}{near[0]}?" if near else "a newer ogrpo wrote it, perhaps"
            raise ValueError(f"there is no option {prefix}{name}: {hint}")
        given[name] = _value(hints[name], value, f"{prefix}{name}")
    return kind(**given)


def _value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(typing.cast(type, hint), value, f"{name}.")
    kinds = _kinds(hint)
    for kind in kinds:
        if (found := _as_kind(kind, value)) is not _OTHER:
            return found
    wanted = " or ".join(str(getattr(kind, "__name__", kind)) for kind in kinds)
    raise ValueError(f"{name} is {value!r}: give {wanted}")


_OTHER = object()


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if is_union else (hint,)


def _as_kind(kind: Any, value: Any) -> Any:
    """The value as one of this kind; `_OTHER` where it is none."""
    if typing.get_origin(kind) is tuple:
        found = _as_tuple(typing.get_args(kind), value)
        return _OTHER if _OTHER in found else found
    if typing.get_origin(kind) is typing.Literal:
        return value if value in typing.get_args(kind) else _OTHER
    if kind is types.NoneType:
        return None if value is None else _OTHER
    if kind is Path:
        return Path(value) if isinstance(value, str | Path) else _OTHER
    if isinstance(value, bool):
        return value if kind is bool else _OTHER
    if kind is float and isinstance(value, int):
        return value  # as it was given: 1 and 1.0 are one setting
    return value if isinstance(kind, type) and isinstance(value, kind) else _OTHER


def _as_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        return (_OTHER,)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        return (_OTHER,)
    return tuple(_as_kind(kind, inner) for kind, inner in zip(kinds, value, strict=True))
