"""The seconds of a step, and the speeds of this machine.

With a the seconds to draw a batch, s those of a push, u those of an update, c those of scoring a
batch, and v, r and i the schedule's sync interval, batches drawn from the buffer in a step and
updates on each:

    drawing     A = a + s / v
    training    B = r (i u + c [i > 1] + c [reference])
    a step      max(A, B), or A + B where nothing is collected ahead (sync offset 0)

The policy pi_k is scored only where several updates are taken on a batch (`ogrpo.loop`).
"""

import time
from dataclasses import replace
from statistics import NormalDist

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.data.batching import pad_groups
from ogrpo.kernels import attention, log_probs
from ogrpo.learner.state import adam, hypers, init_state
from ogrpo.learner.update import UpdateSpec, compute_in, make_update
from ogrpo.policy import flops, init_params
from ogrpo.policy.lora import merge, split
from ogrpo.protocol import Sampling
from ogrpo.serving.bridge import embedded_engine
from ogrpo.setup.devices import DTYPES, REMAT, make_policy_fn
from ogrpo_plan.config import ITEMSIZE, Plan

DRAWS = 4
"""Updates that `--preset reuse` takes with a completion; what it saves is in docs/reuse.md."""


def times(plan: Plan) -> dict[str, float]:
    """Returns the seconds of a step and its parts, and of an update with and without reuse.

    They follow from the batch, the machines and their speeds. With reuse a batch is drawn for each
    `DRAWS` updates, each of which takes as many completions.
    """
    config, schedule, mesh, link = plan.decoder(), plan.schedule, plan.mesh, plan.link
    tokens = schedule.prompts * plan.rollout.group_size * float(lengths(plan).mean())
    draw = tokens / (plan.serve.servers * plan.serve.tokens_per_second)
    speed = mesh.data * mesh.fsdp * mesh.tensor * plan.train.tflops * 1e12
    update = update_work(plan) / speed
    score = flops.forward_flops(config, _layout(plan), adapter=plan.adapter).total / speed
    gigabytes = flops.parameters(config) * ITEMSIZE[plan.serve.dtype] / 1e9
    copies = plan.serve.servers if link.sent == "each" else 1
    transfer = copies * gigabytes / link.gigabytes_per_second
    push = link.latency + link.seconds_per_gigabyte * gigabytes + transfer
    updates, scored = schedule.updates_per_batch, schedule.updates_per_batch > 1
    drawing = draw + push / schedule.sync_interval
    training = schedule.replay * (updates * update + score * (scored + plan.reference))
    fresh = draw * schedule.draw_size / schedule.prompts
    return {
        "draw a batch": draw,
        "one update": update,
        "score a batch": score,
        "push weights": push,
        "a step's drawing, with its share of a push": drawing,
        "a step's training": training,
        "a step": max(drawing, training) if schedule.sync_offset else drawing + training,
        "an update, each completion used once": fresh + update,
        f"an update, each drawn {DRAWS} times": fresh / DRAWS + update,
    }


def lengths(plan: Plan) -> NDArray[np.float64]:
    """Returns quantiles of the completions' lengths: a log-normal, cut at the longest one."""
    longest, normal = plan.longest_completion, NormalDist()
    sigma = np.sqrt(np.log1p(plan.lengths.spread**2))
    scores = np.array([normal.inv_cdf(u) for u in (np.arange(1_000) + 0.5) / 1_000])
    return (plan.mean_tokens * np.exp(sigma * scores - sigma**2 / 2)).clip(1, longest)


def update_work(plan: Plan) -> int:
    """FLOPs of one update on a batch whose completions are all at their longest."""
    layout = _layout(plan, microbatches=plan.optimizer.microbatches)
    how = {"remat": plan.model.remat, "adapter": plan.adapter}
    return flops.update_flops(plan.decoder(), layout, **how).total


def _layout(plan: Plan, microbatches: int = 1) -> flops.Workload:
    """Returns the batch's layout, by the attention of the planned devices or the measured ones."""
    platform = jax.default_backend() if plan.measure else "gpu"
    step = attention.step_of(plan.kernels.attention, plan.keys, platform)
    return flops.padded(**plan.shape, microbatches=microbatches, step=step)


HYPERS = hypers(1e-6, 1.0, {"eps_low": 0.2, "eps_high": 0.2, "beta": 0.0})
REPEATS = 3


def measured(plan: Plan) -> Plan:
    """Returns the plan with the speeds of this machine, the best of a few runs.

    Weights and prompts are random, and a group's rewards differ, so that each has a gradient.
    """
    decoder, sizes, key = plan.decoder(), plan.shape, jax.random.key(plan.seed)
    mix = attention.kernel(plan.kernels.attention)
    head = log_probs.kernel(log_probs.choose("auto", decoder.vocab_size))
    keep_fn = REMAT[plan.model.remat]
    policy_fn = make_policy_fn(decoder, keep_fn=keep_fn, attention_fn=mix, log_probs_fn=head)
    if plan.compute != plan.model.dtype:
        policy_fn = compute_in(policy_fn, DTYPES[plan.compute])
    spec = UpdateSpec(
        policy_fn=policy_fn,
        algorithm=ALGORITHMS["off_policy_grpo"],
        reads=frozenset(),
        metrics_fn=lambda *_: {},
        microbatches=plan.optimizer.microbatches,
    )
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    update = make_update(optimizer, spec)
    params, frozen = init_params(decoder, key, DTYPES[plan.model.dtype]), ()
    if plan.adapter is not None:  # which alone is trained
        rank, targets = plan.adapter
        key = jax.random.key(plan.seed + 1)
        params, frozen = split(params, key, rank=rank, alpha=1.0, targets=targets)
    state = init_state(params, optimizer, frozen=frozen)
    engine = embedded_engine(
        decoder, eos_id=0, batch_size=plan.serve.groups_per_call, prompt_length=sizes["p"]
    )
    dtype = DTYPES[plan.serve.dtype]
    served = jax.tree.map(lambda x: jnp.array(x, dtype, copy=True), merge(state.whole()))
    engine.publish(jax.block_until_ready(served), 0)
    sampling = Sampling(temperature=1.0, max_tokens=sizes["t"], group_size=sizes["g"])
    shape = (sizes["n"], sizes["p"])
    rewards = np.tile(np.arange(sizes["g"], dtype=np.float32) % 2, (sizes["n"], 1))
    best_draw, best_update, groups = np.inf, np.inf, []
    for repeat in range(1 + REPEATS):  # the first one compiles
        rng = np.random.default_rng([plan.seed, repeat])
        prompts = list(rng.integers(1, decoder.vocab_size, shape, dtype=np.int32))
        begun = time.perf_counter()
        groups = engine.generate(prompts, sampling, repeat)
        drawn = time.perf_counter()
        padded = pad_groups(groups, sizes["p"], sizes["t"], rewards=rewards)
        state, _ = update(state, jax.tree.map(jnp.asarray, padded), HYPERS)
        jax.block_until_ready(state)
        if repeat:
            best_draw = min(best_draw, drawn - begun)
            best_update = min(best_update, time.perf_counter() - drawn)
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    train = replace(plan.train, tflops=update_work(plan) / best_update / 1e12)
    serve = replace(plan.serve, tokens_per_second=tokens / best_draw)
    return replace(plan, train=train, serve=serve)
