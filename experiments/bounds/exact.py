"""The enumerable half of `bounds`: a bandit trained by the very update, judged without sampling.

Every prompt has a table of logits over a few answers, so that J and every bound are finite sums,
taken in float64 at each step. Only the training batches and the certificate's fresh draws are
random.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge, Interval
from numpy.typing import NDArray

from ogrpo.batch import Batch, PolicyOutput, tokens_only
from ogrpo.config.train import TrainConfig
from ogrpo.core import bounds
from ogrpo.core.certificates import Certificate, betting_confidence, improvement_gap
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.learner.update import UpdateFn, make_update
from ogrpo.policy import Params
from ogrpo.setup.build import make_optimizer, make_spec
from ogrpo.system.values import Count, NonNegative

Table = NDArray[np.float64]
Record = dict[str, Any]
Several = Annotated[int, Ge(2)]
RATES = (0.01, 0.03, 0.1, 0.3)
"""The certificate's rates, chosen before anything is drawn."""


@dataclass(frozen=True)
class Constants:
    """Constants of the bounds and of the certificate."""

    clip_eps: NonNegative = 0.2
    """Width of the clip, on both sides."""
    sigma_eps: Annotated[float, Interval(gt=0, le=0.75)] = 0.01
    """Added to the reward's variance before the root is taken; the published bound needs some, and
    at most 0.75."""
    delta: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    """Chance of one certificate to be wrong."""


@dataclass(frozen=True)
class Bandit:
    """A handful of prompts with few answers each."""

    steps: Count = 80
    v: Count = 10
    """Steps between two renewals of the sampler's table."""
    prompts: Count = 8
    answers: Several = 16
    group_size: Count = 8
    learning_rate: float = 0.12
    draws: Count = 512
    """Fresh answers to each prompt for the certificate of one step."""


class Move(NamedTuple):
    """One update: who sampled, where it began, where it ended; probabilities [N, Y]."""

    step: int
    mu: Table
    before: Table
    after: Table


def bandit_rewards(bandit: Bandit) -> Table:
    """Returns 0/1 rewards [N, Y]: prompt n has n + 1 right answers, never all."""
    right = np.minimum(np.arange(bandit.prompts) + 1, bandit.answers - 1)
    return (np.arange(bandit.answers) < right[:, None]).astype(np.float64)


