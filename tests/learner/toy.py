"""A bandit with a token axis: a policy whose log-probs are one table lookup away."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ogrpo.batch import Batch, PolicyOutput
from ogrpo.core import advantages, aggregate
from ogrpo.core.algorithms import BEHAVIOR, PROXIMAL, REFERENCE, Algorithm, Knob
from ogrpo.core.objectives import off_policy_grpo
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.learner.update import Recipe, make_update

V = 5
GRADIENT = optax.identity()
KNOBS = {"eps_low": 0.2, "eps_high": 0.3, "beta": 0.1}
TOTALS = {
    "token": aggregate.token_total,
    "sequence": aggregate.sequence_total,
    "sequence_sum": aggregate.sequence_sum_total,
    "fixed_length": partial(aggregate.fixed_length_total, length=7),
    "group": aggregate.group_total,
}


def policy_fn(params, batch, temperature) -> PolicyOutput:
    """log softmax(table[last prompt token] / T) of each completion token, whatever came before."""
    table = params["table"][batch.prompt_ids[:, -1]] / temperature
    log_probs = jax.nn.log_softmax(table, axis=-1)[:, None, None, :]
    log_probs = jnp.broadcast_to(log_probs, (*batch.completion_ids.shape, V))
    picked = jnp.take_along_axis(log_probs, batch.completion_ids[..., None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(log_probs) * log_probs, axis=-1)
    mask = batch.completion_mask
    picked, entropy = (jnp.where(mask, x, 0.0) for x in (picked, entropy))
    return PolicyOutput(log_probs=picked, entropy=entropy)


def make_params() -> dict:
    return {"table": jnp.asarray(np.random.default_rng(0).normal(size=(V, V)), jnp.float32)}


def make_batch(n: int = 4, g: int = 3, t: int = 6, seed: int = 1) -> Batch:
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, (n, g)).astype(np.float32)
    rewards[0], rewards[1:2, :2] = 1.0, (0.0, 1.0)  # one group without variance, one with
    lengths = rng.integers(1, t + 1, (n, g))
    mask = jnp.asarray(np.arange(t) < lengths[..., None])
    return Batch(
        prompt_ids=jnp.asarray(rng.integers(0, V, (n, 2)), jnp.int32),
        prompt_mask=jnp.ones((n, 2), bool),
        completion_ids=jnp.asarray(rng.integers(0, V, (n, g, t)), jnp.int32),
        completion_mask=mask,
        loss_mask=mask,
        behavior_log_probs=jnp.asarray(rng.normal(-1.6, 0.3, (n, g, t)), jnp.float32),
        rewards=jnp.asarray(rewards),
        policy_versions=jnp.zeros((n, g), jnp.int32),
        proximal_log_probs=jnp.asarray(rng.normal(-1.6, 0.2, (n, g, t)), jnp.float32),
        ref_log_probs=jnp.asarray(rng.normal(-1.6, 0.2, (n, g, t)), jnp.float32),
    )


TOY = Algorithm(
    "toy",
    off_policy_grpo,
    advantages.centered,
    reads=frozenset({BEHAVIOR, PROXIMAL}),
    knobs={name: Knob(0.2, "here") for name in ("eps_low", "eps_high", "beta")},
)


def make_recipe(*, reduction=aggregate.sequence_total, **changes) -> Recipe:
    recipe = Recipe(
        policy_fn=policy_fn,
        algorithm=replace(TOY, reduction=reduction),
        reads=TOY.reads | {REFERENCE},
        mask_zero_variance=True,
        count_masked=True,
    )
    return recipe._replace(**changes)


def updated(
    batch=None, hyper=None, *, optimizer=GRADIENT, region=None, **recipe
) -> tuple[TrainState, dict]:
    """The state and the metrics after one update of the toy policy."""
    region = () if region is None else jnp.float32(region)
    state = init_state(make_params(), optimizer, region=region)
    hyper = hyper or hypers(1.0, 1.0, KNOBS)
    return make_update(optimizer, make_recipe(**recipe))(state, batch or make_batch(), hyper)
