"""Files of options: YAML, by the names of the command line, in tables.

`optimizer.learning-rate` is `learning-rate` or `learning_rate` of the table `optimizer`.
"""

from pathlib import Path
from typing import Any

import yaml

from ogrpo.system.files import DEEPEST, read_text

MOST_BYTES = 1 << 20


def read_file(path: Path) -> dict[str, Any]:
    """Reads the tables of a file.

    Raises:
      ValueError: it is not there, is no YAML, or holds no table; it is larger or nested deeper than
        any options are, or says two things of one name.
    """
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file")
    text = read_text(path, MOST_BYTES)
    try:
        values = _read_yaml(text)
    except (yaml.YAMLError, ValueError, ArithmeticError) as error:
        raise ValueError(f"--config {path} cannot be read: {error}") from error
    except RecursionError as error:
        raise ValueError(f"--config {path} is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError(f"--config {path} holds no options: give names and values")
    return values


class _Unique(yaml.SafeLoader):
    """YAML's plain values, each name said once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns a mapping, whose later names do not quietly replace earlier ones."""
        names = [self.construct_object(name, deep=True) for name, _ in node.value]
        for name in names:
            if not isinstance(name, str | int | float | None):
                raise ValueError(f"a name in it is {name!r:.60}: give a text")
            if names.count(name) > 1:
                raise ValueError(f"it has {name!r:.60} twice in one table: keep one")
        return super().construct_mapping(node, deep)


def _read_yaml(text: str) -> Any:
    """Reads a YAML text without references, by which a short one can mean a huge one."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"it has a reference (*{event.anchor}): write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return yaml.load(text, Loader=_Unique)
