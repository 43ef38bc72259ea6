"""Named settings on a command line, any of their fields changed: `name:key=value,...`."""

import dataclasses
import difflib
from typing import Any


def parse(spec: str, known: dict[str, Any]) -> tuple[str, Any]:
    """`name:key=value,...` as the name and its entry with those fields replaced."""
    name, _, rest = spec.partition(":")
    if name not in known:
        raise ValueError(f"there is no {name!r}: choose {', '.join(known)}")
    pairs = [part.partition("=")[::2] for part in rest.split(",") if part]
    changes = {key: _read(spec, key, value, known[name]) for key, value in pairs}
    return name, dataclasses.replace(known[name], **changes)


def _read(spec: str, key: str, value: str, default: Any) -> Any:
    fields = vars(default)
    if key not in fields:
        near = difflib.get_close_matches(key, fields, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{spec}: there is no {key!r}; {hint}it has {', '.join(fields)}")
    if isinstance(fields[key], bool):
        if value not in ("true", "false"):
            raise ValueError(f"{spec}: {key} is {value!r}: give true or false")
        return value == "true"
    return type(fields[key])(value)
