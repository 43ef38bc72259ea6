"""A study's whole grid with rows that are made up: every cell is built, none is measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.grid.cell import SIGNALS, Cell, changes, check_honest
from experiments.grid.page import write_page
from experiments.grid.rows import Row, told_of
from experiments.grid.study import Study

AXES = ("step", "updates", "completions", "tokens", "flops/rollout", "flops/update", "seconds")
SCORES = ("pass@1/sampled", "pass@1/greedy")
Found = Callable[[Cell], Row]


def trained(cell: Cell) -> Row:
    """What a training cell leaves: a score that rises with the rate and a little with the seed."""
    steps = cell.config.schedule.steps
    places = [0, steps // 2, steps]
    rate = cell.config.optimizer.learning_rate
    end = 0.4 + 100 * rate + 0.001 * (cell.seed % 5)
    scores = [0.3, (0.3 + end) / 2, end]
    evaluations = {axis: [10 * n * place for place in places] for n, axis in enumerate(AXES, 1)}
    evaluations["step"] = places
    found = {**evaluations, **dict.fromkeys(SCORES, scores), "pass@8/sampled": scores}
    names = (*SIGNALS, *cell.watch.signals)
    signals = {**{axis: values[1:] for axis, values in evaluations.items()}}
    signals |= {name: [0.5, 0.25] for name in names}
    return {
        "ended": "whole",
        "evaluations": found,
        "steps": signals,
        "final": {name: values[-1] for name, values in found.items()},
        "seconds": 1.0,
    }


def walk(study: Study, found: Found = trained) -> tuple[list[Cell], list[Row]]:
    """All cells of all stages, and a row for each; refuses a grid that is not honest."""
    cells: list[Cell] = []
    rows: list[Row] = []
    for stage in study.stages():
        new = [*stage(rows)]
        cells += new
        check_honest(cells, quick=study.quick)
        rows += [row_of(cell, study, found) for cell in new]
    return cells, rows


def row_of(cell: Cell, study: Study, found: Found) -> dict[str, Any]:
    """A cell's row."""
    return {**told_of(cell), "changes": changes(cell.config, study.base), **found(cell)}


def page(study: Study, rows: list[Row], folder: Path) -> str:
    """The study's page, all figures drawn."""
    return write_page(study, rows, [], folder, command="made up").read_text()
