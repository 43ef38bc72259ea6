"""The sampled half of `bounds`: the default run, whose completions nobody can enumerate.

    mu, the sampler of one server period -> completions the trainer never sees -> rewards
    -> log-probs under mu and every policy of the period -> sequence ratios -> estimates

One sample serves a whole period, so that its steps are judged on common draws; the next period's
sample measures J of the policy that the period ended with, independently of all its estimates.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments.bounds.exact import RATES, facts
from ogrpo.batch import Batch
from ogrpo.core.certificates import improvement_certificate
from ogrpo.core.ratios import exp_ratio, sequence_log_ratio
from ogrpo.data.batching import pad_groups
from ogrpo.evaluation import Z95
from ogrpo.loop import LoopState, Parts, snapshot, stream_seed, train
from ogrpo.loop.evaluate import withdraw
from ogrpo.policy import Params

Record = dict[str, Any]
Array = NDArray[np.float64]
RESAMPLES = 200
BELOW = ("mm", "sharp", "stale", "published")
"""What must not exceed the gain; the certificate has a confidence of its own."""


class HeldoutSample(NamedTuple):
    """Fresh completions of the held-out prompts by one sampler, with its own log-probs."""

    batch: Batch[jax.Array]
    mismatch: float
    """Largest |log mu| difference of a token between sampler and trainer, in nats."""


class Dials(NamedTuple):
    """What the estimates take."""

    sigma_eps: float
    clip_eps: float
    delta: float
    seed: int


def draw_sample(parts: Parts, params: Params, step: int) -> HeldoutSample:
    """Completions that no update will see, scored by the trainer's own forward pass."""
    engine, sampling = parts.evaluator.engine, parts.evaluator.sampling
    engine.publish(params, step)
    seed = stream_seed(parts.seed, "bounds", step)
    groups = engine.generate(parts.prompts.heldout, sampling, seed)
    withdraw(engine)
    rewards = parts.evaluator.judge(groups).rewards
    padded = pad_groups(groups, parts.prompts.length, sampling.max_tokens, rewards=rewards)
    batch: Batch[jax.Array] = jax.tree.map(jnp.asarray, padded)
    own = score(parts, params, batch)
    apart = jnp.where(batch.completion_mask, jnp.abs(own - batch.behavior_log_probs), 0)
    return HeldoutSample(
        batch=batch._replace(behavior_log_probs=own), mismatch=float(jnp.max(apart))
    )


def score(parts: Parts, params: Params, batch: Batch[jax.Array]) -> jax.Array:
    """The trainer's log-probs [N, G, T] at the sampling temperature."""
    return parts.learner.score(params, batch, jnp.float32(parts.evaluator.sampling.temperature))


def ratios(parts: Parts, params: Params, batch: Batch[jax.Array]) -> Array:
    """pi/mu of whole completions, [N, G]."""
    log_probs = score(parts, params, batch)
    logs = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.active_mask)
    return np.asarray(exp_ratio(logs)[..., 0], np.float64)


def mean_and_error(values: Array) -> tuple[float, float]:
    """Mean over prompts of the prompts' means, and its standard error given the prompts."""
    variance = values.var(axis=1, ddof=1) / values.shape[1]
    return float(values.mean()), float(np.sqrt(variance.sum()) / len(values))


def plug_in(
    weights: jax.Array,
    ratio: jax.Array,
    center: jax.Array,
    rewards: jax.Array,
    *,
    sigma_eps: float,
    clip_eps: float,
) -> dict[str, jax.Array]:
    """`facts` of the empirical distributions, means over the prompts; all arguments [N, G].

    Two outcomes without mass, of reward 0 and 1, tell the bounds the rewards' range.
    """
    nothing = jnp.zeros((len(ratio), 2), ratio.dtype)
    known = jnp.broadcast_to(jnp.array([0.0, 1.0], ratio.dtype), nothing.shape)
    padded = [
        jnp.concatenate(pair, axis=1)
        for pair in (
            (weights * ratio, nothing),
            (weights * center, nothing),
            (weights, nothing),
            (rewards, known),
        )
    ]
    values = jax.vmap(partial(facts, sigma_eps=sigma_eps, clip_eps=clip_eps))(*padded)
    return {name: jnp.mean(value) for name, value in values.items()}


