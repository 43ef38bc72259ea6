"""What `operating-points` compares: one dial moved at a time, from a point in the middle."""

from collections.abc import Mapping
from typing import Any

from experiments.grid.tuned import joined
from experiments.grid.verdicts import claim

Change = Mapping[str, Any]


def replay(groups: int, ratio: int, sampler: str = "uniform", **more: Any) -> Change:
    """Batches drawn from a buffer for each one collected."""
    return {
        "schedule": {"replay": ratio},
        "replay": {"groups": groups, "sampler": sampler, **more},
    }


MIDDLE = replay(64, 4)
"""Four draws for each batch collected, from the groups of the last four steps."""
ADAPTIVE: Change = {"reuse": {"adaptive": True}}


def moved(*changes: Change) -> Change:
    """The middle with these changes."""
    return joined(MIDDLE, *changes)


def groups_of(size: int) -> Change:
    """As many completions a step, in groups of this size."""
    return {"rollout": {"group_size": size}, "schedule": {"prompts": 128 // size}}


def buffer(batches: int, size: int) -> Change:
    """The middle's buffer of so many batches, in groups of this size."""
    return joined(groups_of(size), {"replay": {"groups": batches * 128 // size}})


POINTS: dict[str, Change] = {
    "each group once": {},
    "replay 2": replay(64, 2),
    "replay 4": MIDDLE,
    "replay 8": replay(64, 8),
    "buffer of 16": replay(16, 4),
    "buffer of 256": replay(256, 4),
    "fresh first": replay(64, 4, "fresh"),
    "unused first": replay(64, 4, "unused"),
    "large advantages first": replay(64, 4, "advantage"),
    "rare successes first": replay(64, 4, "positives"),
    "evenly over problems": replay(64, 4, "stratified"),
    "without equal rewards": replay(64, 4, refuse_zero_variance=True),
    "at most 4 uses": replay(64, 4, max_uses=4),
    "controller, at most 4": moved(ADAPTIVE),
    "controller, at most 8": joined(replay(64, 8), ADAPTIVE),
    "eps .1": moved({"knobs": {"eps_low": 0.1, "eps_high": 0.1}}),
    "eps .4": moved({"knobs": {"eps_low": 0.4, "eps_high": 0.4}}),
    "beta .01": moved({"knobs": {"beta": 0.01}}),
    "beta .1": moved({"knobs": {"beta": 0.1}}),
    "G 4": moved(buffer(4, 4)),
    "G 16": moved(buffer(4, 16)),
    "temperature .7": moved({"rollout": {"temperature": 0.7}}),
    "temperature 1.3": moved({"rollout": {"temperature": 1.3}}),
}

REUSE = (
    *("each group once", "replay 2", "replay 4", "replay 8"),
    *("controller, at most 4", "controller, at most 8"),
)
BUFFERS = ("buffer of 16", "replay 4", "buffer of 256", "at most 4 uses", "without equal rewards")
SAMPLERS = (
    *("replay 4", "fresh first", "unused first", "large advantages first"),
    *("rare successes first", "evenly over problems"),
)
KNOBS = (
    *("replay 4", "eps .1", "eps .4", "beta .01", "beta .1"),
    *("G 4", "G 16", "temperature .7", "temperature 1.3"),
)

CONTROLLED = ("controller, at most 8", "not below", "replay 8")
MIDDLE_POINT, ONCE = "replay 4", "each group once"
CLAIMS = (
    *(claim(f"{name} gains on {ONCE}", name, "above", ONCE) for name in ("replay 4", "replay 8")),
    claim("replay 2 gains on each group once", "replay 2", "above", ONCE),
    claim("eight draws gain on four", "replay 8", "above", MIDDLE_POINT),
    claim("the controller does as well as eight draws", *CONTROLLED),
    *(
        claim(f"{name}: as the middle", name, "level", MIDDLE_POINT)
        for name in (*BUFFERS, *SAMPLERS, *KNOBS)
        if name != MIDDLE_POINT
    ),
)
"""Replay against none, then each dial against the middle."""
