"""The objective that a config names: its function, its knobs, and what its clip means."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from experiments.config_update import Objective, TrustRegion, require
from ogrpo.core.corrections import corrected
from ogrpo.core.objectives import OBJECTIVES, TokenBatch, WeightFn, exact_center, unit_center
from ogrpo.core.trust_region import adaptive_clip, dual_penalty, sequence_mask
from ogrpo.core.weights import (
    group_normalized_weight,
    masked_weight,
    plain_weight,
    sequence_masked_weight,
    sequence_truncated_weight,
    truncated_weight,
)
from ogrpo.training.metrics import Knobs, Metrics, MetricsFn, PolicyOutput, summarize
from ogrpo.training.update import RegionFn

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
    own = partial(OBJECTIVES[wanted.name], **bound)
    return own if wanted.weight == "none" else _weighted(own, weights(wanted)[wanted.weight])


def weights(wanted: Objective) -> dict[str, WeightFn]:
    """What pi_k/alpha may enter as, by name."""
    cap = wanted.weight_cap
    return {
        "plain": plain_weight,
        "truncated": partial(truncated_weight, cap=cap),
        "masked": partial(masked_weight, low=1 / cap, high=cap),
        "sequence_truncated": partial(sequence_truncated_weight, cap=cap),
        "sequence_masked": partial(sequence_masked_weight, low=1 / cap, high=cap),
        "group_normalized": group_normalized_weight,
    }


def _weighted(own: Callable[..., Any], weight_fn: WeightFn) -> Callable[..., Any]:
    def loss(log_probs: Any, batch: TokenBatch, *, beta: Any = 0.0, **knobs: Any) -> Any:
        inner = partial(own, **knobs)
        return corrected(log_probs, batch, objective_fn=inner, weight_fn=weight_fn, beta=beta)

    return loss


def region_fn(wanted: TrustRegion, objective: Objective) -> RegionFn | None:
    """The trust region around an objective; None where there is none."""
    if wanted.kind == "none":
        return None
    own = knobs(objective)
    if wanted.kind == "clip":
        require(
            "eps_low" in own,
            f"trust-region.kind clip adapts eps, which objective.name {objective.name} does not "
            "have: choose penalty or mask, or another objective",
        )
        require(
            own["eps_low"] == own["eps_high"],
            f"trust-region.kind clip has one width for both sides, but eps-low is {own['eps_low']} "
            f"and eps-high {own['eps_high']}: give both the same, or choose penalty or mask",
        )
        width = {"initial": own["eps_low"], "smallest": CLIP_RANGE[0], "largest": CLIP_RANGE[1]}
        return partial(adaptive_clip, target=wanted.delta, rate=wanted.rate, **width)
    if wanted.kind == "penalty":
        return partial(dual_penalty, delta=wanted.delta, rate=wanted.rate, initial=0.0)
    return partial(sequence_mask, delta=wanted.delta)


CLIP_RANGE = (0.01, 1.0)


def knobs(wanted: Objective) -> dict[str, float]:
    """The traced knobs: those given, and the objective's own defaults for the rest."""
    own = {name: p.default for name, p in _parameters(wanted).items() if name in TRACED}
    given = {name: getattr(wanted, name) for name in own}
    return {name: float(own[name] if value is None else value) for name, value in given.items()}


def metrics_fn(wanted: Objective, region: TrustRegion) -> MetricsFn:
    """Diagnostics; where the clip binds is said only of objectives that clip pi/alpha by token."""
    center_fn = CENTERS[wanted.center] if wanted.name == "off_policy_grpo" else unit_center
    clips = wanted.name in CLIPPED_BY_TOKEN and wanted.weight == "none"
    return partial(_summarize, center_fn=center_fn if clips else None, kind=region.kind)


def _summarize(
    output: PolicyOutput, tokens: TokenBatch, drawn: Any, knobs: Knobs, *, center_fn: Any, kind: str
) -> Metrics:
    state = knobs["region"]
    shown = {"trust_region": state} if kind in ("penalty", "clip") else {}
    width = {"eps_low": state, "eps_high": state} if kind == "clip" else {}
    return {
        **summarize(output, tokens, drawn, {**knobs, **width}, center_fn=center_fn),
        **shown,
    }


def _parameters(wanted: Objective) -> Mapping[str, inspect.Parameter]:
    parameters = inspect.signature(OBJECTIVES[wanted.name]).parameters
    return {n: p for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
