"""Along a training run: gradients of the last policy from completions of older ones.

pi is the policy at the end of a run, mu its own state `age` steps before. For each age groups are
drawn from mu, for the same prompts and with the same random numbers, and every estimator gives the
gradient of J(pi) from them, group by group and in all parameters. Other groups of pi itself say
what the gradient is.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.grid.train import Bench
from ogrpo.batch import Batch
from ogrpo.config.train import TrainConfig
from ogrpo.core import weights
from ogrpo.core.advantages import leave_one_out
from ogrpo.core.estimators import (
    clipped_terms,
    exact_moments,
    ionides_clip,
    optimal_clip,
    self_normalized_terms,
    truncation_error,
)
from ogrpo.data.batching import pad_groups
from ogrpo.loop import Parts, snapshot, start, stream_seed, train
from ogrpo.loop.parts import ScoreFn
from ogrpo.rollout.collection import Request
from ogrpo.system.values import require

BATCH = 16
"""Groups whose mean an estimate is: the default task's batch."""
TRUTH = 4
"""Groups of pi itself to each prompt."""

ESTIMATORS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "none": weights.unit_weight,
    "sequence": partial(weights.sequence_truncated_weight, cap=np.inf),
    "sequence, truncated at 2": partial(weights.sequence_truncated_weight, cap=2.0),
    "sequence, masked to 0.5–2": partial(weights.sequence_masked_weight, floor=0.5, cap=2.0),
    "sequence, self-normalised": weights.group_normalized_weight,
    "token": weights.plain_weight,
    "token, truncated at 2": partial(weights.truncated_weight, cap=2.0),
    "token, clipped to 0.8–1.2": partial(weights.truncated_weight, cap=1.2, floor=0.8),
}
"""Weights of A_i grad log pi, A_i the lead over the others of the group, which no weight touches:
with the whole ratio of the sequence the estimate is unbiased (`leave_one_out_unbiased`)."""

Vector = NDArray[np.float64]
PullFn = Callable[[Any, Batch[jax.Array], jax.Array], jax.Array]


@dataclass(frozen=True)
class Along:
    """A run, and at which ages its states serve as samplers."""

    train: TrainConfig
    ages: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 40)
    groups: int = 64
    """Prompts, each with one group an age."""

    def __post_init__(self) -> None:
        steps, size = self.train.schedule.steps, self.train.schedule.prompts
        require(
            max(self.ages) <= steps and min(self.ages) == 0,
            f"ages are {self.ages}: give 0 and others of at most the run's {steps} steps",
        )
        require(
            self.groups % size == 0,
            f"groups is {self.groups}: give a multiple of schedule.prompts = {size}",
        )


