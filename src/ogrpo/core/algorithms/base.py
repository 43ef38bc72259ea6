"""An `Algorithm`: one plain value that is a whole method."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.core.advantages import group_standardized
from ogrpo.core.aggregate import Total, sequence_total
from ogrpo.core.checks import Scalar, check_nonnegative, is_zero, needed
from ogrpo.core.divergences import KlFn, k3
from ogrpo.core.objectives import TokenBatch, masked_batch
from ogrpo.core.returns import Trajectory, whiten

LossFn = Callable[..., jax.Array]
AdvantageFn = Callable[..., jax.Array]
ReductionFn = Callable[..., Total]
CriticFn = Callable[..., jax.Array]
KlTermFn = Callable[[jax.Array, TokenBatch], jax.Array]
KnobMap = Mapping[str, Scalar]


class LooksAt(IntEnum):
    """The part of a batch that the loss of a token depends on, from the smallest to the whole."""

    COMPLETION = 0
    GROUP = 1
    BATCH = 2

    def __str__(self) -> str:
        """Returns the name as messages have it."""
        return self.name.lower()


BEHAVIOR, PROXIMAL, REFERENCE, KEY = "behavior", "proximal", "reference", "key"
STEPS, VALUES, LENGTHS = "steps", "values", "lengths"
ENTROPY, UNIFORMS = "entropy", "uniforms"
BY_TOKEN = frozenset({STEPS, VALUES})
"""Inputs with which an advantage differs between the tokens of a completion."""
FIELDS = {STEPS: "mask, step_rewards, step_ends", VALUES: "mask, values", LENGTHS: "mask"}
"""What only an advantage reads besides rewards, and the fields of `Trajectory` that hold it."""
READS = {
    BEHAVIOR: "behavior_log_probs",
    PROXIMAL: "proximal_log_probs",
    REFERENCE: "ref_log_probs",
    ENTROPY: "entropy",
    UNIFORMS: "uniforms",
}
"""What a loss may read besides log pi: log-probs of other policies, the entropy of pi, random
numbers; and the fields that hold them."""

LOSS, ADVANTAGE, REDUCTION, CRITIC = "loss", "advantage", "reduction", "critic"
BETA = "beta"
"""The weight of the KL term: the one knob that no other part takes."""


class Knob(NamedTuple):
    """A number of a method: its published value, where that stands, and which parts take it."""

    default: float | None
    """None where the run has the value: `length`, the longest completion allowed."""
    source: str
    parts: tuple[str, ...] = (LOSS,)
    """Of "loss", "advantage", "reduction" and "critic", those that take it by keyword."""
    at_one: bool = True
    """Whether the gradient of the loss depends on it where the loss's ratio is 1."""


def published(source: str, *parts: str, **defaults: float | None) -> dict[str, Knob]:
    """Returns knobs by name that stand in one source and are taken by the same parts.

    Args:
      source: where the values stand: paper with its section, or code with its version.
      *parts: of "loss", "advantage", "reduction" and "critic"; the loss alone if none is named.
      **defaults: name -> published value; None where the run says it.

    Example:
      >>> published("arXiv:2507.20673, section 4.1", eps_low=0.4)["eps_low"].default
      0.4
    """
    return {name: Knob(value, source, parts or (LOSS,)) for name, value in defaults.items()}


def away_from_one(source: str, **defaults: float) -> dict[str, Knob]:
    """Returns knobs of the loss, as `published`, that change nothing where its ratio is 1."""
    knobs = published(source, **defaults)
    return {name: knob._replace(at_one=False) for name, knob in knobs.items()}


class Advantage(NamedTuple):
    """An advantage with what it reads and its numbers; to call it is to call its function."""

    fn: AdvantageFn
    reads: frozenset[str] = frozenset()
    """What it reads besides rewards: "key", "steps", "values" or "lengths"."""
    knobs: Mapping[str, Knob] = MappingProxyType({})
    zero_when_equal: bool = False
    """Whether it is 0 in a group of equal rewards, whatever other groups and lengths are."""

    def __call__(self, rewards: jax.Array, *read: object, **knobs: Scalar) -> jax.Array:
        """Returns the advantages, of rewards and what else is read, in the order of `reads`."""
        return self.fn(rewards, *read, **knobs)


