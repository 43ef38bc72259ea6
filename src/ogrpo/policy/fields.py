"""The fields of a model's `config.json`, each read as what it has to be."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST = 2**31 - 1
"""The largest size: token ids and positions are int32."""


class Fields(NamedTuple):
    """Values by name, and the file that they are from, which every error names."""

    values: Mapping[str, Any]
    where: str

    def refuse(self, name: str, wanted: str) -> ValueError:
        """The error about a value: what it is, and what is wanted."""
        return ValueError(f"{self.where}: {name!r} is {self.values[name]!r:.60}: give {wanted}")

    def has(self, name: str) -> bool:
        """Whether there is a value that is not null."""
        return self.values.get(name) is not None

    def whole(self, name: str) -> int:
        """A size or a count, at least 1."""
        value = self._given(name)
        if type(value) is not int or not 1 <= value <= MOST:
            raise self.refuse(name, f"a whole number from 1 to {MOST}")
        return value

    def positive(self, name: str) -> float:
        """A finite number above 0."""
        value = self._given(name)
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise self.refuse(name, "a finite number above 0")
        return float(value)

    def truth(self, name: str) -> bool:
        """True or false; false where it is not there."""
        value = self.values.get(name)
        if not isinstance(value, bool | None):
            raise self.refuse(name, "true or false, without quotation marks")
        return bool(value)

    def inner(self, name: str) -> Mapping[str, Any]:
        """An object; empty where it is not there."""
        value = self.values.get(name)
        if not isinstance(value, Mapping | None):
            raise self.refuse(name, "an object")
        return value or {}

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty where it is not there."""
        value = self.values.get(name)
        value = [] if value is None else value
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise self.refuse(name, "a list of texts")
        return value

    def _given(self, name: str) -> Any:
        if not self.has(name):
            raise ValueError(f"{self.where} has no {name!r}, which the model's shape needs")
        return self.values[name]
