"""The tables of `docs/names.md`, read: what others call a method, and ours built from its title."""

import ast
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ogrpo.core.algorithms import ALGORITHMS, Algorithm, with_parts

PAGE = Path(__file__).resolve().parents[1] / "docs/names.md"
PARTS = {name: name for name in ("advantage", "reduction", "weight", "bonus", "whiten")}
PARTS |= {"KL": "kl", "centre": "center"}
"""The words of `Algorithm.title` for parts, and the arguments of `with_parts`."""


class Row(NamedTuple):
    project: str
    table: str
    theirs: str
    ours: str
    """A title, or a part and its name, or "" where there is no equal."""
    note: str

    @property
    def options(self):
        """Their cell as keyword arguments, for projects that are told so."""
        call = ast.parse(f"f({self.theirs})", mode="eval").body
        return {x.arg: ast.literal_eval(x.value) for x in call.keywords}


def rows():
    """Every row of a table whose first cell is code."""
    made, project, table = [], "", ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            project = line.removeprefix("## ")
        elif line.startswith("### "):
            table = line.removeprefix("### ")
        elif line.startswith("| `"):
            theirs, ours, note = (cell.strip() for cell in line.strip("|").split(" | "))
            title = "" if ours == "none" else ours.strip("`")
            made.append(Row(project, table, theirs.strip("`"), title, note))
    return made


def build(title) -> tuple[Algorithm, dict[str, float]]:
    """The method that a title names, and those of its knobs that the title gives."""
    name, *items = title.split(", ")
    pairs = [item.split(" ") for item in items]
    parts = {PARTS[word]: value for word, value in pairs if word in PARTS}
    gates = [value for word, value in pairs if word == "gate"]
    knobs = {word: float(value) for word, value in pairs if word not in {*PARTS, "gate"}}
    return with_parts(ALGORITHMS[name], **parts, gate=gates), knobs


def settings(algorithm, overrides=MappingProxyType({}), length=8):
    """The knobs, `length` supplied where the run would say it."""
    open_ones = [name for name, knob in algorithm.knobs.items() if knob.default is None]
    return algorithm.settings({**dict.fromkeys(open_ones, float(length)), **overrides})