STANDARDIZED = Advantage(group_standardized, zero_when_equal=True)


def reference_kl(kl_fn: KlFn) -> KlTermFn:
    """Returns `(log_probs, batch) -> [..., T]`, an estimator of KL(pi||ref); most methods take k3.

    Source: GRPO (Shao et al. 2024, arXiv:2402.03300), eq. 4.
    """
    return lambda log_probs, batch: kl_fn(log_probs, needed(batch.ref_log_probs, "ref_log_probs"))


K3_TO_REFERENCE = reference_kl(k3)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """One method, whole: what it credits, what it minimises, how tokens add up, what it reads."""

    name: str
    loss: LossFn
    """`(log_probs, batch, *, knobs) -> [..., T]`, without a KL term to the reference."""
    advantage: AdvantageFn = STANDARDIZED
    """`(rewards [..., G], *, knobs) -> [..., G]`; `(rewards, key, *, knobs)` if it reads a key, and
    `(rewards, trajectory, *, knobs) -> [..., G, T]` if it reads steps or values
    (`returns.Trajectory`), or `-> [..., G]` if it reads lengths. A function that is 0 in groups of
    equal rewards, so that such groups may be skipped, says so as an `Advantage`."""
    reduction: ReductionFn = sequence_total
    """`(values, mask, *, counted, knobs) -> Total`."""
    kl: KlTermFn = K3_TO_REFERENCE
    """`(log_probs, batch) -> [..., T]`, added `beta` times."""
    kl_reads: frozenset[str] = frozenset({REFERENCE})
    """What the KL term reads, where its weight is not 0."""
    critic: CriticFn | None = None
    """`(values, returns, mask, *, knobs) -> [..., T]`, the loss of values that the advantage reads,
    added to the method's."""
    reads: frozenset[str] = frozenset({BEHAVIOR})
    """What the loss reads besides log pi (`READS`); "key" if the advantage needs random numbers,
    "steps", "values" or "lengths" if it reads rewards of steps, values of states or lengths. A loss
    is never without `behavior_log_probs`: whether its gradient depends on them stands here."""
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    """By name; `beta` weighs the KL term."""
    looks_at: LooksAt = LooksAt.COMPLETION
    """What the loss of a token depends on: its completion, its group or the whole batch."""
    ignores_zero_advantage: bool = True
    """Whether a completion of advantage 0 costs nothing, its KL term aside."""
    one_credit: bool = False
    """Whether the loss takes the advantage to be the same at all tokens of a completion."""
    token_ratio_only: bool = False
    """Whether the loss of a token depends on its advantage and on pi/mu of that token alone."""
    whiten: bool = False
    """Whether advantages are whitened over the tokens of the batch; values learn as without."""
    summary: str = ""
    source: str = ""
    changed: tuple[str, ...] = ()
    """Parts that are not the method's own, in words."""

    def __post_init__(self) -> None:
        known = (*READS, KEY, STEPS, VALUES, LENGTHS)
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

    def renamed(self, part: str) -> "Algorithm":
        """Returns the method with a part in its title that is not the method's own."""
        return replace(self, changed=(*self.changed, part))

    def completed(self, knobs: Mapping[str, Scalar | None]) -> dict[str, Scalar]:
        """Returns every knob: as given, or as published.

        Raises:
          ValueError: there is no such knob, or one has no published value and none was given.
        """
        for name, value in knobs.items():
            if value is not None and name not in self.knobs:
                near = difflib.get_close_matches(name, self.knobs, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ValueError(
                    f"{self.name} has no {name}.{hint} Its knobs are"
                    f" {', '.join(self.knobs) or 'none'}: leave it out, or choose an algorithm or"
                    " a part (gate, weight, bonus, advantage) that has it"
                )
        values = {name: knobs.get(name) for name in self.knobs}
        values = {n: self.knobs[n].default if v is None else v for n, v in values.items()}
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"{self.name} needs a value of {', '.join(missing)}: give it")
        return {name: value for name, value in values.items() if value is not None}

    def settings(self, knobs: Mapping[str, float | None]) -> dict[str, float]:
        """Returns the number of each knob, as given or as published, once every part accepts it.

        Raises:
          ValueError: as `completed`; a part refuses a value; or the loss reads log-probs that
            `reads` does not declare.
        """
        values = {name: float(value) for name, value in self.completed(knobs).items()}
        self.trace(values, prompts=2, group=2)
        return values

    def trace(self, knobs: Mapping[str, float], *, prompts: int, group: int) -> None:
        """Traces the method on `prompts` groups of `group` completions; its parts judge both."""
        zeros = jnp.zeros((prompts, group, 2))
        batch = TokenBatch(zeros, zeros == 0, zeros, zeros, zeros, entropy=zeros, uniforms=zeros)
        trajectory = Trajectory(batch.mask, zeros, batch.mask, zeros)
        rest = (batch, zeros[..., 0], knobs, jax.random.key(0), trajectory)
        jax.eval_shape(lambda log_probs: self(log_probs, *rest, values=zeros), zeros)

    def inputs(self, knobs: Mapping[str, Scalar]) -> frozenset[str]:
        """Returns what is read with these knobs: a KL term of weight 0 needs no reference."""
        return self.reads if is_zero(knobs.get(BETA, 0.0)) else self.reads | self.kl_reads

    def title(self, knobs: Mapping[str, float]) -> str:
        """The name, and whatever is not the method's own."""
        moved = [
            f"{name} {value:g}"
            for name, value in knobs.items()
            if self.knobs[name].default not in (None, value)
        ]
        return ", ".join((self.name, *self.changed, *moved))

    def compute_advantages(
        self,
        rewards: jax.Array,
        knobs: KnobMap,
        key: jax.Array | None = None,
        trajectory: Trajectory | None = None,
    ) -> jax.Array:
        """The advantages. [..., G] -> [..., G], or [..., G, T] if they are by token.

        The key is consumed, and `trajectory` read, by those that declare it.
        """
        advantages = self._advantages(rewards, knobs, key, trajectory)
        if not self.whiten:
            return advantages
        if trajectory is None:
            raise ValueError(
                f"{self.name} is whitened over tokens: give trajectory=Trajectory(mask)"
            )
        return whiten(advantages, trajectory.mask & ~jnp.isnan(rewards)[..., None])

    def returns(self, rewards: jax.Array, knobs: KnobMap, trajectory: Trajectory) -> jax.Array:
        """The targets of the values: advantages before they are whitened, above the old values."""
        values = needed(trajectory.values, "values")
        return self._advantages(rewards, knobs, None, trajectory) + values

    def _advantages(
        self,
        rewards: jax.Array,
        knobs: KnobMap,
        key: jax.Array | None,
        trajectory: Trajectory | None,
    ) -> jax.Array:
        read: list[object] = []
        if KEY in self.reads:
            if key is None:
                raise ValueError(f"{self.name} needs random numbers: give key=jax.random.key(seed)")
            read.append(key)
        if fields := [FIELDS[what] for what in FIELDS if what in self.reads]:
            if trajectory is None:
                raise ValueError(
                    f"{self.name} reads more than rewards: give trajectory=Trajectory({fields[0]})"
                )
            read.append(trajectory)
        return self.advantage(rewards, *read, **self._taken_by(ADVANTAGE, knobs))

    def draw(self, key: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
        """Draws a loss's uniform numbers, apart from an advantage's. -> `shape`, in [0, 1)."""
        if key is None:
            raise ValueError(f"{self.name} needs random numbers: give key=jax.random.key(seed)")
        return jax.random.uniform(jax.random.fold_in(key, 1), shape)

    def token_loss(self, log_probs: jax.Array, batch: TokenBatch, knobs: KnobMap) -> jax.Array:
        """Loss per token without the KL term. [..., T] -> [..., T].

        Raises:
          ValueError: the loss reads log-probs that `reads` does not declare, or the batch lacks.
        """
        undeclared = {
            field: None for what, field in READS.items() if what not in {*self.reads, BEHAVIOR}
        }
        return self.loss(log_probs, batch._replace(**undeclared), **self._taken_by(LOSS, knobs))

    def _taken_by(self, part: str, knobs: KnobMap) -> dict[str, Scalar]:
        names = [n for n, knob in self.knobs.items() if part in knob.parts and n != BETA]
        return {name: knobs[name] for name in names if name in knobs}

    def kl_loss(self, log_probs: jax.Array, batch: TokenBatch, knobs: KnobMap) -> jax.Array:
        """beta KL(pi||ref) per token, 0 where masked. [..., T] -> [..., T]."""
        check_nonnegative(beta=knobs[BETA])
        if batch.ref_log_probs is None:
            raise ValueError(
                f"{self.name} with beta {knobs[BETA]} reads ref_log_probs: give them in the batch,"
                " or the knob beta as 0"
            )
        log_probs, batch = masked_batch(log_probs, batch)
        return jnp.where(batch.mask, knobs[BETA] * self.kl(log_probs, batch), 0)

    def value_loss(
        self, values: jax.Array, returns: jax.Array, mask: jax.Array, knobs: KnobMap
    ) -> jax.Array:
        """Loss of the values per token, 0 where masked. [..., T] -> [..., T]."""
        assert self.critic is not None
        return self.critic(values, returns, mask, **self._taken_by(CRITIC, knobs))

    def total(
        self,
        values: jax.Array,
        mask: jax.Array,
        knobs: KnobMap,
        *,
        counted: jax.Array | None = None,
    ) -> Total:
        """The reduction. [..., G, T] -> Total."""
        return self.reduction(values, mask, counted=counted, **self._taken_by(REDUCTION, knobs))

    def __call__(
        self,
        log_probs: jax.Array,
        batch: TokenBatch,
        rewards: jax.Array,
        knobs: Mapping[str, Scalar | None] | None = None,
        key: jax.Array | None = None,
        trajectory: Trajectory | None = None,
        *,
        values: jax.Array | None = None,
    ) -> Total:
        """The whole method on one batch, from rewards to a total; its `mean` is the loss.

        Completions whose reward is NaN were not judged: they carry no loss, and
        their siblings are compared without them.

        Args:
          log_probs: [..., G, T] log pi.
          batch: of the same shape; its advantages are replaced.
          rewards: [..., G].
          knobs: those that are not as published.
          key: a PRNG key, for methods that read one.
          trajectory: what is known along completions, for methods that read it.
          values: [..., G, T] of the policy's head now, for methods with a critic.

        Raises:
          ValueError: there is no such knob; what the method reads is missing; or shapes differ.
        """
        numbers = self.completed(knobs or {})
        if jnp.shape(rewards) != log_probs.shape[:-1]:
            raise ValueError(
                f"rewards are {list(jnp.shape(rewards))}, but log_probs {list(log_probs.shape)} are"
                f" of {list(log_probs.shape[:-1])} completions: give each a reward, [..., G]"
            )
        credit = self.compute_advantages(rewards, numbers, key, trajectory)
        mask = batch.mask & ~jnp.isnan(rewards)[..., None]
        batch = batch._replace(advantages=at_tokens(credit, log_probs), mask=mask)
        if UNIFORMS in self.reads:
            batch = batch._replace(uniforms=self.draw(key, log_probs.shape))
        losses = self.token_loss(log_probs, batch, numbers)
        if not is_zero(numbers.get(BETA, 0.0)):
            losses = losses + self.kl_loss(log_probs, batch, numbers)
        if self.critic is not None:
            if values is None or trajectory is None or trajectory.values is None:
                raise ValueError(f"{self.name} learns values: give values=, those of its head now")
            returns = self.returns(rewards, numbers, trajectory)
            losses = losses + self.value_loss(values, returns, mask, numbers)
        return self.total(losses, batch.mask, numbers)


def at_tokens(advantages: jax.Array, like: jax.Array) -> jax.Array:
    """Advantages of completions or of tokens as those of tokens, of the shape of `like`."""
    each = advantages if advantages.ndim == like.ndim else advantages[..., None]
    return jnp.broadcast_to(each, like.shape)
