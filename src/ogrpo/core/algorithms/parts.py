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
    ENTROPY,
    K3_TO_REFERENCE,
    KEY,
    LENGTHS,
    PROXIMAL,
    REDUCTION,
    REFERENCE,
    STEPS,
    VALUES,
    Advantage,
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
_TRINITY_REC = "Trinity-RFT 0.6, rec_gsm8k"
_OVERLONG = published(LONGEST, ADVANTAGE, length=None)
_OVERLONG |= published("arXiv:2503.14476, section 4.1: 4,096 of 20,480", ADVANTAGE, overlong=0.2)
_PAIRS = published("no value fits every group; the least that looks beyond one", ADVANTAGE, k=2.0)
_STEP_WEIGHT = published("a step counts as the completion", ADVANTAGE, step_weight=1.0)

_LENGTHS, _STEPS = frozenset({LENGTHS}), frozenset({STEPS})
_zero_when_equal = partial(Advantage, zero_when_equal=True)
ADVANTAGES: dict[str, Advantage] = {
    "raw": Advantage(advantages.raw),
    "centered": _zero_when_equal(advantages.centered),
    "leave_one_out": _zero_when_equal(advantages.leave_one_out),
    "group_standardized": _zero_when_equal(
        partial(advantages.group_standardized, ddof=0, eps_inside=1e-6, eps_outside=0.0)
    ),
    "group_standardized_bessel": _zero_when_equal(
        partial(advantages.group_standardized, ddof=1, eps_inside=0.0, eps_outside=1e-4)
    ),
    "batch_standardized": _zero_when_equal(
        partial(advantages.batch_standardized, ddof=1, eps_outside=1e-4)
    ),
    "lowered_baseline": Advantage(
        advantages.lowered_baseline, knobs=published(_TRINITY_REC, ADVANTAGE, shift=0.1)
    ),
    "soft_value": _zero_when_equal(
        advantages.soft_value, knobs=published("Trinity-RFT 0.6, opmd", ADVANTAGE, tau=1.0)
    ),
    "exponentially_weighted": _zero_when_equal(
        advantages.exponentially_weighted, knobs=published(_TRINITY_REC, ADVANTAGE, tau=1.0)
    ),
    "drop_negatives": _zero_when_equal(advantages.drop_negatives, frozenset({KEY})),
    "positive_part": _zero_when_equal(advantages.positive_part),
    "successes": Advantage(
        advantages.successes,
        knobs=published("arXiv:2504.11343: rewards 0 and 1", ADVANTAGE, threshold=0.0),
    ),
    "leave_prompt_out": Advantage(advantages.leave_prompt_out),
    "batch_centered": Advantage(advantages.batch_centered),
    "running_baseline": Advantage(
        advantages.above_baseline,
        knobs=published("the run's mean reward before", ADVANTAGE, baseline=None),
    ),
    "mean_normalized": _zero_when_equal(advantages.mean_normalized),
    "pass_at_k": _zero_when_equal(advantages.pass_at_k, knobs=_PAIRS),
    "max_at_k": _zero_when_equal(advantages.max_at_k, knobs=_PAIRS),
    "length_weighted": _zero_when_equal(returns.length_weighted, _LENGTHS),
    "overlong_standardized": Advantage(
        partial(returns.overlong_standardized, eps_inside=1e-6), _LENGTHS, _OVERLONG
    ),
    "whitened": Advantage(
        partial(returns.whitened, advantage_fn=advantages.raw, eps_inside=1e-8), _LENGTHS
    ),
    "group_whitened": Advantage(
        partial(returns.whitened, advantage_fn=advantages.centered, eps_inside=1e-8), _LENGTHS
    ),
    "step_returns": Advantage(returns.step_returns, _STEPS, _STEP_WEIGHT),
    "process_standardized": Advantage(
        partial(returns.process_standardized, eps_inside=1e-6), _STEPS
    ),
}
"""Name -> what rewards are turned into."""

