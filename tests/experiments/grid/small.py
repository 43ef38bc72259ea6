"""A study of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from matplotlib.figure import Figure

from experiments.grid.cell import Cell
from experiments.grid.figures import Picture
from experiments.grid.rows import Rows
from experiments.grid.study import Stage, Study
from experiments.grid.tables import Section, Table
from tests.experiments.grid.measures import Number

MEASURE = "tests.experiments.grid.measures:square"


@dataclass(frozen=True)
class SquareStudy(Study):
    """Squares, and then the square of their sum."""

    name: ClassVar[str] = "small"
    question: ClassVar[str] = "What are squares?"

    numbers: tuple[int, ...] = (1, 2, 3)
    folder: Path = field(default_factory=Path)

    def cell(self, value: int) -> Cell:
        """One number's cell."""
        config = Number(value, 0, str(self.folder))
        return Cell("square", "exact", config, {"of": value}, measure=MEASURE)

    def stages(self) -> Sequence[Stage]:
        """The second needs the rows of the first."""
        return (
            lambda _: [self.cell(value) for value in self.numbers],
            lambda rows: [self.cell(100 + sum(row["square"] for row in rows))],
        )

    def report(self, rows: Rows) -> Sequence[Section]:
        """All of them."""
        lines = [[str(row["coordinates"]["of"]), str(row["square"])] for row in rows]
        table = Table("squares", ("number", "square"), lines)
        return [Section("Squares", "They grow.", [table], [Picture("line", Figure)])]
