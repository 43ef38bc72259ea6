"""The speeds of this machine, by the embedded sampler and the update of the planned model."""

import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.data.batching import pad_groups
from ogrpo.kernels import attention
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import Recipe, compute_in, make_update
from ogrpo.policy import init_params
from ogrpo.policy.lora import merge, split
from ogrpo.protocol import Sampling
from ogrpo.serving.bridge import embedded_engine
from ogrpo.setup.devices import DTYPES, REMAT, make_policy_fn
from ogrpo_plan.config import Plan
from ogrpo_plan.times import update_work

HYPERS = hypers(1e-6, 1.0, {"eps_low": 0.2, "eps_high": 0.2, "beta": 0.0})
REPEATS = 3


def measured(plan: Plan) -> Plan:
    """Returns the plan with the speeds of this machine, the best of a few runs.

    Weights and prompts are random, and a group's rewards differ, so that each has a gradient.
    """
    decoder, sizes, key = plan.model.decoder(), plan.batch, jax.random.key(plan.seed)
    mix = attention.kernel(plan.train.attention)
    policy_fn = make_policy_fn(decoder, keep_fn=REMAT[plan.train.remat], attention_fn=mix)
    if plan.model.compute != plan.model.params:
        policy_fn = compute_in(policy_fn, DTYPES[plan.model.compute])
    recipe = Recipe(
        policy_fn=policy_fn,
        algorithm=ALGORITHMS["off_policy_grpo"],
        reads=frozenset(),
        metrics_fn=lambda *_: {},
        microbatches=plan.train.parts,
    )
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    update = make_update(optimizer, recipe)
    params, frozen = init_params(decoder, key, DTYPES[plan.model.params]), None
    if plan.model.adapter is not None:  # which alone is trained
        rank, targets = plan.model.adapter
        key = jax.random.key(plan.seed + 1)
        params, frozen = split(params, key, rank=rank, alpha=1.0, targets=targets)
    state = init_state(params, optimizer, frozen=frozen)
    engine = embedded_engine(
        decoder,
        eos_id=0,
        batch_size=plan.serve.groups_per_call,
        prompt_length=sizes.prompt_length,
    )
    served = jax.tree.map(
        lambda x: jnp.array(x, DTYPES[plan.model.serve], copy=True), merge(state.whole())
    )
    engine.publish(jax.block_until_ready(served), 0)
    sampling = Sampling(temperature=1.0, max_tokens=sizes.max_tokens, group_size=sizes.group_size)
    shape = (sizes.prompts, sizes.prompt_length)
    rewards = np.tile(np.arange(sizes.group_size, dtype=np.float32) % 2, (sizes.prompts, 1))
    best_draw, best_update, groups = np.inf, np.inf, []
    for repeat in range(1 + REPEATS):  # the first one compiles
        rng = np.random.default_rng([plan.seed, repeat])
        prompts = list(rng.integers(1, decoder.vocab_size, shape, dtype=np.int32))
        begun = time.perf_counter()
        groups = engine.generate(prompts, sampling, repeat)
        drawn = time.perf_counter()
        padded = pad_groups(groups, sizes.prompt_length, sizes.max_tokens, rewards=rewards)
        state, _ = update(state, jax.tree.map(jnp.asarray, padded), HYPERS)
        jax.block_until_ready(state)
        if repeat:
            best_draw = min(best_draw, drawn - begun)
            best_update = min(best_update, time.perf_counter() - drawn)
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    return replace(
        plan,
        train=replace(plan.train, tflops=update_work(plan) / best_update / 1e12),
        serve=replace(plan.serve, tokens_per_second=tokens / best_draw),
    )