def resamples(shape: tuple[int, int], seed: int) -> Array:
    """Bootstrap weights [1 + RESAMPLES, N, G], completions drawn anew within each prompt."""
    rng, (prompts, size) = np.random.default_rng([seed, 4]), shape
    counts = rng.multinomial(size, np.full(size, 1 / size), size=(RESAMPLES, prompts))
    return np.concatenate([np.ones((1, *shape)), counts]) / size


@partial(jax.jit, static_argnames=("sigma_eps", "clip_eps"))
def _bootstrap(weights: jax.Array, *arrays: jax.Array, sigma_eps: float, clip_eps: float) -> Any:
    one = partial(plug_in, sigma_eps=sigma_eps, clip_eps=clip_eps)
    return jax.lax.map(lambda w: one(w, *arrays), weights, batch_size=20)


def estimates(ratio: Array, center: Array, rewards: Array, dials: Dials) -> Record:
    """Every quantity of `facts` with a 95 % bootstrap interval, and the certificate."""
    with jax.enable_x64():
        arrays = [jnp.asarray(x) for x in (ratio, center, rewards)]
        weights = jnp.asarray(resamples(ratio.shape, dials.seed))
        knobs = {"sigma_eps": dials.sigma_eps, "clip_eps": dials.clip_eps}
        table = {k: np.asarray(v) for k, v in _bootstrap(weights, *arrays, **knobs).items()}
        limit = improvement_certificate(
            *arrays,
            eps_low=dials.clip_eps,
            eps_high=dials.clip_eps,
            reward_low=0.0,
            reward_high=1.0,
            delta=dials.delta,
            rates=RATES,
        )
    table |= {f"slack/{name}": table["gain"] - table[name] for name in BELOW}
    record: Record = {name: float(values[0]) for name, values in table.items()}
    for name, values in table.items():
        record[f"{name}/low"], record[f"{name}/high"] = np.quantile(values[1:], (0.025, 0.975))
    ess = ratio.sum() ** 2 / (ratio**2).sum() / ratio.size
    return {
        **record,
        "certificate/mean": float(limit.mean),
        "certificate": float(limit.bound),
        "ess": float(ess),
    }


def step_record(
    step: int, sample: HeldoutSample, ratio: Array, center: Array, dials: Dials
) -> Record:
    """One update: from pi_k to pi, judged on draws of mu."""
    rewards = np.asarray(sample.batch.rewards, np.float64)
    return {"part": "run", "step": step, **estimates(ratio, center, rewards, dials)}


def period_record(
    step: int, sample: HeldoutSample, after: HeldoutSample, ratio: Array, dials: Dials
) -> Record:
    """One server period: from mu to the policy that replaces it, whose J is sampled anew."""
    rewards, renewed = (np.asarray(s.batch.rewards, np.float64) for s in (sample, after))
    (old, old_error), (new, new_error) = mean_and_error(rewards), mean_and_error(renewed)
    error = float(np.hypot(old_error, new_error))
    return {
        "part": "period",
        "step": step,
        **estimates(ratio, np.ones_like(ratio), rewards, dials),
        "value/before": old,
        "value/before/error": old_error,
        "value/after": new,
        "value/after/error": new_error,
        "value/gain": new - old,
        "value/gain/low": new - old - Z95 * error,
        "value/gain/high": new - old + Z95 * error,
        "mismatch": sample.mismatch,
    }


def train_run(state: LoopState, parts: Parts, dials: Dials) -> Iterator[Record]:
    """Runs the loop, yielding one record a step and one a server period."""
    schedule, sample = parts.schedule, draw_sample(parts, state.server, 0)
    center = np.ones(sample.batch.rewards.shape)
    for turn, _ in train(state, parts):
        if turn.step == 0:
            continue
        params = snapshot(turn.train.params)
        ratio = ratios(parts, params, sample.batch)
        yield step_record(turn.step, sample, ratio, center, dials)
        center = ratio
        if turn.step % schedule.sync_interval == 0 or turn.step == schedule.steps:
            after = draw_sample(parts, params, turn.step)
            yield period_record(turn.step, sample, after, ratio, dials)
            sample, center = after, np.ones_like(ratio)
