"""The objective that a config names: its function, its knobs, and what its clip means."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from experiments.config import Objective, require
from ogrpo.core.objectives import OBJECTIVES, exact_center, unit_center
from ogrpo.training.metrics import MetricsFn, summarize

CENTERS = {"exact": exact_center, "unit": unit_center}
TRACED = ("eps_low", "eps_high", "beta")
CLIPPED_BY_TOKEN = ("grpo", "off_policy_grpo", "dapo", "dr_grpo")


def check_objective(wanted: Objective) -> None:
    """Refuses a name that is unknown and an option that the objective does not have."""
    if wanted.name not in OBJECTIVES:
        near = difflib.get_close_matches(wanted.name, OBJECTIVES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no objective {wanted.name!r}.{hint} Objectives: {', '.join(OBJECTIVES)}"
        )
    parameters = _parameters(wanted)
    needed = [n for n, p in parameters.items() if p.default is p.empty and n not in TRACED]
    require(
        not needed,
        f"objective.name {wanted.name} needs {', '.join(needed)} at every update, which this "
        "command does not give: use it from Python",
    )
    for name in TRACED:
        given = getattr(wanted, name)
        require(
            name in parameters or not given,
            f"objective.name {wanted.name} has no {name.replace('_', '-')}, which is {given}: "
            "leave it out or choose another objective",
        )


def objective_fn(wanted: Objective) -> Callable[..., Any]:
    """`(log_probs, batch, **knobs) -> loss per token`."""
    bound = {"center_fn": CENTERS[wanted.center]} if wanted.name == "off_policy_grpo" else {}
    return partial(OBJECTIVES[wanted.name], **bound)


def knobs(wanted: Objective) -> dict[str, float]:
    """The traced knobs: those given, and the objective's own defaults for the rest."""
    own = {name: p.default for name, p in _parameters(wanted).items() if name in TRACED}
    given = {name: getattr(wanted, name) for name in own}
    return {name: float(own[name] if value is None else value) for name, value in given.items()}


def metrics_fn(wanted: Objective) -> MetricsFn:
    """Diagnostics; where the clip binds is said only of objectives that clip token ratios."""
    center_fn = CENTERS[wanted.center] if wanted.name == "off_policy_grpo" else unit_center
    clips = wanted.name in CLIPPED_BY_TOKEN
    return partial(summarize, center_fn=center_fn if clips else None)


def _parameters(wanted: Objective) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(OBJECTIVES[wanted.name]).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
