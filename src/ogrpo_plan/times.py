"""The seconds of a step.

With a the seconds to draw a batch, s those of a push, u those of an update, c those of scoring a
batch, and v and i the schedule's sync interval and updates on each batch:

    drawing     A = a + s / v
    training    B = i u + c [i > 1] + c [reference]
    a step      max(A, B), or A + B where nothing is collected ahead (sync offset 0)

The policy pi_k is scored only where several updates are taken on a batch (`ogrpo.loop`).
"""

from statistics import NormalDist
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from ogrpo.kernels import attention
from ogrpo.policy import flops
from ogrpo_plan.config import ITEMSIZE, Plan


class Times(NamedTuple):
    """Seconds of a step and of its parts."""

    draw: float
    """a: a batch, all servers busy."""
    update: float
    """u: one update on a batch of the same size."""
    score: float
    """c: one scoring pass over a batch."""
    push: float
    """s: new weights to all servers."""
    drawing: float
    """A: a fresh batch, pushes included."""
    training: float
    """B: training on it."""
    step: float


def times(plan: Plan) -> Times:
    """Returns the seconds of a step, from the batch, the machines and their speeds."""
    config, batch, train, link = plan.model.decoder(), plan.batch, plan.train, plan.link
    tokens = batch.prompts * batch.group_size * float(lengths(plan).mean())
    draw = tokens / (plan.serve.servers * plan.serve.tokens_per_second)
    speed = train.devices * train.tflops * 1e12
    update = update_work(plan) / speed
    score = flops.forward_flops(config, _layout(plan), adapter=plan.model.adapter).total / speed
    gigabytes = flops.parameters(config).total * ITEMSIZE[plan.model.serve] / 1e9
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
    step = max(drawing, training) if schedule.sync_offset else drawing + training
    return Times(draw, update, score, push, drawing, training, step)


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
