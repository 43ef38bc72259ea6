"""Measurements of the cells of `bounds`: records, of which claims and plots are made.

What is enumerated is of `exact`; the default run's completions nobody can enumerate:

    mu, the sampler of one server period -> completions the trainer never sees -> rewards
    -> log-probs under mu and every policy of the period -> sequence ratios -> estimates

One sample serves a whole period, so that its steps are judged on common draws; the next period's
sample measures J of the policy that the period ended with, independently of all its estimates.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from experiments.bounds.exact import Bandit, Constants, Record, certificate, facts, train_bandit
from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.grid.train import Bench
from ogrpo.batch import Batch
from ogrpo.config.train import TrainConfig
from ogrpo.core.ratios import exp_ratio, sequence_log_ratio
from ogrpo.data.batching import pad_groups
from ogrpo.evaluation import Z95
from ogrpo.loop import Parts, snapshot, start, stream_seed, train
from ogrpo.loop.evaluate import withdraw
from ogrpo.policy import Params

Array = NDArray[np.float64]
RESAMPLES = 200
LOWER = ("mm", "sharp", "stale", "published")
"""Bounds that must not exceed the gain; the certificate has a confidence of its own."""


@dataclass(frozen=True)
class BanditRun:
    """The main study's update on a table, every sum enumerated."""

    train: TrainConfig
    bandit: Bandit
    constants: Constants


@dataclass(frozen=True)
class SampledRun:
    """The default task, its inequalities estimated from fresh samples."""

    train: TrainConfig
    constants: Constants


def bandit(cell: Cell, _: Bench) -> Record:
    """Returns a record a step, exact."""
    run: BanditRun = cell.config
    return {"records": [*train_bandit(run.bandit, run.train, run.constants)]}


class HeldoutSample(NamedTuple):
    """Fresh completions of the held-out prompts by one sampler, with its own log-probs."""

    batch: Batch[jax.Array]
    mismatch: float
    """Largest |log mu| difference of a token between sampler and trainer, in nats."""


def draw_sample(parts: Parts, params: Params, step: int) -> HeldoutSample:
    """Draws completions that no update will see, scored by the trainer's own forward pass."""
    engine, sampling = parts.evaluator.engine, parts.evaluator.sampling
    engine.publish(params, step)
    seed = stream_seed(parts.seed, "bounds", step)
    groups = engine.generate(parts.prompts.heldout, sampling, seed)
    withdraw(engine)
    rewards = parts.evaluator.judge(groups).rewards
    padded = pad_groups(groups, parts.prompts.length, sampling.max_tokens, rewards=rewards)
    batch: Batch[jax.Array] = jax.tree.map(jnp.asarray, padded)
    log_probs = score(parts, params, batch)
    apart = jnp.abs(log_probs - batch.behavior_log_probs)
    apart = jnp.where(batch.completion_mask, apart, 0)
    scored = batch._replace(behavior_log_probs=log_probs)
    return HeldoutSample(batch=scored, mismatch=float(jnp.max(apart)))


def score(parts: Parts, params: Params, batch: Batch[jax.Array]) -> jax.Array:
    """Returns the trainer's log-probs [N, G, T] at the sampling temperature."""
    return parts.learner.score(params, batch, jnp.float32(parts.evaluator.sampling.temperature))


def ratios(parts: Parts, params: Params, batch: Batch[jax.Array]) -> Array:
    """Returns pi/mu of whole completions, [N, G]."""
    log_probs = score(parts, params, batch)
    logs = sequence_log_ratio(log_probs, batch.behavior_log_probs, batch.active_mask)
    return np.asarray(exp_ratio(logs)[..., 0], np.float64)


