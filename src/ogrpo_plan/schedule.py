"""The time of a step, and the schedule that is recommended.

With a the seconds to draw a batch, s those of a push, u those of an update, c those of scoring a
batch, and one side drawing while the other trains (lead >= 1):

    drawing     A = a + s / v
    training    B = replay (i u + c [i > 1] + c [reference])
    a step      max(A, B), or A + B without overlap (lead = 0)

The policy pi_k is scored only where several updates are taken on a batch (`ogrpo.loop`). The
rule, k being the updates on each fresh group and x `limits.idle`:

1.  v is the smallest with s / v <= x max(a, u): pushes cost at most the share x of a step. It is
    held at M - lead + 1, M being `limits.max_staleness`, because fresh samples reach the staleness
    lead + v - 1.
2.  k is the smallest with B >= (1 - x) A, so that the trainer idles at most the share x; one less
    (but at least 1) if that leaves the servers idle for more than x, B > A / (1 - x): updates on
    samples that are there are free as long as nobody waits for them. It is held at
    `limits.max_updates`. Without overlap (lead = 0) no update is free, and k = 1.
3.  Where the buffer holds at least two batches and the staleness allows them, the k updates are on
    k batches drawn from it (i = 1, replay = k), otherwise on the fresh one (i = k, replay = 1).
    Only as many batches b are drawn from as keep lead + v - 1 + (b - 1) <= M.

Staleness of what is trained on, in steps, with b = 1 where nothing is replayed: mean lead +
(v - 1) / 2 + (b - 1) / 2, at most lead + v - 1 + b - 1.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from ogrpo.kernels import attention
from ogrpo.policy import flops
from ogrpo_plan.config import ITEMSIZE, Plan, PlanLimits
from ogrpo_plan.simulation import Lengths


class Times(NamedTuple):
    """Seconds of the parts of a step."""

    draw: float
    """a: a batch, all servers busy."""
    update: float
    """u: one update on a batch of the same size."""
    score: float
    """c: one scoring pass over a batch."""
    push: float
    """s: new weights to all servers."""


def lengths(plan: Plan) -> Lengths:
    """Returns the distribution of the completions' lengths."""
    batch = plan.batch
    return Lengths(mean=batch.mean_tokens, spread=batch.spread, longest=batch.max_tokens)


def times(plan: Plan) -> Times:
    """Returns the seconds of each part, from the batch, the machines and their speeds."""
    config, batch, train, link = plan.model.decoder(), plan.batch, plan.train, plan.link
    tokens = batch.prompts * batch.group_size * lengths(plan).expected_longest(1)
    speed = train.devices * train.tflops * 1e12
    work = update_work(plan)
    copies = plan.serve.servers if link.sent == "each" else 1
    return Times(
        draw=tokens / (plan.serve.servers * plan.serve.tokens_per_second),
        update=work / speed,
        score=flops.forward_flops(config, _layout(plan), adapter=plan.model.adapter).total / speed,
        push=push_besides(plan) + copies * sent_gigabytes(plan) / link.gigabytes_per_second,
    )


def sent_gigabytes(plan: Plan) -> float:
    """Size of the weights as they are sent, in 10^9 bytes."""
    return flops.parameters(plan.model.decoder()).total * ITEMSIZE[plan.model.serve] / 1e9


def push_besides(plan: Plan) -> float:
    """Seconds of a push that do not depend on the number of servers."""
    return plan.link.latency + plan.link.seconds_per_gigabyte * sent_gigabytes(plan)


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


class PlannedSchedule(NamedTuple):
    """The recommended schedule, and what follows from it."""

    lead: int
    v: int
    i: int
    replay: int
    """Batches trained on for each fresh one; i updates on each."""
    batches: int
    """Batches of the buffer that are drawn from."""
    draw_seconds: float
    """A: a fresh batch, pushes included."""
    train_seconds: float
    """B: training on it."""
    step_seconds: float
    push_share: float
    """Of drawing, s / (v A)."""
    trainer_idle: float
    servers_idle: float
    staleness_mean: float
    staleness_max: int
    notes: tuple[str, ...]
    """Which limits bind, and the remedy."""

    @property
    def updates(self) -> int:
        """Number of updates on each fresh group."""
        return self.i * self.replay


