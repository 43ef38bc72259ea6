"""What `step-rewards` compares: advantages of the outcome and of the lines of a solution."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.verdicts import Relation, claim

LOSS = {"algorithm": "rec_one_side_is"}
"""Of all: a clipped importance-weighted mean over tokens; on fresh samples REINFORCE's gradient."""


def _of(advantage: str, **knobs: float) -> Mapping[str, Any]:
    override = {"advantage": advantage, "reduction": "token"}
    return {**LOSS, "override": override, "knobs": knobs}


METHODS: dict[str, Mapping[str, Any]] = {
    "outcome, RLOO": _of("leave_one_out"),
    "outcome and 0.3 steps": _of("step_returns", step_weight=0.3),
    "outcome and steps": _of("step_returns", step_weight=1.0),
    "outcome and 3 steps": _of("step_returns", step_weight=3.0),
    "outcome, GRPO": _of("group_standardized"),
    "steps alone, GRPO": _of("process_standardized"),
}
"""Name -> options. Outcome and w steps: the reward to come, w/K for each right line of K, beyond
that of the group's others from the same line on, which is RLOO with w = 0. Steps alone: GRPO with
process supervision (arXiv:2402.03300, 4.1.3), which does not read the outcome."""

REFERENCES = {
    **dict.fromkeys(METHODS, "outcome, RLOO"),
    "outcome, GRPO": "outcome, GRPO",
    "steps alone, GRPO": "outcome, GRPO",
}
"""The method with the outcome alone that each is held against."""

COMPARED: tuple[tuple[str, Relation, str], ...] = (
    ("outcome and steps", "above", "above the outcome alone"),
    ("outcome and 3 steps", "above", "above the outcome alone"),
    ("steps alone, GRPO", "not below", "as well as the outcome alone"),
)
CLAIMS = tuple(
    claim(f"{name}, {when}: {says}", name, relation, REFERENCES[name], {"sync_interval": v})
    for name, relation, says in COMPARED
    for v, when in ((1, "on policy"), (20, "at interval 20"))
)
"""Rewards of steps against that of the outcome."""