REDUCTIONS: dict[str, ReductionFn] = {
    "token": aggregate.token_total,
    "sequence": aggregate.sequence_total,
    "sequence_sum": aggregate.sequence_sum_total,
    "fixed_length": aggregate.fixed_length_total,
    "group": aggregate.group_total,
}
"""Name -> `(values, mask, *, counted, knobs) -> Total`."""
REDUCTION_KNOBS = {"fixed_length": published(LONGEST, REDUCTION, length=None)}

CENTERS = {"exact": objectives.exact_center, "unit": objectives.unit_center}
"""Name -> `(batch) -> r'` of the clipping interval: pi_k/mu, or 1; `off_policy_grpo` takes one."""


class Factor(NamedTuple):
    """A factor of the losses of tokens, held constant: a weight, or a mask of 0 and 1."""

    fn: Callable[..., jax.Array]
    """A weight's `(log_ratio, mask, *, bounds) -> [..., T]`; a gate's `(seen, advantages, mask, *,
    bounds)`."""
    knobs: Mapping[str, Knob] = MappingProxyType({})
    """By the name of the bound with that of the factor before it: `token_low` is `low`."""
    looks_at: LooksAt = LooksAt.COMPLETION
    reads: frozenset[str] = frozenset({BEHAVIOR})
    """What it brings into the loss, besides pi_k of a weight."""
    of: str = "drift"
    """What a gate looks at: "drift" is pi_k/mu where the method reads pi_k, else pi/mu; "ratio" is
    pi/mu, and "entropy" that of pi. A weight is of pi_k/mu."""

    def bounds(self, knobs: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Its numbers among the knobs, by the names that `fn` has for them."""
        return {n.split("_", 1)[1]: knobs[n] for n in self.knobs if n in knobs}


_TIS = "TIS (Yao et al. 2025)"
_RETRACE = "Retrace (Munos et al. 2016, arXiv:1606.02647)"
_CAP, _BAND = published(_TIS, weight_cap=2.0), published(_TIS, weight_cap=2.0, weight_floor=0.0)
_TRACE = published(f"{_RETRACE}, eq. 3", weight_cap=1.0)
_TRACE |= published(f"{_RETRACE}: lambda", weight_decay=1.0)

WEIGHTS: dict[str, Factor] = {
    "unit": Factor(weights.unit_weight, reads=frozenset()),
    "plain": Factor(weights.plain_weight),
    "truncated": Factor(weights.truncated_weight, _BAND),
    "masked": Factor(weights.masked_weight, _BAND),
    "sequence_truncated": Factor(weights.sequence_truncated_weight, _CAP),
    "sequence_masked": Factor(weights.sequence_masked_weight, _BAND),
    "group_normalized": Factor(weights.group_normalized_weight, looks_at=LooksAt.GROUP),
    "batch_normalized": Factor(weights.batch_normalized_weight, looks_at=LooksAt.BATCH),
    "trace": Factor(traces.trace_weight, _TRACE),
}
"""Name -> what pi_k/mu may enter as."""

_TOKEN = published("IcePop (Ling team 2025)", token_low=0.5, token_high=5.0)
_CAPPED = "TRL 1.16, vllm_importance_sampling_cap"
_SEQUENCE = published(_CAPPED, sequence_low=0.0, sequence_high=3.0)
_GEO = published("verl 0.9, decoupled_geo_rs", geometric_low=0.999, geometric_high=1.001)
_NEGATIVES = "not in arXiv:2512.02556, eq. 9; Trinity-RFT 0.6 has .1"
_TOP = published("arXiv:2506.01939: the top 20 %", top_share=0.2)

GATES: dict[str, Factor] = {
    "token": Factor(gates.token_mask, _TOKEN),
    "sequence": Factor(gates.sequence_mask, _SEQUENCE),
    "geometric": Factor(gates.geometric_mask, _GEO),
    "negatives": Factor(
        gates.off_policy_sequence_mask, published(_NEGATIVES, negatives_delta=0.1), of="ratio"
    ),
    "k3": Factor(gates.k3_mask, published("verl 0.9, decoupled_k3_rs", k3_limit=0.01)),
    "top_entropy": Factor(
        gates.top_entropy_mask, _TOP, LooksAt.BATCH, frozenset({ENTROPY}), of=ENTROPY
    ),
}
"""Name -> mask of ratios or entropies; they multiply."""


BONUS_KNOBS = {ENTROPY: published("arXiv:1707.06347, table 5: c2", entropy_coef=0.01)}
"""What a loss may be lowered by, and the weight of it."""


def _importance_kl(kl_fn: KlFn, weighted_by: Callable[..., jax.Array]) -> KlTermFn:
    def term(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
        delta = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
        ref = needed(batch.ref_log_probs, "ref_log_probs")
        return weighted_by(log_probs, ref, kl_fn=kl_fn, log_ratio=delta)

    return term


_ESTIMATORS = {"k1": divergences.k1, "k2": divergences.k2, "k3": divergences.k3}
_CORRECTED = {"importance": divergences.importance_kl, "weighted": divergences.weighted_kl}
_TIMES_RATIO = {
    f"{kind}_{name}": _importance_kl(fn, form)
    for kind, form in _CORRECTED.items()
    for name, fn in _ESTIMATORS.items()
}
KLS: dict[str, KlTermFn] = {
    **{name: reference_kl(fn) for name, fn in _ESTIMATORS.items()},
    "k3": K3_TO_REFERENCE,  # the function that methods have, so that it is no change to them
    "straight_through_k3": reference_kl(divergences.straight_through_k3),
    **_TIMES_RATIO,
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
    gate: str | Sequence[str] = (),
    bonus: str | None = None,
    whiten: str | None = None,
) -> Algorithm:
    """Returns the method with some parts exchanged or added, which its `title` names.

    A part that the method has already changes nothing; a gate or a bonus that it has already is
    refused. The knobs of a part go and come with it.

    Args:
      advantage: a key of `ADVANTAGES`.
      reduction: a key of `REDUCTIONS`.
      kl: a key of `KLS`.
      center: a key of `CENTERS`, for losses that have one.
      weight: a key of `WEIGHTS`: the loss on ratios pi/pi_k, and pi_k/mu as this weight.
      gate: a key of `GATES`, or several: tokens that one of them shuts cost nothing, and count.
      bonus: "entropy", which lowers the loss of each token by entropy_coef times pi's entropy.
      whiten: "tokens": the advantages are whitened over all tokens of the batch, last of all.

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
    if kl is not None and (kl_fn := _named(KLS, kl, "KL")) is not algorithm.kl:
        reads = frozenset({REFERENCE, BEHAVIOR} if kl in _TIMES_RATIO else {REFERENCE})
        algorithm = replace(algorithm.renamed(f"KL {kl}"), kl=kl_fn, kl_reads=reads)
    if center is not None:
        algorithm = _with_center(algorithm, center)
    if weight is not None:
        algorithm = _with_weight(algorithm, weight)
    if gate:
        algorithm = _with_gates(algorithm, (gate,) if isinstance(gate, str) else gate)
    algorithm = algorithm if bonus is None else _with_bonus(algorithm, bonus)
    if whiten is not None:
        _named({"tokens": None}, whiten, "whiten")
        if not algorithm.whiten:
            algorithm = replace(algorithm.renamed(f"whiten {whiten}"), whiten=True)
    return algorithm


def _with_advantage(algorithm: Algorithm, name: str) -> Algorithm:
    advantage = _named(ADVANTAGES, name, "advantage")
    if advantage is algorithm.advantage:
        return algorithm
    if VALUES in algorithm.reads:
        raise ValueError(
            f"{algorithm.name} learns values, which the advantage {name} would not read: leave it"
            " out, or choose another algorithm"
        )
    return replace(
        algorithm.renamed(f"advantage {name}"),
        advantage=advantage,
        reads=algorithm.reads - {KEY, STEPS, LENGTHS} | advantage.reads,
        knobs=_exchanged(algorithm, ADVANTAGE, advantage.knobs),
    )


def _with_center(algorithm: Algorithm, name: str) -> Algorithm:
    center_fn = _named(CENTERS, name, "center")
    if getattr(algorithm.loss, "func", algorithm.loss) is not objectives.off_policy_grpo:
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
        rest = {name: value for name, value in knobs.items() if name not in weight.knobs}
        weight_fn = partial(weight.fn, **weight.bounds(knobs))
        inner = partial(algorithm.loss, **rest)
        return corrected(log_probs, batch, objective_fn=inner, weight_fn=weight_fn)

    return replace(
        algorithm.renamed(f"weight {name}"),
        loss=loss,
        reads=algorithm.reads - {BEHAVIOR} | weight.reads | {PROXIMAL},
        knobs={**algorithm.knobs, **weight.knobs},
        looks_at=max(algorithm.looks_at, weight.looks_at),
    )


def _with_gates(algorithm: Algorithm, names: Sequence[str]) -> Algorithm:
    stack = [_named(GATES, name, "gate") for name in names]
    reads = algorithm.reads.union(*(gate.reads for gate in stack))
    of_gates = {name: knob for gate in stack for name, knob in gate.knobs.items()}
    if len({*names}) < len(names) or of_gates.keys() & algorithm.knobs.keys():
        raise ValueError(f"gates {', '.join(names)}: name each once, a gate twice is that gate")

    def loss(log_probs: jax.Array, batch: TokenBatch, **knobs: Scalar) -> jax.Array:
        """The loss where every gate is open, held constant, and 0 elsewhere."""
        rest = {name: value for name, value in knobs.items() if name not in of_gates}
        losses = algorithm.loss(log_probs, batch, **rest)
        held, batch = objectives.masked_batch(jax.lax.stop_gradient(log_probs), batch)
        seen = _seen_by_gates(held, batch, reads)
        for gate in stack:
            kept = gate.fn(seen[gate.of], batch.advantages, batch.mask, **gate.bounds(knobs))
            losses = jnp.where(kept == 0, 0, kept * losses)
        return losses

    return replace(
        algorithm.renamed(", ".join(f"gate {name}" for name in names)),
        loss=loss,
        reads=reads,
        knobs={**algorithm.knobs, **of_gates},
        looks_at=max(algorithm.looks_at, *(gate.looks_at for gate in stack)),
    )


def _seen_by_gates(
    log_probs: jax.Array, batch: TokenBatch, reads: frozenset[str]
) -> dict[str, jax.Array]:
    """Log-ratios and entropies by their name in `Gate.of`, held constant. [..., T] each."""
    ratio = log_ratio(log_probs, batch.behavior_log_probs, batch.mask)
    seen = {"ratio": ratio, "drift": objectives.drift(batch) if PROXIMAL in reads else ratio}
    if ENTROPY in reads:
        seen[ENTROPY] = jax.lax.stop_gradient(needed(batch.entropy, ENTROPY))
    return seen


def _with_bonus(algorithm: Algorithm, name: str) -> Algorithm:
    knobs = _named(BONUS_KNOBS, name, "bonus")
    if knobs.keys() & algorithm.knobs.keys():
        raise ValueError(f"{algorithm.name} has the bonus {name} already: leave it out")

    def loss(
        log_probs: jax.Array, batch: TokenBatch, *, entropy_coef: Scalar, **knobs: Scalar
    ) -> jax.Array:
        """The loss less entropy_coef times the entropy of pi, whose gradient is taken."""
        losses = algorithm.loss(log_probs, batch, **knobs)
        _, batch = objectives.masked_batch(log_probs, batch)
        return losses - entropy_coef * needed(batch.entropy, ENTROPY)

    return replace(
        algorithm.renamed(f"bonus {name}"),
        loss=loss,
        reads=algorithm.reads | {ENTROPY},
        knobs={**algorithm.knobs, **knobs},
        ignores_zero_advantage=False,
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