def table_policy(
    params: Params, batch: Batch[jax.Array], temperature: jax.Array
) -> PolicyOutput[jax.Array]:
    """Returns log softmax(table[prompt] / T) of the one token that is an answer."""
    logits = params["table"][batch.prompt_ids[:, 0]] / temperature
    log_probs = jax.nn.log_softmax(logits, axis=-1)[:, None, None, :]
    log_probs = jnp.broadcast_to(log_probs, (*batch.completion_ids.shape, logits.shape[-1]))
    picked = jnp.take_along_axis(log_probs, batch.completion_ids[..., None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    return PolicyOutput(log_probs=picked, entropy=entropy)


def bandit_learner(bandit: Bandit, config: TrainConfig) -> tuple[UpdateFn, TrainState]:
    """Returns the main study's update with a table for its decoder, and random first logits."""
    optimizer = make_optimizer(config)
    shape = (bandit.prompts, bandit.answers)
    table = np.random.default_rng([config.seed, 2]).normal(size=shape).astype(np.float32)
    update = make_update(optimizer, make_spec(config, table_policy))
    return update, init_state({"table": jnp.asarray(table)}, optimizer)


def softmax(table: NDArray[Any]) -> Table:
    """Returns probabilities [N, Y] in float64."""
    raised = np.exp(table.astype(np.float64) - table.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def draw(probs: Table, count: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Draws `count` independent answers to each prompt, [N, count]."""
    sizes = probs.shape[-1]
    return np.stack([rng.choice(sizes, count, p=row) for row in probs]).astype(np.int32)


def make_batch(table: NDArray[Any], rewards: Table, ids: NDArray[np.int32]) -> Batch[jax.Array]:
    """Returns answers as completions of one token, with the sampler's log-probs."""
    prompts = np.arange(len(table), dtype=np.int32)[:, None]
    logs = np.log(np.take_along_axis(softmax(table), ids, axis=-1)).astype(np.float32)
    earned = np.take_along_axis(rewards, ids, axis=-1).astype(np.float32)
    one_token = tokens_only(
        prompt_ids=prompts,
        prompt_mask=np.ones(prompts.shape, bool),
        completion_ids=ids[..., None],
        completion_mask=np.ones((*ids.shape, 1), bool),
    )
    batch = one_token._replace(behavior_log_probs=logs[..., None], rewards=earned)
    return jax.tree.map(jnp.asarray, batch)


def trajectory(
    bandit: Bandit, update: UpdateFn, state: TrainState, *, clip_eps: float, seed: int
) -> Iterator[Move]:
    """Trains the table off policy; the sampler's copy is renewed every `v` steps."""
    rng, rewards = np.random.default_rng([seed, 0]), bandit_rewards(bandit)
    band = {"eps_low": clip_eps, "eps_high": clip_eps, "beta": 0.0}
    knobs = hypers(bandit.learning_rate, 1.0, band)
    table = np.array(state.params["table"])
    server = table
    for step in range(bandit.steps):
        server = table if step % bandit.v == 0 else server
        ids = draw(softmax(server), bandit.group_size, rng)
        state, _ = update(state, make_batch(server, rewards, ids), knobs)
        moved = np.array(state.params["table"])
        yield Move(step + 1, softmax(server), softmax(table), softmax(moved))
        table = moved


def facts(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, constants: Constants
) -> dict[str, jax.Array]:
    """Returns the gain of one prompt's update and the bounds below it, all arrays [Y]."""
    eps, three = constants.sigma_eps, (pi, pi_k, mu, rewards)
    sigma = bounds.reward_scale(mu, rewards, eps=eps)

    def clipped_increase(center: jax.Array) -> jax.Array:
        clip_eps = constants.clip_eps
        gain = partial(bounds.clipped_gain, eps=eps, clip_eps=clip_eps, center=center)
        return sigma * (gain(pi, mu, rewards) - gain(pi_k, mu, rewards))

    return {
        "gain": bounds.improvement_identity(*three, eps=eps),
        "mm": clipped_increase(bounds.density_ratio(pi_k, mu)),
        "mm/unit_center": clipped_increase(jnp.ones_like(mu)),
        "sharp": bounds.sharp_bound(*three, eps=eps),
        "stale": bounds.stale_bound(*three, eps=eps),
        "published": bounds.published_bound(*three, eps=eps),
        "sigma": sigma,
        "tv": bounds.total_variation(pi, mu),
    }


def enumerated(
    pi: jax.Array, pi_k: jax.Array, mu: jax.Array, rewards: jax.Array, constants: Constants
) -> dict[str, jax.Array]:
    """Returns `facts` and what only enumeration adds: J itself, the certificate's mean."""
    ratio, center = bounds.density_ratio(pi, mu), bounds.density_ratio(pi_k, mu)
    gap = improvement_gap(ratio, center, rewards, **of_gap(constants))
    return {
        **facts(pi, pi_k, mu, rewards, constants),
        "value": pi @ rewards,
        "value/gain": (pi - pi_k) @ rewards,
        "certificate/mean": mu @ gap,
    }


def of_gap(constants: Constants) -> dict[str, float]:
    """Returns the knobs of the certificate's terms."""
    eps = constants.clip_eps
    return {"eps_low": eps, "eps_high": eps, "reward_low": 0.0, "reward_high": 1.0}


def certificate(ratio: Any, center: Any, rewards: Any, constants: Constants) -> Certificate:
    """Returns the lower confidence limit of the gain from fresh draws of the sampler."""
    arrays = [jnp.asarray(x) for x in (ratio, center, rewards)]
    gaps = improvement_gap(*arrays, **of_gap(constants))
    return betting_confidence(gaps, floor=1.0, delta=constants.delta, rates=RATES)


BELOW = ("mm", "sharp", "stale", "published", "certificate/mean", "mm/unit_center")
"""Bounds whose least slack over the prompts is kept; the last is no theorem."""


def train_bandit(bandit: Bandit, config: TrainConfig, constants: Constants) -> Iterator[Record]:
    """Yields a record a step: means over the prompts, the worst slacks, the certificate."""
    rewards = bandit_rewards(bandit)
    judge = jax.jit(jax.vmap(partial(enumerated, constants=constants)))
    update, state = bandit_learner(bandit, config)
    moves = trajectory(bandit, update, state, clip_eps=constants.clip_eps, seed=config.seed)
    for move in moves:
        with jax.enable_x64():
            arrays = [jnp.asarray(x) for x in (move.after, move.before, move.mu, rewards)]
            values = {name: np.asarray(x) for name, x in judge(*arrays).items()}
            rng = np.random.default_rng([config.seed, 1, move.step])
            ids = draw(move.mu, bandit.draws, rng)
            drawn = (np.take_along_axis(x, ids, axis=-1) for x in (*move[1:], rewards))
            mu, before, after, earned = drawn
            limit = certificate(after / mu, before / mu, earned, constants)
        gain = values["value/gain"]
        yield {
            "part": "bandit",
            "step": move.step,
            **{name: float(x.mean()) for name, x in values.items()},
            **{f"slack/{name}": float(np.min(gain - values[name])) for name in BELOW},
            "identity_error": float(np.max(np.abs(gain - values["gain"]))),
            "certificate": float(limit.bound),
            "by_prompt": {name: values[name].tolist() for name in ("sigma", "published")},
        }