def train_seconds(spent: Times, i: int, replay: int, *, reference: bool) -> float:
    """B = replay (i u + c [i > 1] + c [reference])."""
    return replay * (i * spent.update + spent.score * ((i > 1) + reference))


def recommend(spent: Times, limits: PlanLimits, *, buffered: int) -> PlannedSchedule:
    """Applies the module's rule; `buffered` is how many whole batches the buffer holds."""
    notes: list[str] = []
    v = choose_v(spent, limits, notes)
    drawing = spent.draw + spent.push / v
    batches = min(buffered, limits.max_staleness - (limits.lead + v - 1) + 1)

    def split(updates: int) -> tuple[int, int]:
        return (1, updates) if batches > 1 else (updates, 1)

    def training(updates: int) -> float:
        return train_seconds(spent, *split(updates), reference=limits.reference)

    i, replay = split(choose_updates(training, limits, drawing, notes))
    batches = batches if replay > 1 else 1
    busy = train_seconds(spent, i, replay, reference=limits.reference)
    step = max(drawing, busy) if limits.lead else drawing + busy
    return PlannedSchedule(
        lead=limits.lead,
        v=v,
        i=i,
        replay=replay,
        batches=batches,
        draw_seconds=drawing,
        train_seconds=busy,
        step_seconds=step,
        push_share=spent.push / v / drawing,
        trainer_idle=1 - busy / step,
        servers_idle=1 - drawing / step,
        staleness_mean=limits.lead + (v - 1) / 2 + (batches - 1) / 2,
        staleness_max=limits.lead + v - 1 + batches - 1,
        notes=tuple(notes),
    )


def choose_v(spent: Times, limits: PlanLimits, notes: list[str]) -> int:
    """Step 1 of the rule."""
    cheap = max(1, math.ceil(spent.push / (limits.idle * max(spent.draw, spent.update))))
    allowed = limits.max_staleness - limits.lead + 1
    if cheap > allowed:
        cost = spent.push / allowed / (spent.draw + spent.push / allowed)
        notes.append(
            f"v is held at {allowed} by limits.max-staleness = {limits.max_staleness}: pushes take "
            f"{cost:.0%} of drawing, and v = {cheap} would be cheap enough; a faster link or "
            "link.sent once lowers it too"
        )
    return min(cheap, allowed)


def choose_updates(
    training: Callable[[int], float], limits: PlanLimits, drawing: float, notes: list[str]
) -> int:
    """Step 2 of the rule; `training` has the seconds of so many updates."""
    if not limits.lead:
        notes.append("limits.lead is 0: the sides take turns, and one of them always idles")
        return 1
    counts = range(1, limits.max_updates + 1)
    enough = next((k for k in counts if training(k) >= (1 - limits.idle) * drawing), None)
    if enough is None:
        notes.append(
            f"updates are held at limits.max-updates = {limits.max_updates}: the trainer idles "
            f"{1 - training(limits.max_updates) / drawing:.0%}; add NPUs, or use fewer training "
            "devices"
        )
        return limits.max_updates
    waiting = 1 - drawing / training(enough)
    if waiting <= limits.idle:
        return enough
    if enough == 1:
        notes.append(
            f"training is the slower side: the servers idle {waiting:.0%}; add training devices, "
            "or use fewer NPUs"
        )
        return 1
    notes.append(
        f"the trainer idles {1 - training(enough - 1) / drawing:.0%}; update {enough} would leave "
        f"the servers idle for {waiting:.0%}"
    )
    return enough - 1
