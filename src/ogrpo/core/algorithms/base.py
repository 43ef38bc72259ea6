"""An `Algorithm`: one plain value that is a whole method."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from ogrpo.core.advantages import group_standardized
from ogrpo.core.aggregate import Total, sequence_total
from ogrpo.core.checks import check_nonnegative
from ogrpo.core.divergences import k3
from ogrpo.core.objectives import TokenBatch, masked_batch
from ogrpo.core.returns import Along
from ogrpo.core.surrogates import Scalar

LossFn = Callable[..., jax.Array]
AdvantageFn = Callable[..., jax.Array]
ReductionFn = Callable[..., Total]
CriticFn = Callable[..., jax.Array]
KlTermFn = Callable[[jax.Array, TokenBatch], jax.Array]
Knobs = Mapping[str, Scalar]


class LooksAt(IntEnum):
    """What the loss of a token depends on, from the nearest on."""

    COMPLETION = 0
    GROUP = 1
    BATCH = 2

    def __str__(self) -> str:
        """In words, for messages."""
        return self.name.lower()


BEHAVIOR, PROXIMAL, REFERENCE, KEY = "behavior", "proximal", "reference", "key"
STEPS, VALUES = "steps", "values"
BY_TOKEN = frozenset({STEPS, VALUES})
"""What only an advantage reads that differs between the tokens of a completion."""
READS = {
    BEHAVIOR: "behavior_log_probs",
    PROXIMAL: "proximal_log_probs",
    REFERENCE: "ref_log_probs",
}
"""The policies that a loss may read besides pi, and the fields that hold their log-probs."""


class Knob(NamedTuple):
    """A number that a method has, its published value, and where that stands."""

    default: float | None
    """None where the run says it: `length`, the longest completion allowed."""
    source: str


def reference_kl(log_probs: jax.Array, batch: TokenBatch) -> jax.Array:
    """k3 of KL(pi||ref), the KL term of most methods. [..., T] -> [..., T].

    Source: GRPO (Shao et al. 2024), eq. 4.
    """
    return k3(log_probs, batch.ref_log_probs)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One method, whole: what it credits, what it minimises, how tokens add up, what it reads."""

    name: str
    loss: LossFn
    """`(log_probs, batch, *, knobs) -> [..., T]`, without a KL term to the reference."""
    advantage: AdvantageFn = group_standardized
    """`(rewards [..., G], *, knobs) -> [..., G]`; `(rewards, key, *, knobs)` if it reads a key, and
    `(rewards, along, *, knobs) -> [..., G, T]` if it reads steps or values (`returns.Along`)."""
    reduction: ReductionFn = sequence_total
    """`(values, mask, *, counted, knobs) -> Total`."""
    kl: KlTermFn = reference_kl
    """`(log_probs, batch) -> [..., T]`, added `beta` times."""
    critic: CriticFn | None = None
    """`(values, returns, mask, *, knobs) -> [..., T]`, the loss of values that the advantage reads,
    added to the method's."""
    reads: frozenset[str] = frozenset({BEHAVIOR})
    """Whose log-probs the loss reads besides pi's; "key" if the advantage draws lots, "steps" or
    "values" if it reads rewards of steps or values of states."""
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    """By name; each part takes those that its signature names, and `beta` weighs the KL term."""
    looks_at: LooksAt = LooksAt.COMPLETION
    """What the loss of a token depends on: its completion, its group or the whole batch."""
    silent: bool = True
    """Whether a completion of advantage 0 costs nothing, its KL term aside."""
    one_credit: bool = False
    """Whether the loss takes the advantage to be the same at all tokens of a completion."""
    summary: str = ""
    source: str = ""
    changed: tuple[str, ...] = ()
    """Parts that are not the method's own, in words."""

    def __post_init__(self) -> None:
        known = (*READS, KEY, STEPS, VALUES)
        if unknown := self.reads - {*known}:
            raise ValueError(
                f"{self.name} reads {', '.join(sorted(unknown))}: choose among {known}"
            )
        if (self.critic is not None) != (VALUES in self.reads):
            raise ValueError(
                f"{self.name} has {'no' if self.critic is None else 'a'} critic: one that learns"
                f" values has a critic, and reads {VALUES!r}"
            )
        if self.one_credit and self.by_token:
            raise ValueError(
                f"the loss of {self.name} takes one advantage a completion, and its advantage has"
                " one a token: choose another advantage, or another algorithm"
            )

    @property
    def adds_up(self) -> bool:
        """Whether the losses of microbatches of whole groups add up to the batch's."""
        return self.looks_at < LooksAt.BATCH

    @property
    def by_token(self) -> bool:
        """Whether advantages differ between the tokens of a completion."""
        return bool(self.reads & BY_TOKEN)

    def settings(self, given: Mapping[str, float | None]) -> dict[str, float]:
        """The value of each knob: as given, or as published.

        Raises:
          ValueError: there is no such knob, a value is missing, or a part refuses it; or the loss
            reads log-probs that `reads` does not declare.
        """
        strange = [n for n, value in given.items() if value is not None and n not in self.knobs]
        if strange:
            raise ValueError(
                f"{self.name} has no {', '.join(strange)}; its knobs are"
                f" {', '.join(self.knobs) or 'none'}: leave it out or choose another algorithm"
            )
        chosen = {name: knob.default for name, knob in self.knobs.items()}
        chosen |= {name: value for name, value in given.items() if value is not None}
        values = {name: float(value) for name, value in chosen.items() if value is not None}
        if missing := [name for name in chosen if name not in values]:
            raise ValueError(f"{self.name} needs a value of {', '.join(missing)}: give it")
        _trial(self, values)
        return values

    def inputs(self, knobs: Mapping[str, float]) -> frozenset[str]:
        """What is read with these knobs: a KL term needs the reference, one of weight 0 none."""
        return self.reads | (frozenset({REFERENCE}) if knobs.get("beta") else frozenset())

    def title(self, knobs: Mapping[str, float]) -> str:
        """The name, and whatever is not the method's own."""
        moved = [
            f"{name} {value:g}"
            for name, value in knobs.items()
            if self.knobs[name].default not in (None, value)
        ]
        return ", ".join((self.name, *self.changed, *moved))

    def credit(
        self,
        rewards: jax.Array,
        knobs: Knobs,
        key: jax.Array | None = None,
        along: Along | None = None,
    ) -> jax.Array:
        """The advantages. [..., G] -> [..., G], or [..., G, T] if they are by token.

        The key is consumed, and `along` read, by those that declare it.
        """
        wanted = ((key, KEY in self.reads), (along, self.by_token))
        read = [given for given, reads in wanted if reads]
        return self.advantage(rewards, *read, **accepted(self.advantage, knobs))

    def token_loss(self, log_probs: jax.Array, batch: TokenBatch, knobs: Knobs) -> jax.Array:
        """Loss per token without the KL term. [..., T] -> [..., T]."""
        return self.loss(log_probs, batch, **accepted(self.loss, knobs))

    def kl_loss(self, log_probs: jax.Array, batch: TokenBatch, knobs: Knobs) -> jax.Array:
        """beta KL(pi||ref) per token, 0 where masked. [..., T] -> [..., T]."""
        check_nonnegative(beta=knobs["beta"])
        log_probs, batch = masked_batch(log_probs, batch)
        return jnp.where(batch.mask, knobs["beta"] * self.kl(log_probs, batch), 0)

    def value_loss(
        self, values: jax.Array, returns: jax.Array, mask: jax.Array, knobs: Knobs
    ) -> jax.Array:
        """Loss of the values per token, 0 where masked. [..., T] -> [..., T]."""
        assert self.critic is not None
        return self.critic(values, returns, mask, **accepted(self.critic, knobs))

    def total(
        self,
        values: jax.Array,
        mask: jax.Array,
        knobs: Knobs,
        *,
        counted: jax.Array | None = None,
    ) -> Total:
        """The reduction. [..., G, T] -> Total."""
        return self.reduction(values, mask, counted=counted, **accepted(self.reduction, knobs))

    def __call__(
        self,
        log_probs: jax.Array,
        batch: TokenBatch,
        rewards: jax.Array,
        knobs: Knobs,
        key: jax.Array | None = None,
        along: Along | None = None,
    ) -> Total:
        """The whole method on one batch, from rewards to a total; its `mean` is the loss.

        Args:
          log_probs: [..., G, T] log pi.
          batch: [..., G, T]; its advantages are replaced.
          rewards: [..., G].
          knobs: see `settings`.
          key: a PRNG key, for methods that read one.
          along: what is known along completions, for methods that read it.

        Returns:
          Total of two scalars.
        """
        credit = self.credit(rewards, knobs, key, along)
        batch = batch._replace(advantages=at_tokens(credit, log_probs))
        losses = self.token_loss(log_probs, batch, knobs)
        beta = knobs.get("beta", 0.0)
        if not (isinstance(beta, float | int) and beta == 0):
            losses = losses + self.kl_loss(log_probs, batch, knobs)
        return self.total(losses, batch.mask, knobs)


