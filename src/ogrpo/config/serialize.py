"""A config as JSON and back, each value of the kind that its field wants."""

import dataclasses
import difflib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ogrpo.config.kinds import OTHER, as_field, wanted
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
    if (found := as_field(hint, value)) is OTHER:
        raise ValueError(f"{name} is {value!r}: give {wanted(hint)}")
    return found
