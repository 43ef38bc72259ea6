"""Parts that a method can be given in place of its own, by name."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax

from ogrpo.core import advantages, aggregate, divergences, objectives, returns, traces, weights
from ogrpo.core.algorithms.base import (
    BEHAVIOR,
    KEY,
    PROXIMAL,
    STEPS,
    VALUES,
    AdvantageFn,
    Algorithm,
    KlTermFn,
    Knob,
    LooksAt,
    LossFn,
    ReductionFn,
    keywords,
)
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
    "running_baseline": advantages.above_baseline,
    "step_returns": returns.step_returns,
    "process_standardized": partial(returns.process_standardized, eps_inside=1e-6),
}
"""Name -> `(rewards, *, knobs) -> advantages`; those of `ADVANTAGE_READS` take more."""

ADVANTAGE_READS: dict[str, str] = {
    "drop_negatives": KEY,
    "step_returns": STEPS,
    "process_standardized": STEPS,
}
"""What an advantage reads besides rewards."""

REDUCTIONS: dict[str, ReductionFn] = aggregate.AGGREGATIONS
"""Name -> `(values, mask, *, counted, knobs) -> Total`."""

CENTERS = {"exact": objectives.exact_center, "unit": objectives.unit_center}
"""Name -> `(batch) -> r'` of the clipping interval: pi_k/mu, or 1."""
CENTER = "center_fn"

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
TRACE_CAP = Knob(1.0, "Retrace (Munos et al. 2016, arXiv:1606.02647), eq. 3")


def _plain_kl(kl_fn: divergences.KlFn) -> KlTermFn:
    return lambda log_probs, batch: kl_fn(log_probs, batch.ref_log_probs)


def _importance_kl(kl_fn: divergences.KlFn, by: Any) -> KlTermFn:
    def term(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        return by(log_probs, batch.ref_log_probs, kl_fn=kl_fn, log_ratio=delta)

    return term


KLS: dict[str, KlTermFn] = {
    **{fn.__name__: _plain_kl(fn) for fn in (divergences.k1, divergences.k2, divergences.k3)},
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
) -> Algorithm:
    """The method with some parts exchanged, which its `title` says.

    Args:
      algorithm: the method.
      advantage: a key of `ADVANTAGES`.
      reduction: a key of `REDUCTIONS`.
      kl: a key of `KLS`.
      center: a key of `CENTERS`, for losses that have one.
      weight: a key of `WEIGHTS`: the loss on ratios pi/pi_k, and pi_k/mu as this weight.

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
    return algorithm


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
    reads = algorithm.reads - {KEY, STEPS} | own
    knobs = _exchanged(algorithm, algorithm.advantage, fn)
    return _changed(algorithm, f"advantage {name}", advantage=fn, reads=reads, knobs=knobs)


def _with_reduction(algorithm: Algorithm, name: str) -> Algorithm:
    fn = _named(REDUCTIONS, name, "reduction")
    if fn is algorithm.reduction:
        return algorithm
    knobs = _exchanged(algorithm, algorithm.reduction, fn)
    return _changed(algorithm, f"reduction {name}", reduction=fn, knobs=knobs)


def _with_center(algorithm: Algorithm, name: str) -> Algorithm:
    center_fn = _named(CENTERS, name, "center")
    if CENTER not in keywords(algorithm.loss):
        raise ValueError(
            f"{algorithm.name} has no centre to choose, {name} was asked for: leave it out, or take"
            " off_policy_grpo"
        )
    if getattr(algorithm.loss, "keywords", {}).get(CENTER) is center_fn:
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
    own = keywords(loss_fn)

    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Any) -> jax.Array:
        """The loss on ratios pi/pi_k, times a weight of pi_k/mu."""
        inner = partial(loss_fn, **{name: knobs[name] for name in own if name in knobs})
        outer = partial(weight_fn, **{names[name]: knobs[name] for name in names})
        return corrected(log_probs, batch, objective_fn=inner, weight_fn=outer)

    kinds = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in (*own, *names)]
    positional = list(inspect.signature(loss).parameters.values())[:2]
    loss.__signature__ = inspect.Signature([*positional, *kinds])  # type: ignore[attr-defined]
    return loss


def _exchanged(algorithm: Algorithm, old: Any, new: Any) -> dict[str, Knob]:
    """The knobs without those of the old part alone, and with those of the new one."""
    parts = (algorithm.loss, algorithm.advantage, algorithm.reduction)
    others = {name for part in parts if part is not old for name in keywords(part)}
    gone = set(keywords(old)) - others
    kept = {name: knob for name, knob in algorithm.knobs.items() if name not in gone}
    return {**knobs_of(new), **kept}


def knobs_of(part: Any) -> dict[str, Knob]:
    """The knobs of a part by itself, with the defaults of its signature."""
    bound = getattr(part, "keywords", {})
    free = [name for name in keywords(part) if name not in bound]
    parameters = inspect.signature(part).parameters
    defaults = {name: parameters[name].default for name in free}
    return {
        name: Knob(None if value is inspect.Parameter.empty else value, "the part's own default")
        for name, value in defaults.items()
    }


def _named(table: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in table:
        raise ValueError(f"there is no {what} {name!r}: choose one of {', '.join(table)}")
    return table[name]


def _changed(algorithm: Algorithm, what: str, **parts: Any) -> Algorithm:
    return replace(algorithm, **parts, changed=(*algorithm.changed, what))
