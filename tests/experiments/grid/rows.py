"""Rows as training cells leave them, with scores and axes that are known."""

from typing import Any

from experiments.grid.cell import Cell
from experiments.grid.rows import place_in_study

AXES = ("step", "updates", "completions", "tokens", "flops/rollout", "flops/update", "seconds")


def row_of(cell: Cell, score: float, *, ended: str = "whole", **more: Any) -> dict[str, Any]:
    """The row of a cell whose Pass@1 rises linearly from 0 to `score` in three evaluations."""
    evaluations = {axis: [0, 10 * (n + 1), 20 * (n + 1)] for n, axis in enumerate(AXES)}
    scores = [0.0, score / 2, score]
    last = {axis: values[-1] for axis, values in evaluations.items()}
    scores_by_kind = dict.fromkeys(("pass@1/sampled", "pass@1/greedy"), scores)
    return {
        **place_in_study(cell),
        "changes": {},
        "ended": ended,
        "evaluations": {**evaluations, **scores_by_kind},
        "steps": {**{axis: values[1:] for axis, values in evaluations.items()}, "ess": [1.0, 0.5]},
        "final": {**last, "pass@1/sampled": score, "pass@1/greedy": score},
        "seconds": 1.0,
        **more,
    }
