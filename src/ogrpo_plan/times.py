"""The seconds of a step.

With a the seconds to draw a batch, s those of a push, u those of an update, c those of scoring a
batch, and v and i the schedule's sync interval and updates on each batch:

    drawing     A = a + s / v
    training    B = i u + c [i > 1] + c [reference]
    a step      max(A, B), or A + B where nothing is collected ahead (sync offset 0)

The policy pi_k is scored only where several updates are taken on a batch (`ogrpo.loop`).
"""

from statistics import NormalDist

import jax
import numpy as np
from numpy.typing import NDArray

from ogrpo.kernels import attention
from ogrpo.policy import flops
from ogrpo_plan.config import ITEMSIZE, Plan

DRAWS = 8
"""Of `--preset reuse`; what it saves in completions is in docs/reuse.md."""


def times(plan: Plan) -> dict[str, float]:
    """Returns the seconds of a step and its parts, and of an update with and without reuse.

    They follow from the batch, the machines and their speeds. With reuse a batch is drawn for each
    `DRAWS` updates, each of which takes as many completions.
    """
    config, batch, train, link = plan.model.decoder(), plan.batch, plan.train, plan.link
    tokens = batch.prompts * batch.group_size * float(lengths(plan).mean())
    draw = tokens / (plan.serve.servers * plan.serve.tokens_per_second)
    speed = train.devices * train.tflops * 1e12
    update = update_work(plan) / speed
    score = flops.forward_flops(config, _layout(plan), adapter=plan.model.adapter).total / speed
    gigabytes = flops.parameters(config) * ITEMSIZE[plan.model.serve] / 1e9
    copies = plan.serve.servers if link.sent == "each" else 1
    push = (
        link.latency
        + link.seconds_per_gigabyte * gigabytes
        + copies * gigabytes / link.gigabytes_per_second
    )
    schedule = plan.schedule
    updates = schedule.updates_per_batch
    drawing = draw + push / schedule.sync_interval
    training = updates * update + score * ((updates > 1) + train.reference)
    return {
        "draw a batch": draw,
        "one update": update,
        "score a batch": score,
        "push weights": push,
        "a step's drawing, with its share of a push": drawing,
        "a step's training": training,
        "a step": max(drawing, training) if schedule.sync_offset else drawing + training,
        "an update, each completion used once": draw + update,
        f"an update, each drawn {DRAWS} times": draw / DRAWS + update,
    }


def lengths(plan: Plan) -> NDArray[np.float64]:
    """Returns quantiles of the completions' lengths: a log-normal, cut at the longest one."""
    batch, normal = plan.batch, NormalDist()
    sigma = np.sqrt(np.log1p(batch.spread**2))
    scores = np.array([normal.inv_cdf(u) for u in (np.arange(1_000) + 0.5) / 1_000])
    return (batch.mean_tokens * np.exp(sigma * scores - sigma**2 / 2)).clip(1, batch.max_tokens)


def update_work(plan: Plan) -> int:
    """FLOPs of one update on a batch whose completions are all at their longest."""
    layout, model = _layout(plan, microbatches=plan.train.parts), plan.model
    how = {"remat": plan.train.remat, "adapter": model.adapter}
    return flops.update_flops(model.decoder(), layout, **how).total


def _layout(plan: Plan, microbatches: int = 1) -> flops.Layout:
    """Returns the batch's layout, by the attention of the planned devices or the measured ones."""
    keys = plan.batch.prompt_length + plan.batch.max_tokens
    platform = jax.default_backend() if plan.measure else "gpu"
    step = attention.step_of(plan.train.attention, keys, platform)
    return flops.padded(**plan.batch.shape, microbatches=microbatches, step=step)
