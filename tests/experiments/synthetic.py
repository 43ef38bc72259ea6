"""Curves that depend on a cell alone: some rise, some fall (`walked` has the grid around them)."""

import math
import random

from tests.experiments.walked import AXES

from experiments.grid.cell import Cell
from experiments.grid.rows import Row, rounded

EVALUATIONS, STRETCHES = 5, 40


def by_chance(cell: Cell) -> Row:
    """A run that goes where its key has it go."""
    return going_to(random.Random(cell.key).uniform(0.0, 0.8), cell)


def going_to(end: float, cell: Cell, **signals: list[float]) -> Row:
    """What a run leaves whose Pass@1 goes from .35 to `end` in a straight line.

    Args:
      end: the last Pass@1.
      cell: the run's.
      signals: values over its stretches; others are noise that rises where the score falls.
    """
    draw = random.Random(cell.key)
    parts = [n / (EVALUATIONS - 1) for n in range(EVALUATIONS)]
    stretches = [(n + 1) / STRETCHES for n in range(STRETCHES)]
    scores = [0.35 + (end - 0.35) * part for part in parts]
    evaluations = {
        **places(cell, parts),
        "pass@1/sampled": scores,
        "pass@1/greedy": [math.sqrt(value) for value in scores],
        "grad_variance": [None, *(draw.uniform(1, 2) for _ in parts[1:])],
    }
    noise = {
        name: [draw.uniform(0.9, 1.1) * (1 + part * (0.5 - end)) for part in stretches]
        for name in cell.watch.signals
    }
    made = {
        "ended": "whole",
        "evaluations": evaluations,
        "steps": {**places(cell, stretches), **noise, **signals},
        "final": {name: values[-1] for name, values in evaluations.items()},
        "seconds": 1.0,
        "date": "2026-01-01",
    }
    return rounded(made)


def places(cell: Cell, parts: list[float]) -> Row:
    """Where on every axis so much of a run lies."""
    schedule = cell.config.schedule
    whole = dict.fromkeys(AXES, 1e6) | {"step": schedule.steps, "updates": schedule.updates}
    return {name: [float(total * part) for part in parts] for name, total in whole.items()}