class Drawn(NamedTuple):
    """Groups in batches as the update takes them, and log pi - log mu of their tokens."""

    batches: list[Batch[jax.Array]]
    log_ratios: list[jax.Array]

    @property
    def sequences(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratios of whole completions and their rewards, one after the other."""
        logs = [
            jnp.sum(ratio, axis=-1, where=batch.active_mask)
            for batch, ratio in zip(self.batches, self.log_ratios, strict=True)
        ]
        ratios = np.concatenate([np.exp(np.asarray(x, np.float64)).ravel() for x in logs])
        return ratios, np.concatenate([np.asarray(b.rewards).ravel() for b in self.batches])


def measure(cell: Cell, bench: Bench) -> Mapping[str, Any]:
    """Returns moments of every estimator at every age, and figures that may predict them."""
    along: Along = cell.config
    with bench.parts(along.train) as (config, parts, first):
        policies: dict[int, Any] = {}
        for state, _ in train(start(first, parts), parts):
            if (age := config.schedule.steps - state.step) in along.ages:
                policies[age] = state.train.whole(snapshot(state.train.params))
        pi = policies[0]
        sampling = parts.collection.sampling
        pull = make_pull(parts.learner.score, sampling.temperature)
        true = [draw(along, parts, pi, pi, f"truth {n}") for n in range(TRUTH)]
        only = {"none": ESTIMATORS["none"]}
        truth = jnp.mean(jnp.stack([gradients(pull, pi, one, only)[:, 0] for one in true]), axis=0)
        length = moments(truth[:, None], 0 * truth)
        ages = []
        for age in sorted(policies):
            drawn = draw(along, parts, policies[age], pi, "stale")
            sums = moments(gradients(pull, pi, drawn, ESTIMATORS), truth)
            ratios, rewards = drawn.sequences
            of_estimator = {
                name: {moment: float(values[n]) for moment, values in sums.items()}
                for n, name in enumerate(ESTIMATORS)
            }
            ages.append(
                {
                    "age": age,
                    "chi_square": float((ratios**2).mean() - 1),
                    "gradient": of_estimator,
                    "value": value_errors(ratios, rewards, BATCH * sampling.group_size),
                }
            )
    return rounded({"squared_gradient": float(length["bias2"][0]), "ages": ages})


def draw(along: Along, parts: Parts, mu: Any, pi: Any, stream: str) -> Drawn:
    """Draws one group of mu for each of the first prompts."""
    temperature = jnp.float32(parts.collection.sampling.temperature)
    size, batches, ratios = along.train.schedule.prompts, [], []
    for batch in draw_batches(parts, mu, along.groups, size, along.train.seed, stream):
        batches.append(batch)
        ratios.append(parts.learner.score(pi, batch, temperature) - batch.behavior_log_probs)
    return Drawn(batches, ratios)


def draw_batches(
    parts: Parts, mu: Any, groups: int, size: int, seed: int, stream: str
) -> Iterator[Batch[jax.Array]]:
    """Yields one group of mu for each of the first prompts, in batches of `size` prompts."""
    engine, sampling = parts.collection.engine, parts.collection.sampling
    engine.publish(mu, engine.version + 1)
    for begin in range(0, groups, size):
        problems = list(range(begin, begin + size))
        prompts = [parts.prompts.train[n] for n in problems]
        request = Request(begin, problems, prompts, stream_seed(seed, stream, begin))
        drawn = engine.generate(prompts, sampling, request.seed)
        rewarded = parts.collection.reward_fn(request, range(size), drawn)
        rewards = np.stack([each.rewards for each in rewarded])
        padded = pad_groups(drawn, parts.prompts.length, sampling.max_tokens, rewards=rewards)
        yield parts.learner.place(padded)


def gradients(pull: Any, pi: Any, drawn: Drawn, estimators: Mapping[str, Any]) -> jax.Array:
    """Returns each group's gradient by each estimator, [groups, E, parameters]."""
    pulled = []
    for batch, log_ratio in zip(drawn.batches, drawn.log_ratios, strict=True):
        mask = batch.active_mask
        credit = leave_one_out(batch.rewards)[None, ..., None] / batch.rewards.shape[-1]
        factors = jnp.stack([weigh(log_ratio, mask) for weigh in estimators.values()])
        pulls = jnp.where(mask[None], factors * credit, 0.0)
        for n in range(len(batch.rewards)):
            alone = jax.tree.map(lambda x, n=n: x[n : n + 1], batch)
            pulled.append(pull(pi, alone, pulls[:, n]))
    return jnp.stack(pulled)


def make_pull(score: ScoreFn, temperature: float) -> PullFn:
    """`(params, a group, factors [E, G, T]) -> gradients of sums of factor * log pi, [E, P]`."""

    @jax.jit
    def pull(params: Any, group: Batch[jax.Array], factors: jax.Array) -> jax.Array:
        hot = jnp.float32(temperature)
        _, back = jax.vjp(lambda p: score(p, group, hot), params)
        return jax.vmap(lambda one: ravel_pytree(back(one[None])[0])[0])(factors)

    return pull


def moments(gradients: jax.Array, truth: jax.Array) -> dict[str, jax.Array]:
    """Returns squared bias without the noise of either side, and a group's variance, [E] each.

    The prompts are drawn too: the variance is that of a group of any prompt. The bias is taken
    prompt by prompt, where what differs between prompts cancels; its square may come out below 0.

    Args:
      gradients: of M groups by E estimators, [M, E, P].
      truth: of their prompts, [M, P].
    """
    m = len(gradients)

    def split(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        squares = jnp.einsum("mep,mep->e", values, values)
        length = jnp.sum(values.sum(0) ** 2, axis=-1) / m
        variance = (squares - length) / (m - 1)
        return length / m - variance / m, variance

    bias2, _ = split(gradients - truth[:, None])
    _, variance = split(gradients)
    return {"bias2": bias2, "variance": variance}


def value_errors(ratios: Vector, rewards: NDArray[np.floating[Any]], n: int) -> Mapping[str, float]:
    """Returns mean squared errors of means of n on the second half, by rules that saw the first.

    Both halves are taken as the distributions that they are, so that no error is drawn. `tau/root`
    is tau = J + (n - 1) E[(rho - tau)_+ r]; the proposal's band about 1 has the half width
    sqrt(Var r / Var rho). The self-normalised mean has the first order E[rho^2 (r - J)^2] / n, rho
    over its mean and J that mean itself.
    """
    pilot, rest = slice(0, None, 2), slice(1, None, 2)
    with jax.enable_x64():
        rho, values = ratios[pilot], rewards[pilot].astype(np.float64)
        probs = np.full(len(rho), 1 / len(rho))
        weights, gains = ratios[rest], rewards[rest].astype(np.float64)
        test = jnp.asarray(weights), jnp.asarray(gains)
        test_probs = jnp.full(len(weights), 1 / len(weights))
        truth = jnp.asarray((weights * gains).mean())

        def error(terms: jax.Array) -> float:
            one = exact_moments(terms, test_probs, truth)
            return float(one.bias) ** 2 + float(one.variance) / n

        caps = {
            "plain": float(ratios.max()),
            "root": fixed_point(rho, values, probs, n),
            "√n": float(ionides_clip(n)),
            "2": 2.0,
            "best": float(optimal_clip(*test, n).tau),
        }
        errors = {
            f"mse/{name}": float(truncation_error(cap, *test, n, test_probs).mse)
            for name, cap in caps.items()
        }
        width = proposed_width(rho, values, probs) if np.ptp(rho) else np.inf
        mean, scaled = float(self_normalized_terms(*test).mean()), weights / weights.mean()
        return {
            **errors,
            "mse/proposed": error(clipped_terms(*test, low=max(0.0, 1 - width), high=1 + width)),
            "mse/none": error(test[1]),
            "mse/self-normalised": float((scaled**2 * (gains - mean) ** 2).mean() / n),
            "tau/root": caps["root"],
            "tau/best": caps["best"],
        }


def fixed_point(ratios: Vector, rewards: Vector, mu: Vector, n: int) -> float:
    """The root of tau = J + (n - 1) E_mu[(rho - tau)_+ r], by bisection: the gap only grows."""
    low, high = 0.0, float(n * ratios.max())
    for _ in range(200):
        middle = (low + high) / 2
        excess = mu @ (np.maximum(ratios - middle, 0) * rewards)
        below = middle < mu @ (ratios * rewards) + (n - 1) * excess
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2


def proposed_width(ratios: Vector, rewards: Vector, mu: Vector) -> float:
    """sqrt(Var r / Var rho), the proposal's (refuted) half width of a band about 1."""
    values = (rewards, ratios)
    variance, spread = (float(mu @ (x - mu @ x) ** 2) for x in values)
    return float(np.sqrt(variance / spread))