def at_tokens(advantages: jax.Array, like: jax.Array) -> jax.Array:
    """Advantages of completions or of tokens as those of tokens, of the shape of `like`."""
    each = advantages if advantages.ndim == like.ndim else advantages[..., None]
    return jnp.broadcast_to(each, like.shape)


def accepted(function: Callable[..., object], knobs: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The knobs that a function takes by keyword; `beta` belongs to the KL term alone."""
    return {name: knobs[name] for name in keywords(function) if name in knobs}


def keywords(function: Callable[..., object]) -> list[str]:
    """The numbers that a function takes by keyword."""
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    return [name for name in names if name not in ("beta", "counted")]


def loss_reads(algorithm: Algorithm) -> frozenset[str]:
    """The policies whose log-probs the loss depends on, from its program."""
    knobs = {name: 1.0 if k.default is None else k.default for name, k in algorithm.knobs.items()}
    log_probs, batch = _example()

    def loss(fields: dict[str, jax.Array]) -> jax.Array:
        return algorithm.token_loss(log_probs, batch._replace(**fields), knobs)

    fields = {name: getattr(batch, name) for name in sorted(READS.values())}
    program = jax.make_jaxpr(loss)(fields).jaxpr
    live = {v for v in program.outvars if not isinstance(v, core.Literal)}
    for equation in reversed(program.eqns):
        if live & set(equation.outvars):
            live |= {v for v in equation.invars if not isinstance(v, core.Literal)}
    used = {name for name, v in zip(fields, program.invars, strict=True) if v in live}
    return frozenset(policy for policy, name in READS.items() if name in used)


def _trial(algorithm: Algorithm, knobs: Mapping[str, float]) -> None:
    """Lets every part judge the values of its knobs, which it cannot under a later trace."""
    if undeclared := loss_reads(algorithm) - algorithm.reads:
        raise ValueError(
            f"the loss of {algorithm.name} reads log-probs that it does not declare: add"
            f" {', '.join(sorted(undeclared))} to `reads`, so that they are computed"
        )
    log_probs, batch = _example()
    rewards, key = jnp.zeros(log_probs.shape[:-1]), jax.random.key(0)
    along = Along(batch.mask, log_probs, batch.mask, log_probs)
    jax.eval_shape(lambda x: algorithm(x, batch, rewards, knobs, key, along), log_probs)


def _example() -> tuple[jax.Array, TokenBatch]:
    zeros = jnp.zeros((2, 2, 2))
    return zeros, TokenBatch(zeros, zeros == 0, zeros, zeros, zeros)
