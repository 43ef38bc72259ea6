"""Rows as a grid leaves them, without training: curves that depend on the cell alone."""

import math
import random

from experiments.grid.cell import changes
from experiments.grid.rows import place_in_study, rounded
from experiments.grid.train import AXES

EVALUATIONS = 5
WHOLE = {name: 1e6 * n for n, name in enumerate(AXES[2:], 1)}
"""Where a run ends on every axis but those of its schedule, step and updates."""


def row(cell, score=None, base=None, **signals):
    """The row of a cell whose Pass@1 goes from .35 to `score`, or to where its key has it go."""
    draw = random.Random(cell.key)
    end = draw.uniform(0.0, 0.8) if score is None else score
    schedule = cell.config.schedule
    parts = [n / (EVALUATIONS - 1) for n in range(EVALUATIONS)]
    scores = [0.35 + (end - 0.35) * part for part in parts]
    points = [(n + 1) / 40 for n in range(40)]
    names = [name for name in cell.watch.signals if name != "grad_variance"]
    lines = [[draw.uniform(0.9, 1.1) * (1 + x * (0.5 - end)) for x in points] for _ in names]
    steps = dict(zip(names, lines, strict=True))
    evaluations = {
        **places(schedule, parts),
        "pass@1/sampled": scores,
        "pass@1/greedy": [math.sqrt(value) for value in scores],
        "grad_variance": [None, *(draw.uniform(1, 2) for _ in parts[1:])],
    }
    last = {name: values[-1] for name, values in evaluations.items()}
    made = {
        "ended": "whole",
        "evaluations": evaluations,
        "steps": {**places(schedule, points), **steps, **signals},
        "final": last,
        "seconds": 1.0,
        "date": "2026-01-01",
    }
    changed = changes(cell.config, base or cell.config)
    return {**place_in_study(cell), "changes": changed, **rounded(made)}


def places(schedule, parts):
    """Returns the place of a share of a run on every axis."""
    whole = {**WHOLE, "step": schedule.steps, "updates": schedule.updates, "seconds": 9.0}
    return {name: [float(total * part) for part in parts] for name, total in whole.items()}


def grid(study, score=None, without=()):
    """All cells of a study's stages, and the rows of those that have none of these seeds."""
    cells, rows = [], []
    for stage in study.stages():
        new = [*stage(rows)]
        cells += new
        measured = [cell for cell in new if cell.seed not in without]
        rows += [row(cell, score and score(cell), study.base) for cell in measured]
    return cells, rows
