"""Options from a file: `--config FILE` reads TOML or YAML, `--print-config` writes YAML.

The names are those of the command line, in tables: `optimizer.learning-rate` is `learning-rate` or
`learning_rate` of the table `optimizer`. What is typed comes after what the file says.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from ogrpo.config.values import changed, to_json
from ogrpo.system.files import DEEPEST, read_text

Config = TypeVar("Config")
MOST_BYTES = 1 << 20
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
      ValueError: it is not there, is neither TOML nor YAML, or holds no table; it is larger or
        nested deeper than any options are, or says two things of one name.
    """
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file")
    text = read_text(path, MOST_BYTES)
    try:
        values = _read_toml(text) if path.suffix == ".toml" else _read_yaml(text)
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        raise ValueError(f"--config {path} cannot be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"--config {path} is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} holds no options: give names and values")
    return values


_LONG_KEY = re.compile(
    rf"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}"""  # parts with dots between them
)


def _read_toml(text: str) -> dict[str, Any]:
    """Returns the tables of a TOML text; a key of many dots is as many tables within each other."""
    if _LONG_KEY.search(text):
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return tomllib.loads(text)


class _Unique(yaml.SafeLoader):
    """YAML's plain values, each name said once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping, whose later names do not quietly replace earlier ones."""
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        for name in names:
            if not isinstance(name, str | int | float | None):
                raise ValueError(f"a name in it is {name!r:.60}: give a text")
            if names.count(name) > 1:
                raise ValueError(f"it has {name!r:.60} twice in one table: keep one")
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    """The values of a YAML text without references, by which a short one can mean a huge one."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has a reference (*{event.anchor}): write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return yaml.load(text, Loader=_Unique)


def with_values(config: Config, values: Mapping[str, Any], path: Path) -> Config:
    """The config with the values of a file.

    Raises:
      ValueError: a name is unknown (with the nearest one), or a value is of the wrong kind.
    """
    return changed(config, values, f"--config {path}: ")


def as_file(config: Any) -> str:
    """All options as a YAML file."""
    return yaml.safe_dump(_plain(to_json(config)), sort_keys=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value
