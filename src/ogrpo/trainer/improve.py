"""From stored groups to better weights: drawing, scoring, updating, certifying."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.certify import certify, period_gaps
from ogrpo.core.algorithms import PROXIMAL
from ogrpo.data.replay import Draw, TooFewGroups
from ogrpo.learner.state import Hypers
from ogrpo.trainer.batches import make_batch, to_device
from ogrpo.trainer.collect import Collected
from ogrpo.trainer.control import Verdict, judge_data, next_clip_scale
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import LoopState, Parts, Record, stream_seed

NOISE = ("grad_variance", "grad_snr")
NOT_CERTIFIED: Record = dict.fromkeys(
    ("certificate/bound", "certificate/mean", "certificate/completions")
)


def scored(
    state: LoopState, batch: Batch[jax.Array], parts: Parts, schedule: Schedule
) -> Batch[jax.Array]:
    """pi_k and pi_ref, only where they differ from pi_theta."""
    temperature = jnp.float32(parts.sampling.temperature)
    proximal = ref = None
    if PROXIMAL in parts.reads and schedule.i > 1:
        proximal = parts.score(state.train.whole(), batch, temperature)
    if state.reference is not None:
        ref = parts.score(state.train.whole(state.reference), batch, temperature)
    return batch._replace(proximal_log_probs=proximal, ref_log_probs=ref)


@dataclass
class Reuse:
    """What a step's draws were, for its record."""

    measure_noise: bool
    """Whether the first draw's gradient variance is wanted."""
    noise: Record = field(default_factory=lambda: dict.fromkeys(NOISE))
    staleness: list[np.ndarray] = field(default_factory=list)
    starved: bool = False
    """Whether the buffer had less than a batch to draw."""
    draws: int = 0
    metrics: Record = field(default_factory=dict)
    verdicts: list[Verdict] = field(default_factory=list)

    def record(self) -> Record:
        """Metrics of the last update, and how the data were used."""
        ages = np.concatenate([age.ravel() for age in self.staleness]) if self.draws else None
        last = self.verdicts[-1] if self.verdicts else None
        return {
            **self.metrics,
            **{name: None if x is None else float(x) for name, x in self.noise.items()},
            "staleness": None if ages is None else float(ages.mean()),
            "staleness/max": None if ages is None else int(ages.max()),
            "reuse/draws": self.draws,
            "reuse/starved": self.starved,
            "reuse/signal": None if last is None else last.signal,
            "reuse/use": None if last is None else last.use,
        }


def improve(
    state: LoopState, parts: Parts, schedule: Schedule, *, measure_noise: bool
) -> tuple[LoopState, Reuse]:
    """Draws and updates until the schedule ends it, or the signals do."""
    reuse = Reuse(measure_noise)
    for draw in drawn(state, parts, schedule, reuse):
        state = update(state, draw, parts, schedule, reuse)
        if parts.limits is None:
            continue
        verdict = judge_data(reuse.metrics, parts.limits, stale_per_fresh=reuse.draws - 1)
        reuse.verdicts.append(verdict)
        if verdict.use >= 1:
            break
    return controlled(state, parts, reuse), reuse


def drawn(state: LoopState, parts: Parts, schedule: Schedule, reuse: Reuse) -> Iterator[Draw]:
    """At most `replay` draws; none while the buffer cannot serve a batch, which is noted."""
    for n in range(schedule.draws(state.step)):
        seed = stream_seed(parts.seed, f"replay {n}", state.step)
        try:
            draw = state.buffer.sample(schedule.prompts, seed=seed)
        except TooFewGroups:
            reuse.starved = True
            return
        yield draw


def update(
    state: LoopState, draw: Draw, parts: Parts, schedule: Schedule, reuse: Reuse
) -> LoopState:
    """`i` updates on one draw; the metrics are those of the last."""
    task = parts.task
    padded = draw.batch(task.prompt_length, task.completion_length)
    made = make_batch(padded, parts.packer, for_update=True)
    batch = scored(state, to_device(made.batch), parts, schedule)
    lots = stream_seed(parts.seed, f"lots {reuse.draws}", state.step)

    def hypers(iteration: int) -> Hypers:
        index = schedule.update_index(state.step, reuse.draws, iteration)
        return parts.hypers_at(index, state.clip_scale, lots)

    if reuse.draws == 0 and reuse.measure_noise and parts.spread is not None:
        reuse.noise = dict(parts.spread(state.train, batch, hypers(0)))
    train, metrics = parts.update(state.train, batch, hypers(0))
    mismatch = metrics["mismatch"]  # pi_k against mu: later updates have left pi_k
    for iteration in range(1, schedule.i):
        train, metrics = parts.update(train, batch, hypers(iteration))
    metrics = {**metrics, "mismatch": mismatch}
    shapes = state.shapes if made.shape is None else state.shapes | {made.shape}
    reuse.metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
    reuse.metrics |= {"padding": made.padding, "shapes": max(1, len(shapes))}
    reuse.staleness.append(state.step - padded.policy_versions)
    reuse.draws += 1
    scores = sum(x is not None for x in (batch.proximal_log_probs, batch.ref_log_probs))
    costs = parts.costs
    flops = schedule.i * costs.update(made.shape) + scores * costs.score(made.shape)
    return replace(
        state,
        train=train,
        uses=state.uses + schedule.i * len(draw.rewards),
        update_flops=state.update_flops + flops,
        shapes=shapes,
    )


def controlled(state: LoopState, parts: Parts, reuse: Reuse) -> LoopState:
    """What the step's signals mean for the next one: a fresh server, another clip width."""
    if parts.limits is None or not reuse.verdicts:
        return state
    scale = next_clip_scale(state.clip_scale, reuse.verdicts[-1], parts.limits)
    return replace(state, clip_scale=scale, used_up=reuse.verdicts[0].use >= 1)


def certify_period(
    state: LoopState, collected: Collected, parts: Parts, *, ends: bool
) -> tuple[LoopState, Record]:
    """Gathers what the period's samples say, and at its end whether the server improved."""
    if parts.certificate_delta is None or state.server_version == 0:
        return state, NOT_CERTIFIED
    made = make_batch(collected.groups, parts.packer, for_update=False)
    active = made.batch.active_mask
    current = made.batch.policy_versions == state.server_version  # bought ahead: not yet
    judged = current & active.any(axis=-1)  # of the others the reward is not known
    if judged.any():
        batch = to_device(made.batch)
        temperature = jnp.float32(parts.sampling.temperature)
        before = parts.score(state.train.whole(state.previous), batch, temperature)
        gaps = period_gaps(before, batch.behavior_log_probs, jnp.asarray(active), batch.rewards)
        state = replace(state, gaps=(*state.gaps, *np.asarray(gaps)[judged].tolist()))
    if not ends or not state.gaps:
        return state, NOT_CERTIFIED
    verdict = certify(jnp.asarray(state.gaps), parts.certificate_delta)
    return state, {
        "certificate/bound": float(verdict.certificate.bound),
        "certificate/mean": float(verdict.certificate.mean),
        "certificate/completions": verdict.completions,
    }