def plug_in(
    weights: jax.Array,
    ratio: jax.Array,
    center: jax.Array,
    rewards: jax.Array,
    constants: Constants,
) -> dict[str, jax.Array]:
    """Returns `facts` of the empirical distributions, means over prompts; all arguments [N, G].

    Two outcomes without mass, of reward 0 and 1, tell the bounds the rewards' range.
    """
    nothing = jnp.zeros((len(ratio), 2), ratio.dtype)
    known = jnp.broadcast_to(jnp.array([0.0, 1.0], ratio.dtype), nothing.shape)
    masses = (weights * ratio, weights * center, weights)
    pi, pi_k, mu = (jnp.concatenate((mass, nothing), axis=1) for mass in masses)
    known = jnp.concatenate((rewards, known), axis=1)
    values = jax.vmap(partial(facts, constants=constants))(pi, pi_k, mu, known)
    return {name: jnp.mean(value) for name, value in values.items()}


@partial(jax.jit, static_argnames="constants")
def bootstrap(weights: jax.Array, *sample: jax.Array, constants: Constants) -> Any:
    """Returns `plug_in` of ratios, centres and rewards at each of several weights."""

    def one(w: jax.Array) -> dict[str, jax.Array]:
        return plug_in(w, *sample, constants=constants)

    return jax.lax.map(one, weights, batch_size=20)


def estimates(
    ratio: Array, center: Array, rewards: Array, constants: Constants, seed: int
) -> Record:
    """Returns every quantity of `facts` with a 95 % bootstrap interval, and the certificate.

    Completions are drawn anew within each prompt.
    """
    rng, (prompts, size) = np.random.default_rng([seed, 4]), ratio.shape
    counts = rng.multinomial(size, np.full(size, 1 / size), size=(RESAMPLES, prompts))
    weights = np.concatenate([np.ones((1, prompts, size)), counts]) / size
    with jax.enable_x64():
        arrays = [jnp.asarray(x) for x in (weights, ratio, center, rewards)]
        table = {k: np.asarray(v) for k, v in bootstrap(*arrays, constants=constants).items()}
        limit = certificate(ratio, center, rewards, constants)
    table |= {f"slack/{name}": table["gain"] - table[name] for name in LOWER}
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


def change_between(before: HeldoutSample, after: HeldoutSample) -> Record:
    """Returns J of two samplers and its change, with standard errors given the prompts."""
    values = [np.asarray(sample.batch.rewards, np.float64) for sample in (before, after)]
    old, new = (float(each.mean()) for each in values)
    variances = [each.var(axis=1, ddof=1) / each.shape[1] for each in values]
    old_error, new_error = (float(np.sqrt(each.sum()) / len(each)) for each in variances)
    half = Z95 * float(np.hypot(old_error, new_error))
    return {
        "value/before": old,
        "value/before/error": old_error,
        "value/after": new,
        "value/after/error": new_error,
        "value/gain": new - old,
        "value/gain/low": new - old - half,
        "value/gain/high": new - old + half,
        "mismatch": before.mismatch,
    }


def sampled(cell: Cell, bench: Bench) -> Record:
    """Returns a record a step and one a server period, estimated.

    A step's is from pi_k to pi on draws of mu, a period's from mu to the policy that replaces it.
    """
    run: SampledRun = cell.config
    records: list[Record] = []
    with bench.parts(run.train) as (_, parts, first):
        state, schedule = start(first, parts), parts.schedule
        sample = draw_sample(parts, state.server, 0)
        unit = center = np.ones(sample.batch.rewards.shape)
        for turn, _ in train(state, parts):
            if turn.step == 0:
                continue
            params = snapshot(turn.train.params)
            ratio = ratios(parts, params, sample.batch)
            rewards = np.asarray(sample.batch.rewards, np.float64)
            step = estimates(ratio, center, rewards, run.constants, cell.seed)
            records.append({"part": "run", "step": turn.step, **step})
            center = ratio
            if turn.step % schedule.sync_interval == 0 or turn.step == schedule.steps:
                after = draw_sample(parts, params, turn.step)
                period = estimates(ratio, unit, rewards, run.constants, cell.seed)
                change = change_between(sample, after)
                records.append({"part": "period", "step": turn.step, **period, **change})
                sample, center = after, unit
    return {"records": rounded(records)}
