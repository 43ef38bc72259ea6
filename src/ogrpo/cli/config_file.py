"""Options from a file: `--config FILE` reads TOML or YAML, `--print-config` writes YAML.

The names are those of the command line, in tables: `optimizer.learning-rate` is `learning-rate` or
`learning_rate` of the table `optimizer`. What is typed comes after what the file says.
"""

import argparse
import dataclasses
import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import tyro
import yaml

from ogrpo.trainer.config import to_json

Config = TypeVar("Config")
HELP = """\
--config FILE takes options from a TOML or YAML file, by the same names; what is typed beside it
comes after. --print-config prints all options as such a file, and does nothing else."""


class Typed(NamedTuple):
    """What was typed, apart from the options of every command."""

    file: Path | None
    prints: bool
    options: list[str]


def split(options: Sequence[str]) -> Typed:
    """Takes `--config` and `--print-config` out of the options."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--config", type=Path)
    own.add_argument("--print-config", "--print_config", action="store_true")
    known, rest = own.parse_known_args([*options])
    return Typed(known.config, known.print_config, rest)


def read_file(path: Path) -> dict[str, Any]:
    """The tables of a file.

    Raises:
      ValueError: it is not there, is neither TOML nor YAML, or holds no table.
    """
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file")
    text = path.read_text(encoding="utf-8")
    try:
        values = tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} holds no options: give names and values")
    return values


def with_values(
    config: Config, values: Mapping[str, Any], path: Path, command: Sequence[str] = ()
) -> Config:
    """The config with the values of a file.

    Raises:
      ValueError: a name is unknown (with the nearest one), or a value is of the wrong kind.
    """
    arguments = [word for name, value in _flat(config, values, "", path) for word in (name, *value)]
    try:
        return tyro.cli(
            type(config),
            args=arguments,
            default=config,
            config=(tyro.conf.FlagCreatePairsOff,),
            console_outputs=False,
        )
    except SystemExit as error:
        raise ValueError(
            f"--config {path}: a value is of the wrong kind; what it says is"
            f" {' '.join([*command, *arguments])}"
        ) from error


def _flat(
    config: Any, values: Mapping[str, Any], prefix: str, path: Path
) -> Iterator[tuple[str, list[str]]]:
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1)
            hint = f" Did you mean {prefix}{near[0].replace('_', '-')}?" if near else ""
            raise ValueError(f"--config {path}: there is no option {prefix}{key}.{hint}")
        option = f"{prefix}{name.replace('_', '-')}"
        if dataclasses.is_dataclass(fields[name]):
            if not isinstance(value, Mapping):
                raise ValueError(f"--config {path}: {option} is {value!r}: give a table of options")
            yield from _flat(fields[name], value, f"{option}.", path)
        elif isinstance(value, bool):
            yield f"--{option}" if value else f"--{_negated(option)}", []
        else:
            yield f"--{option}", [str(x) for x in (value if isinstance(value, list) else [value])]


def _negated(option: str) -> str:
    outer, _, name = option.rpartition(".")
    return f"{outer}.no-{name}" if outer else f"no-{name}"


def as_file(config: Any) -> str:
    """All options as a YAML file."""
    return yaml.safe_dump(_plain(to_json(config)), sort_keys=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value
