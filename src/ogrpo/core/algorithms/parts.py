"""Parts that a method can be given in place of its own, by name."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core import (
    advantages,
    aggregate,
    best_of,
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
    LossFn,
    ReductionFn,
)
from ogrpo.core.checks import needed
from ogrpo.core.corrections import corrected
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.ratios import log_ratio

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
    "mean_normalized": best_of.mean_normalized,
    "pass_at_k": best_of.pass_at_k,
    "max_at_k": best_of.max_at_k,
    "length_weighted": returns.length_weighted,
    "overlong_standardized": partial(returns.overlong_standardized, eps_inside=1e-6),
    "whitened": partial(returns.whitened, advantage_fn=advantages.raw, eps_inside=1e-8),
    "group_whitened": partial(returns.whitened, advantage_fn=advantages.centered, eps_inside=1e-8),
    "step_returns": returns.step_returns,
    "process_standardized": partial(returns.process_standardized, eps_inside=1e-6),
}
"""Name -> `(rewards, *, knobs) -> advantages`; those of `ADVANTAGE_READS` take more."""

ADVANTAGE_READS: dict[str, str] = {
    "drop_negatives": KEY,
    "step_returns": STEPS,
    "process_standardized": STEPS,
    "length_weighted": LENGTHS,
    "overlong_standardized": LENGTHS,
    "whitened": LENGTHS,
    "group_whitened": LENGTHS,
}
"""What an advantage reads besides rewards."""

THE_RUNS = "the run says it"
PAIRS = Knob(2.0, "no value fits every group; the least that looks beyond one", (ADVANTAGE,))
ADVANTAGE_KNOBS: dict[str, dict[str, Knob]] = {
    "lowered_baseline": {"shift": Knob(0.1, "Trinity-RFT 0.6, rec_gsm8k", (ADVANTAGE,))},
    "soft_value": {"tau": Knob(1.0, "Trinity-RFT 0.6, opmd", (ADVANTAGE,))},
    "exponentially_weighted": {"tau": Knob(1.0, "Trinity-RFT 0.6, rec_gsm8k", (ADVANTAGE,))},
    "successes": {"threshold": Knob(0.0, "arXiv:2504.11343: rewards 0 and 1", (ADVANTAGE,))},
    "running_baseline": {"baseline": Knob(None, THE_RUNS, (ADVANTAGE,))},
    "overlong_standardized": {
        "length": Knob(None, "the longest completion that the run allows", (ADVANTAGE,)),
        "overlong": Knob(0.2, "arXiv:2503.14476, section 4.1: 4,096 of 20,480", (ADVANTAGE,)),
    },
    "pass_at_k": {"k": PAIRS},
    "max_at_k": {"k": PAIRS},
    "step_returns": {"step_weight": Knob(1.0, "a step counts as the completion", (ADVANTAGE,))},
}
"""The numbers of an advantage, of those that have any."""

REDUCTIONS: dict[str, ReductionFn] = aggregate.AGGREGATIONS
"""Name -> `(values, mask, *, counted, knobs) -> Total`."""
LONGEST = Knob(None, "the longest completion that the run allows", (REDUCTION,))
REDUCTION_KNOBS: dict[str, dict[str, Knob]] = {"fixed_length": {"length": LONGEST}}

CENTERS = {"exact": objectives.exact_center, "unit": objectives.unit_center}
"""Name -> `(batch) -> r'` of the clipping interval: pi_k/mu, or 1."""
CENTERED_LOSS = objectives.off_policy_grpo
"""The loss that has a centre to choose, `center_fn`."""

WEIGHTS: dict[str, Callable[..., jax.Array]] = {
    "plain": weights.plain_weight,
    "truncated": weights.truncated_weight,
    "masked": weights.masked_weight,
    "sequence_truncated": weights.sequence_truncated_weight,
    "sequence_masked": weights.sequence_masked_weight,
    "geometric": weights.geometric_mask,
    "group_normalized": weights.group_normalized_weight,
    "batch_normalized": weights.batch_normalized_weight,
    "trace": traces.trace_weight,
}
"""Name -> `(log_ratio, mask, *, knobs) -> w`, what pi_k/mu may enter as."""

WEIGHT_LOOKS_AT: dict[str, LooksAt] = {
    "group_normalized": LooksAt.GROUP,
    "batch_normalized": LooksAt.BATCH,
}
"""Of weights that look beyond their completion."""

WEIGHT_KNOBS = {
    "truncated": {"weight_cap": "cap", "weight_floor": "floor"},
    "masked": {"weight_cap": "high", "weight_floor": "low"},
    "sequence_truncated": {"weight_cap": "cap"},
    "sequence_masked": {"weight_cap": "high", "weight_floor": "low"},
    "geometric": {"weight_cap": "high", "weight_floor": "low"},
    "trace": {"weight_cap": "cap", "weight_decay": "decay"},
}
"""Weight -> our knob -> its argument."""

WEIGHT_DEFAULTS = {
    "weight_cap": Knob(2.0, "TIS (Yao et al. 2025)"),
    "weight_floor": Knob(0.0, "TIS (Yao et al. 2025)"),
    "weight_decay": Knob(1.0, "Retrace (Munos et al. 2016, arXiv:1606.02647): lambda"),
}
ICEPOP = "IcePop (Ling team 2025)"
TRL = "TRL 1.16, vllm_importance_sampling_cap"
VERL = "verl 0.9, decoupled_geo_rs"
TRACE_CAP = Knob(1.0, "Retrace (Munos et al. 2016, arXiv:1606.02647), eq. 3")


class Gate(NamedTuple):
    """A mask of log-ratios that stacks with others, and its knobs."""

    mask_fn: Callable[..., jax.Array]
    """`(log_ratio, advantages, mask, *, bounds) -> [..., T]` of 0 and 1."""
    knobs: Mapping[str, Knob]
    names: Mapping[str, str]
    """Our knob -> its argument."""
    of_policy: bool = False
    """Whether it looks at pi/mu where the method reads pi_k, too."""


def _band(name: str, low: Knob, high: Knob) -> Gate:
    names = {f"{name}_low": "low", f"{name}_high": "high"}
    return Gate(gates.MASKS[name], dict(zip(names, (low, high), strict=True)), names)


GATES: dict[str, Gate] = {
    "token": _band("token", Knob(0.5, ICEPOP), Knob(5.0, ICEPOP)),
    "sequence": _band("sequence", Knob(0.0, TRL), Knob(3.0, TRL)),
    "geometric": _band("geometric", Knob(0.999, VERL), Knob(1.001, VERL)),
    "negatives": Gate(
        gates.MASKS["negatives"],
        {"negatives_delta": Knob(0.1, "not in arXiv:2512.02556, eq. 9; Trinity-RFT 0.6 has .1")},
        {"negatives_delta": "delta"},
        of_policy=True,
    ),
}
"""Name -> mask of pi/mu, or of pi_k/mu where the method reads pi_k; they multiply."""


def _plain_kl(kl_fn: divergences.KlFn) -> KlTermFn:
    return lambda log_probs, batch: kl_fn(log_probs, needed(batch.ref_log_probs, "ref_log_probs"))


def _importance_kl(kl_fn: divergences.KlFn, by: Any) -> KlTermFn:
    def term(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        ref = needed(batch.ref_log_probs, "ref_log_probs")
        return by(log_probs, ref, kl_fn=kl_fn, log_ratio=delta)

    return term


KLS: dict[str, KlTermFn] = {
    **{fn.__name__: _plain_kl(fn) for fn in (divergences.k1, divergences.k2, divergences.k3)},
    "straight_through_k3": _plain_kl(divergences.straight_through_k3),
    **{
        f"{label}_{fn.__name__}": _importance_kl(fn, by)
        for label, by in (
            ("importance", divergences.importance_kl),
            ("weighted", divergences.weighted_kl),
        )
        for fn in (divergences.k1, divergences.k2, divergences.k3)
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
    """The method with some parts exchanged or added, which its `title` says.

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
    """
    if advantage is not None:
        algorithm = _with_advantage(algorithm, advantage)
    if reduction is not None:
        algorithm = _with_reduction(algorithm, reduction)
    if kl is not None:
        algorithm = _changed(algorithm, f"KL {kl}", kl=_named(KLS, kl, "KL"))
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
    own = {ADVANTAGE_READS[name]} if name in ADVANTAGE_READS else set()
    reads = algorithm.reads - {KEY, STEPS, LENGTHS} | own
    knobs = _exchanged(algorithm, ADVANTAGE, ADVANTAGE_KNOBS.get(name, {}))
    return _changed(algorithm, f"advantage {name}", advantage=fn, reads=reads, knobs=knobs)


def _with_reduction(algorithm: Algorithm, name: str) -> Algorithm:
    fn = _named(REDUCTIONS, name, "reduction")
    if fn is algorithm.reduction:
        return algorithm
    knobs = _exchanged(algorithm, REDUCTION, REDUCTION_KNOBS.get(name, {}))
    return _changed(algorithm, f"reduction {name}", reduction=fn, knobs=knobs)


def _with_center(algorithm: Algorithm, name: str) -> Algorithm:
    center_fn = _named(CENTERS, name, "center")
    if getattr(algorithm.loss, "func", algorithm.loss) is not CENTERED_LOSS:
        raise ValueError(
            f"{algorithm.name} has no centre to choose, {name} was asked for: leave it out, or take"
            " off_policy_grpo"
        )
    if getattr(algorithm.loss, "keywords", {}).get("center_fn") is center_fn:
        return algorithm
    loss = partial(algorithm.loss, center_fn=center_fn)
    own = {PROXIMAL} if center_fn is objectives.exact_center else set()
    reads = algorithm.reads - {PROXIMAL} | own
    return _changed(algorithm, f"centre {name}", loss=loss, reads=reads)


def _with_weight(algorithm: Algorithm, name: str) -> Algorithm:
    weight_fn = _named(WEIGHTS, name, "weight")
    if PROXIMAL in algorithm.reads:
        raise ValueError(
            f"{algorithm.name} already reads pi_k/mu: weight {name} would correct it twice; leave"
            " it out, or choose the centre unit where there is a choice"
        )
    names, seen = WEIGHT_KNOBS.get(name, {}), WEIGHT_LOOKS_AT.get(name, LooksAt.COMPLETION)
    defaults = WEIGHT_DEFAULTS | (
        {"weight_cap": TRACE_CAP} if weight_fn is traces.trace_weight else {}
    )
    return _changed(
        algorithm,
        f"weight {name}",
        loss=_weighted(algorithm.loss, weight_fn, names),
        reads=algorithm.reads | {BEHAVIOR, PROXIMAL},
        knobs={**algorithm.knobs, **{knob: defaults[knob] for knob in names}},
        looks_at=max(algorithm.looks_at, seen),
    )


def _weighted(
    loss_fn: LossFn, weight_fn: Callable[..., jax.Array], names: Mapping[str, str]
) -> LossFn:
    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Any) -> jax.Array:
        """The loss on ratios pi/pi_k, times a weight of pi_k/mu."""
        outer = {argument: knobs.pop(knob) for knob, argument in names.items() if knob in knobs}
        inner, by = partial(loss_fn, **knobs), partial(weight_fn, **outer)
        return corrected(log_probs, batch, objective_fn=inner, weight_fn=by)

    return loss


def _with_gates(algorithm: Algorithm, names: Sequence[str]) -> Algorithm:
    if len({*names}) < len(names):
        raise ValueError(f"gates {', '.join(names)}: name each once, a gate twice is that gate")
    stack = [_named(GATES, name, "gate") for name in names]
    return _changed(
        algorithm,
        ", ".join(f"gate {name}" for name in names),
        loss=_gated(algorithm.loss, stack, PROXIMAL in algorithm.reads),
        reads=algorithm.reads | {BEHAVIOR},
        knobs={**algorithm.knobs, **{n: knob for g in stack for n, knob in g.knobs.items()}},
    )


def _gated(loss_fn: LossFn, stack: Sequence[Gate], from_proximal: bool) -> LossFn:
    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Any) -> jax.Array:
        """The loss where every gate is open, held constant, and 0 elsewhere."""
        bounds = [{to: knobs.pop(name) for name, to in gate.names.items()} for gate in stack]
        losses = loss_fn(log_probs, batch, **knobs)
        held, batch = objectives.masked_batch(jax.lax.stop_gradient(log_probs), batch)
        moved = log_ratio(held, batch.behavior_log_probs, batch.mask)
        before = objectives.drift(batch) if from_proximal else moved
        for gate, bound in zip(stack, bounds, strict=True):
            delta = moved if gate.of_policy else before
            kept = gate.mask_fn(delta, batch.advantages, batch.mask, **bound)
            losses = jnp.where(kept == 0, 0, kept * losses)
        return losses

    return loss


def _exchanged(algorithm: Algorithm, part: str, new: Mapping[str, Knob]) -> dict[str, Knob]:
    """The knobs without those that only the old part took, and with those of the new one."""
    others = {
        name: knob._replace(parts=tuple(p for p in knob.parts if p != part))
        for name, knob in algorithm.knobs.items()
        if knob.parts != (part,)
    }
    shared = {n: knob._replace(parts=(*knob.parts, part)) for n, knob in others.items() if n in new}
    return {**new, **others, **shared}


def _named(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}: choose one of {', '.join(table)}")
    return table[name]


def _changed(algorithm: Algorithm, what: str, **parts: Any) -> Algorithm:
    return replace(algorithm, **parts, changed=(*algorithm.changed, what))
