"""What an examined update says to a reader: each stage's numbers, and where they break first."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from ogrpo.core.algorithms import GATES
from ogrpo.core.survival import SURVIVALS, spread_of
from ogrpo.learner.examine import Findings

Bools = np.ndarray


class Stage(NamedTuple):
    """A stage of an update."""

    name: str
    bad: int
    """Numbers that are NaN or infinite."""
    of: int
    first: str
    """Where the first of them stands, or a number itself; empty where all are finite."""
    low: float | None
    high: float | None
    """Extremes of the others."""

    def line(self) -> str:
        """The stage as a reader sees it."""
        extremes = "" if self.low is None else f", from {self.low:.6g} to {self.high:.6g}"
        if not self.bad:
            return f"{self.name}: finite{extremes}"
        if self.of == 1:
            return f"{self.name}: {self.first}"
        return f"{self.name}: {self.bad:,} of {self.of:,} NaN or infinite, {self.first}{extremes}"


def stages(found: Findings, leaves: Sequence[str]) -> list[Stage]:
    """The stages of an update in the order in which they are computed.

    Args:
      found: on the host.
      leaves: the names of the trained parameters.
    """
    batch, mask = found.batch, np.asarray(found.mask)
    drawn = np.asarray(batch.completion_mask)
    given = [
        ("the sampler's log-probs", batch.behavior_log_probs),
        ("log-probs at the start of the update", batch.proximal_log_probs),
        ("the reference's log-probs", batch.ref_log_probs),
    ]
    tokens = [
        *((name, values, drawn) for name, values in given if values is not None),
        ("log-probs of the policy", found.log_probs, drawn),
        ("losses of tokens", found.losses, mask),
        ("KL terms of tokens", found.kl_losses, mask),
        ("gradient by log-prob", found.by_log_prob, drawn),
    ]
    ids = np.asarray(batch.completion_ids)
    by_token = {
        name: _of_array(name, values, where, ids)
        for name, values, where in tokens
        if values is not None
    }
    credit = [
        _of_array(name, values, np.ones(np.shape(values), bool), None)
        for name, values in (("rewards", batch.rewards), ("advantages", found.advantages))
    ]
    last = [by_token.pop(name) for name in [*by_token] if name in AFTER_CREDIT]
    return [
        _of_leaves("weights before the update", found.weights, leaves),
        *by_token.values(),
        *credit,
        *last,
        _of_number("loss", found.loss),
        _of_leaves("gradient", found.gradient, leaves),
        _of_number("gradient's norm", found.grad_norm),
        _of_leaves("weights after the update", found.new_weights, leaves),
    ]


AXES = ("prompt", "completion", "token")
AFTER_CREDIT = ("losses of tokens", "KL terms of tokens", "gradient by log-prob")


def first_broken(found: Sequence[Stage]) -> Stage | None:
    """The first stage that is not finite; None where all are."""
    return next((stage for stage in found if stage.bad), None)


def verdict(found: Sequence[Stage]) -> str:
    """In a line, where an update ceases to be finite."""
    stage = first_broken(found)
    if stage is None:
        return "everything is finite here: this update would be taken"
    return f"first not finite: {stage.name}, {stage.first}"


def _of_array(name: str, values: Any, where: Bools, ids: np.ndarray | None) -> Stage:
    values = np.asarray(values)
    finite = np.isfinite(values)
    bad, kept = where & ~finite, values[where & finite]
    places = np.argwhere(bad)
    first = _place(places[0], ids) if len(places) else ""
    low, high = (float(kept.min()), float(kept.max())) if kept.size else (None, None)
    return Stage(name, int(bad.sum()), int(where.sum()), first, low, high)


def _place(index: np.ndarray, ids: np.ndarray | None) -> str:
    words = ", ".join(f"{axis} {at}" for axis, at in zip(AXES, index, strict=False))
    return f"the first at {words}" + ("" if ids is None else f" (id {ids[tuple(index)]})")


def _of_leaves(name: str, finite: Sequence[Any], leaves: Sequence[str]) -> Stage:
    bad = [leaf for leaf, is_finite in zip(leaves, finite, strict=True) if not is_finite]
    return Stage(f"{name}, by array", len(bad), len(leaves), ", ".join(bad), None, None)


def _of_number(name: str, value: Any) -> Stage:
    number = float(value)
    finite = bool(np.isfinite(number))
    extreme = number if finite else None
    return Stage(name, int(not finite), 1, "" if finite else f"{number}", extreme, extreme)


def lines(found: Sequence[Stage]) -> Iterator[str]:
    """A line for each stage, and the verdict."""
    yield from (stage.line() for stage in found)
    yield verdict(found)


def survivors(found: Findings, knobs: Mapping[str, Any]) -> Iterator[str]:
    """Yields what each gate of ratios would leave, from the spread of log-ratios and the lengths.

    Nothing where a log-ratio is not finite, or no token carries loss.
    """
    mask = np.asarray(found.mask)
    there, behavior = np.asarray(found.log_probs), np.asarray(found.batch.behavior_log_probs)
    delta = np.where(mask, there, 0) - np.where(mask, behavior, 0)
    lengths = mask.sum(-1)[mask.any(-1)]
    if not lengths.size or not np.isfinite(delta).all():
        return
    spread = spread_of(jnp.asarray(delta, float), jnp.asarray(mask))
    yield f"log-ratios of tokens: mean {spread.mean:.4g}, standard deviation {spread.std:.4g}"
    for name, gate in GATES.items():
        bounds = {n: float(knobs.get(n, knob.default)) for n, knob in gate.knobs.items()}
        arguments = {gate.names[n]: value for n, value in bounds.items()}
        share = SURVIVALS[name](jnp.asarray(lengths, float), spread, **arguments).mean()
        knobs_shown = ", ".join(f"{n} {value:g}" for n, value in bounds.items())
        yield f"gate {name} ({knobs_shown}) would leave {share:.1%}"
