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
from ogrpo.core.trust_region import dual_penalty
from ogrpo.learner.state import TrainState, adam, hypers, init_state
from ogrpo.learner.update import UpdateSpec, make_update

V = 5
GRADIENT = optax.identity()
ADAM = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.01, max_grad_norm=1.0)
REGION = partial(dual_penalty, delta=0.01, rate=0.5, initial=0.25)
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


def make_groups(seed=1, n=4, g=3, p=2, t=6, *, vocab=V, shortest=1, loss=1.0) -> Batch:
    """Ragged groups on the host, one without variance and one with; that share of tokens has loss."""
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, (n, g)).astype(np.float32)
    rewards[0], rewards[1:2, :2] = 1.0, (0.0, 1.0)
    mask = np.arange(t) < rng.integers(shortest, t + 1, (n, g))[..., None]
    return Batch(
        prompt_ids=rng.integers(0, vocab, (n, p)).astype(np.int32),
        completion_ids=rng.integers(0, vocab, (n, g, t)).astype(np.int32),
        completion_mask=mask,
        behavior_log_probs=rng.normal(-np.log(vocab), 0.3, (n, g, t)).astype(np.float32),
        rewards=rewards,
        policy_versions=np.zeros((n, g), np.int32),
        proximal_log_probs=rng.normal(-np.log(vocab), 0.2, (n, g, t)).astype(np.float32),
        ref_log_probs=rng.normal(-np.log(vocab), 0.2, (n, g, t)).astype(np.float32),
        prompt_mask=np.arange(p) < rng.integers(1, p + 1, n)[:, None],
        loss_mask=mask & (rng.random(mask.shape) < loss),
    )


def make_batch(**sizes) -> Batch:
    return jax.tree.map(jnp.asarray, make_groups(**sizes))


def bits(tree):
    """Each leaf as something that is equal to the same bits alone."""
    return jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()), tree)


TOY = Algorithm(
    "toy",
    off_policy_grpo,
    advantages.centered,
    reads=frozenset({BEHAVIOR, PROXIMAL}),
    knobs={name: Knob(0.2, "here") for name in ("eps_low", "eps_high", "beta")},
)


def make_spec(*, reduction=aggregate.sequence_total, **changes) -> UpdateSpec:
    spec = UpdateSpec(
        policy_fn=policy_fn,
        algorithm=replace(TOY, reduction=reduction),
        reads=TOY.reads | {REFERENCE},
        mask_zero_variance=True,
        count_masked=True,
    )
    return spec._replace(**changes)


def make_state(optimizer=GRADIENT, *, region_fn=None, **_) -> TrainState:
    """The state before the first update, of a spec with these changes."""
    region = () if region_fn is None else region_fn(off_policy_grpo).init()
    return init_state(make_params(), optimizer, region=region)


def updated(batch=None, hyper=None, *, optimizer=GRADIENT, **spec) -> tuple[TrainState, dict]:
    """The state and the metrics after one update of the toy policy."""
    update = make_update(optimizer, make_spec(**spec))
    batch, hyper = batch or make_batch(), hyper or hypers(1.0, 1.0, KNOBS)
    return update(make_state(optimizer, **spec), batch, hyper)
