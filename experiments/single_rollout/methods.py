"""What `single-rollout` compares: advantages, each with its completions a prompt."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from experiments.grid.verdicts import claim


class Method(NamedTuple):
    """An advantage and the number of a prompt's completions."""

    group_size: int
    advantage: str


METHODS = {
    "running baseline": Method(1, "running_baseline"),
    "other prompts": Method(1, "leave_prompt_out"),
    "no baseline": Method(1, "raw"),
    "RLOO, groups of 4": Method(4, "leave_one_out"),
    "RLOO, groups of 8": Method(8, "leave_one_out"),
    "GRPO, groups of 4": Method(4, "group_standardized"),
    "GRPO, groups of 8": Method(8, "group_standardized"),
}
"""Above the mean reward of the steps before, of the other prompts, or of nothing; above that of a
prompt's other completions; or above its group's and divided by the group's standard deviation."""

REFERENCE = "GRPO, groups of 8"


def options(name: str, loss: str, completions: int) -> Mapping[str, Any]:
    """The options of a method with so many completions a step; nothing else differs."""
    size, advantage = METHODS[name]
    return {
        "algorithm": loss,
        "override": {"advantage": advantage, "reduction": "token"},
        "rollout": {"group_size": size},
        "schedule": {"prompts": completions // size},
    }


CLAIMS = tuple(
    claim(f"{name}: above {REFERENCE} {when}", name, "above", REFERENCE, {"sync_interval": v})
    for name in ("running baseline", "other prompts", "no baseline", "GRPO, groups of 4")
    for v, when in ((1, "on policy"), (20, "at interval 20"))
)
"""One completion a prompt, and smaller groups, against groups of eight."""
