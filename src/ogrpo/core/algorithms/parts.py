"""Parts that a method can be given in place of its own, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from ogrpo.core import (
    advantages,
    aggregate,
    divergences,
    gates,
    objectives,
    returns,
    traces,
    weights,
)
from ogrpo.core.algorithms.base import (
    ADVANTAGE,
    BEHAVIOR,
    KEY,
    LENGTHS,
    PROXIMAL,
    REDUCTION,
    STEPS,
    VALUES,
    AdvantageFn,
    Algorithm,
    KlTermFn,
    Knob,
    LooksAt,
    ReductionFn,
    published,
    reference_kl,
)
from ogrpo.core.checks import Scalar, needed
from ogrpo.core.corrections import corrected
from ogrpo.core.divergences import KlFn
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import log_ratio

Part = TypeVar("Part")
LONGEST = "the longest completion that the run allows"

ADVANTAGES: dict[str, AdvantageFn] = {
    "raw": advantages.raw,
    "centered": advantages.centered,
    "leave_one_out": advantages.leave_one_out,
    "group_standardized": partial(
        advantages.group_standardized, ddof=0, eps_inside=1e-6, eps_outside=0.0
    ),
    "group_standardized_bessel": partial(
        advantages.group_standardized, ddof=1, eps_inside=0.0, eps_outside=1e-4
    ),
    "batch_standardized": partial(advantages.batch_standardized, ddof=1, eps_outside=1e-4),
    "lowered_baseline": advantages.lowered_baseline,
    "soft_value": advantages.soft_value,
    "exponentially_weighted": advantages.exponentially_weighted,
    "drop_negatives": advantages.kept_advantages,
    "positive_part": advantages.positive_part,
    "positives_only": advantages.positives_only,
    "successes": advantages.successes,
    "leave_prompt_out": advantages.leave_prompt_out,
    "batch_centered": advantages.batch_centered,
    "running_baseline": advantages.above_baseline,
    "mean_normalized": advantages.mean_normalized,
    "pass_at_k": advantages.pass_at_k,
    "max_at_k": advantages.max_at_k,
    "length_weighted": returns.length_weighted,
    "overlong_standardized": partial(returns.overlong_standardized, eps_inside=1e-6),
    "whitened": partial(returns.whitened, advantage_fn=advantages.raw, eps_inside=1e-8),
    "group_whitened": partial(returns.whitened, advantage_fn=advantages.centered, eps_inside=1e-8),
    "step_returns": returns.step_returns,
    "process_standardized": partial(returns.process_standardized, eps_inside=1e-6),
}
"""Name -> `(rewards, *, knobs) -> advantages`; those of `ADVANTAGE_READS` take more."""

ADVANTAGE_READS: dict[str, frozenset[str]] = {
    "drop_negatives": frozenset({KEY}),
    **dict.fromkeys(("step_returns", "process_standardized"), frozenset({STEPS})),
    **dict.fromkeys(
        ("length_weighted", "overlong_standardized", "whitened", "group_whitened"),
        frozenset({LENGTHS}),
    ),
}
"""What an advantage reads besides rewards."""

_OVERLONG = "arXiv:2503.14476, section 4.1: 4,096 of 20,480"
_PAIRS = "no value fits every group; the least that looks beyond one"
ADVANTAGE_KNOBS: dict[str, dict[str, Knob]] = {
    "lowered_baseline": published("Trinity-RFT 0.6, rec_gsm8k", ADVANTAGE, shift=0.1),
    "soft_value": published("Trinity-RFT 0.6, opmd", ADVANTAGE, tau=1.0),
    "exponentially_weighted": published("Trinity-RFT 0.6, rec_gsm8k", ADVANTAGE, tau=1.0),
    "successes": published("arXiv:2504.11343: rewards 0 and 1", ADVANTAGE, threshold=0.0),
    "running_baseline": published("the run's mean reward before", ADVANTAGE, baseline=None),
    "overlong_standardized": published(LONGEST, ADVANTAGE, length=None)
    | published(_OVERLONG, ADVANTAGE, overlong=0.2),
    **dict.fromkeys(("pass_at_k", "max_at_k"), published(_PAIRS, ADVANTAGE, k=2.0)),
    "step_returns": published("a step counts as the completion", ADVANTAGE, step_weight=1.0),
}
"""The numbers of an advantage, of those that have any."""

REDUCTIONS: dict[str, ReductionFn] = aggregate.AGGREGATIONS
"""Name -> `(values, mask, *, counted, knobs) -> Total`."""
REDUCTION_KNOBS = {"fixed_length": published(LONGEST, REDUCTION, length=None)}

CENTERS = {"exact": objectives.exact_center, "unit": objectives.unit_center}
"""Name -> `(batch) -> r'` of the clipping interval: pi_k/mu, or 1."""
CENTERED_LOSS = objectives.off_policy_grpo
"""The loss that takes a centre, `center_fn`."""


class Weight(NamedTuple):
    """A weight that pi_k/mu may enter as, and its knobs."""

    weight_fn: Callable[..., jax.Array]
    """`(log_ratio, mask, *, bounds) -> w`, [..., T]."""
    arguments: Mapping[str, str] = MappingProxyType({})
    """Knob -> the argument of `weight_fn` that it is."""
    knobs: Mapping[str, Knob] = MappingProxyType({})
    looks_at: LooksAt = LooksAt.COMPLETION


_TIS = "TIS (Yao et al. 2025)"
_RETRACE = "Retrace (Munos et al. 2016, arXiv:1606.02647)"
_CAP, _BAND = published(_TIS, weight_cap=2.0), published(_TIS, weight_cap=2.0, weight_floor=0.0)
_TRACE = published(f"{_RETRACE}, eq. 3", weight_cap=1.0)
_TRACE |= published(f"{_RETRACE}: lambda", weight_decay=1.0)
_BETWEEN = {"weight_cap": "high", "weight_floor": "low"}

WEIGHTS: dict[str, Weight] = {
    "plain": Weight(weights.plain_weight),
    "truncated": Weight(
        weights.truncated_weight, {"weight_cap": "cap", "weight_floor": "floor"}, _BAND
    ),
    "masked": Weight(weights.masked_weight, _BETWEEN, _BAND),
    "sequence_truncated": Weight(weights.sequence_truncated_weight, {"weight_cap": "cap"}, _CAP),
    "sequence_masked": Weight(weights.sequence_masked_weight, _BETWEEN, _BAND),
    "geometric": Weight(weights.geometric_mask, _BETWEEN, _BAND),
    "group_normalized": Weight(weights.group_normalized_weight, looks_at=LooksAt.GROUP),
    "batch_normalized": Weight(weights.batch_normalized_weight, looks_at=LooksAt.BATCH),
    "trace": Weight(traces.trace_weight, {"weight_cap": "cap", "weight_decay": "decay"}, _TRACE),
}
"""Name -> what pi_k/mu may enter as."""


class Gate(NamedTuple):
    """A mask of log-ratios that stacks with others, and its knobs."""

    mask_fn: Callable[..., jax.Array]
    """`(log_ratio, advantages, mask, *, bounds) -> [..., T]` of 0 and 1."""
    knobs: Mapping[str, Knob]
    names: Mapping[str, str]
    """Knob -> the argument of `mask_fn` that it is."""
    of_policy: bool = False
    """Whether it looks at pi/mu where the method reads pi_k, too."""


def _band(name: str, source: str, low: float, high: float) -> Gate:
    names = {f"{name}_low": "low", f"{name}_high": "high"}
    knobs = published(source, **dict(zip(names, (low, high), strict=True)))
    return Gate(gates.MASKS[name], knobs, names)


GATES: dict[str, Gate] = {
    "token": _band("token", "IcePop (Ling team 2025)", 0.5, 5.0),
    "sequence": _band("sequence", "TRL 1.16, vllm_importance_sampling_cap", 0.0, 3.0),
    "geometric": _band("geometric", "verl 0.9, decoupled_geo_rs", 0.999, 1.001),
    "negatives": Gate(
        gates.MASKS["negatives"],
        published("not in arXiv:2512.02556, eq. 9; Trinity-RFT 0.6 has .1", negatives_delta=0.1),
        {"negatives_delta": "delta"},
        of_policy=True,
    ),
}
"""Name -> mask of pi/mu, or of pi_k/mu where the method reads pi_k; they multiply."""


def _importance_kl(kl_fn: KlFn, weighted_by: Callable[..., jax.Array]) -> KlTermFn:
    def term(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        ref = needed(batch.ref_log_probs, "ref_log_probs")
        return weighted_by(log_probs, ref, kl_fn=kl_fn, log_ratio=delta)

    return term


_ESTIMATORS = {"k1": divergences.k1, "k2": divergences.k2, "k3": divergences.k3}
KLS: dict[str, KlTermFn] = {
    **{name: reference_kl(fn) for name, fn in _ESTIMATORS.items()},
    "straight_through_k3": reference_kl(divergences.straight_through_k3),
    **{
        f"importance_{name}": _importance_kl(fn, divergences.importance_kl)
        for name, fn in _ESTIMATORS.items()
    },
    **{
        f"weighted_{name}": _importance_kl(fn, divergences.weighted_kl)
        for name, fn in _ESTIMATORS.items()
    },
}
"""Name -> `(log_probs, batch) -> [..., T]`: an estimator of KL(pi||ref) as it is, times rho with
the gradient through it (importance), or times a detached rho (weighted)."""


def with_parts(
    algorithm: Algorithm,
    *,
    advantage: str | None = None,
    reduction: str | None = None,
    kl: str | None = None,
    center: str | None = None,
    weight: str | None = None,
    gate: Sequence[str] = (),
) -> Algorithm:
    """Returns the method with some parts exchanged or added, which its `title` names.

    A part that the method has already changes nothing. The knobs of a part go and come with it.

    Args:
      algorithm: the method.
      advantage: a key of `ADVANTAGES`.
      reduction: a key of `REDUCTIONS`.
      kl: a key of `KLS`.
      center: a key of `CENTERS`, for losses that have one.
      weight: a key of `WEIGHTS`: the loss on ratios pi/pi_k, and pi_k/mu as this weight.
      gate: keys of `GATES`, each once: tokens that one of them shuts cost nothing, and count.

    Returns:
      The method.

    Raises:
      ValueError: no such part, or one that the loss has no place for.

    Example:
      >>> from ogrpo.core.algorithms import ALGORITHMS
      >>> own = with_parts(ALGORITHMS["grpo"], advantage="leave_one_out", reduction="token")
      >>> own.title(own.settings({"eps_high": 0.3}))
      'grpo, advantage leave_one_out, reduction token, eps_high 0.3'
    """
    if advantage is not None:
        algorithm = _with_advantage(algorithm, advantage)
    if reduction is not None:
        fn = _named(REDUCTIONS, reduction, "reduction")
        if fn is not algorithm.reduction:
            knobs = _exchanged(algorithm, REDUCTION, REDUCTION_KNOBS.get(reduction, {}))
            label = f"reduction {reduction}"
            algorithm = replace(algorithm.renamed(label), reduction=fn, knobs=knobs)
    if kl is not None:
        algorithm = replace(algorithm.renamed(f"KL {kl}"), kl=_named(KLS, kl, "KL"))
    if center is not None:
        algorithm = _with_center(algorithm, center)
    if weight is not None:
        algorithm = _with_weight(algorithm, weight)
    return _with_gates(algorithm, gate) if gate else algorithm


def _with_advantage(algorithm: Algorithm, name: str) -> Algorithm:
    fn = _named(ADVANTAGES, name, "advantage")
    if fn is algorithm.advantage:
        return algorithm
    if VALUES in algorithm.reads:
        raise ValueError(
            f"{algorithm.name} learns values, which the advantage {name} would not read: leave it"
            " out, or choose another algorithm"
        )
    return replace(
        algorithm.renamed(f"advantage {name}"),
        advantage=fn,
        reads=algorithm.reads - {KEY, STEPS, LENGTHS} | ADVANTAGE_READS.get(name, frozenset()),
        knobs=_exchanged(algorithm, ADVANTAGE, ADVANTAGE_KNOBS.get(name, {})),
    )


def _with_center(algorithm: Algorithm, name: str) -> Algorithm:
    center_fn = _named(CENTERS, name, "center")
    if getattr(algorithm.loss, "func", algorithm.loss) is not CENTERED_LOSS:
        raise ValueError(
            f"{algorithm.name} has no centre to choose, {name} was asked for: leave it out, or take"
            " off_policy_grpo"
        )
    if getattr(algorithm.loss, "keywords", {}).get("center_fn") is center_fn:
        return algorithm
    proximal = {PROXIMAL} if center_fn is objectives.exact_center else set()
    return replace(
        algorithm.renamed(f"centre {name}"),
        loss=partial(algorithm.loss, center_fn=center_fn),
        reads=algorithm.reads - {PROXIMAL} | proximal,
    )


def _with_weight(algorithm: Algorithm, name: str) -> Algorithm:
    weight = _named(WEIGHTS, name, "weight")
    if PROXIMAL in algorithm.reads:
        raise ValueError(
            f"{algorithm.name} already reads pi_k/mu: weight {name} would correct it twice; leave"
            " it out, or choose the centre unit where there is a choice"
        )

    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Scalar) -> jax.Array:
        """The loss on ratios pi/pi_k, times a weight of pi_k/mu."""
        bounds = {to: knobs.pop(knob) for knob, to in weight.arguments.items() if knob in knobs}
        inner, weight_fn = partial(algorithm.loss, **knobs), partial(weight.weight_fn, **bounds)
        return corrected(log_probs, batch, objective_fn=inner, weight_fn=weight_fn)

    return replace(
        algorithm.renamed(f"weight {name}"),
        loss=loss,
        reads=algorithm.reads | {BEHAVIOR, PROXIMAL},
        knobs={**algorithm.knobs, **weight.knobs},
        looks_at=max(algorithm.looks_at, weight.looks_at),
    )


def _with_gates(algorithm: Algorithm, names: Sequence[str]) -> Algorithm:
    if len({*names}) < len(names):
        raise ValueError(f"gates {', '.join(names)}: name each once, a gate twice is that gate")
    stack = [_named(GATES, name, "gate") for name in names]

    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Scalar) -> jax.Array:
        """The loss where every gate is open, held constant, and 0 elsewhere."""
        bounds = [{to: knobs.pop(name) for name, to in gate.names.items()} for gate in stack]
        losses = algorithm.loss(log_probs, batch, **knobs)
        held, batch = objectives.masked_batch(jax.lax.stop_gradient(log_probs), batch)
        moved = log_ratio(held, batch.behavior_log_probs, batch.mask)
        before = objectives.drift(batch) if PROXIMAL in algorithm.reads else moved
        for gate, bound in zip(stack, bounds, strict=True):
            delta = moved if gate.of_policy else before
            kept = gate.mask_fn(delta, batch.advantages, batch.mask, **bound)
            losses = jnp.where(kept == 0, 0, kept * losses)
        return losses

    return replace(
        algorithm.renamed(", ".join(f"gate {name}" for name in names)),
        loss=loss,
        reads=algorithm.reads | {BEHAVIOR},
        knobs={**algorithm.knobs, **{n: knob for g in stack for n, knob in g.knobs.items()}},
    )


def _exchanged(algorithm: Algorithm, part: str, new: Mapping[str, Knob]) -> dict[str, Knob]:
    """Returns the knobs less those that the old part alone took, and with those of the new one."""
    others = {
        name: knob._replace(parts=tuple(p for p in knob.parts if p != part))
        for name, knob in algorithm.knobs.items()
        if knob.parts != (part,)
    }
    shared = {n: knob._replace(parts=(*knob.parts, part)) for n, knob in others.items() if n in new}
    return {**new, **others, **shared}


def _named(table: Mapping[str, Part], name: str, what: str) -> Part:
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}: choose one of {', '.join(table)}")
    return table[name]
