"""From stored groups to better weights: drawing, scoring, updating."""

from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.config.schedule import Schedule
from ogrpo.core.advantages import RunningMean, running_mean
from ogrpo.core.algorithms import PROXIMAL
from ogrpo.data.packing import Shape
from ogrpo.data.replay import Draw, TooFewGroups
from ogrpo.learner.state import Hypers
from ogrpo.loop.batches import make_batch
from ogrpo.loop.collect import Fresh
from ogrpo.loop.control import UseVerdict, judge_data, next_clip_scale
from ogrpo.loop.diverged import DivergedError, Skipped
from ogrpo.loop.mismatch import all_fresh
from ogrpo.loop.state import LoopState, Parts, Record, stream_seed
from ogrpo.protocol import IntArray

NOISE = ("grad_variance", "grad_snr")


class Scored(NamedTuple):
    """A batch for the update, and what is known of it."""

    batch: Batch[jax.Array]
    policy_versions: np.ndarray
    shape: Shape | None
    """None where it is padded."""
    padding: float
    """Share of the tokens computed that are padding."""


class UpdateResult(NamedTuple):
    """What the updates on one draw came to."""

    metrics: Record
    """Of the last of them."""
    staleness: IntArray
    """Steps since the weights that drew each completion were published."""
    verdict: UseVerdict | None
    """The signal nearest to its limit; None where the schedule alone decides."""
    noise: Record
    """How noisy the gradient was, where that was measured."""

    @property
    def is_used_up(self) -> bool:
        """Whether the signals end the step's draws."""
        return self.verdict is not None and self.verdict.use >= 1


class StepResult(NamedTuple):
    """How a step used its data."""

    updates: tuple[UpdateResult, ...]
    """Of each draw."""
    starved: bool
    """Whether the buffer had less than a batch to draw."""

    def record(self) -> Record:
        """Metrics of the last update, and how the data were used."""
        last = self.updates[-1] if self.updates else None
        ages = np.concatenate([each.staleness.ravel() for each in self.updates]) if last else None
        noise = {**dict.fromkeys(NOISE), **(self.updates[0].noise if last else {})}
        verdict = last.verdict if last else None
        return {
            **(last.metrics if last else {}),
            **{name: None if x is None else float(x) for name, x in noise.items()},
            "staleness": None if ages is None else float(ages.mean()),
            "staleness/max": None if ages is None else int(ages.max()),
            "reuse/draws": len(self.updates),
            "reuse/starved": self.starved,
            "reuse/signal": None if verdict is None else verdict.signal,
            "reuse/use": None if verdict is None else verdict.use,
        }


def run_updates(
    state: LoopState, parts: Parts, schedule: Schedule, *, measure_noise: bool
) -> tuple[LoopState, StepResult]:
    """Draws, scores and updates until the schedule, the signals or the buffer end the step.

    Args:
      state: whose buffer has the step's fresh groups.
      parts: of the loop.
      schedule: says how many draws there may be, and updates on each.
      measure_noise: whether the variance of the first draw's gradient is measured.
    """
    results: tuple[UpdateResult, ...] = ()
    for number in range(schedule.draws(state.step)):
        seed = stream_seed(parts.seed, f"replay {number}", state.step)
        try:
            draw = state.buffer.sample(schedule.prompts, seed=seed)
        except TooFewGroups:
            return state, StepResult(results, starved=True)
        scored = score(state, draw, parts, schedule)
        noisy = measure_noise and number == 0
        state, result = update(state, scored, parts, schedule, number=number, measure_noise=noisy)
        results = (*results, result)
        if result.is_used_up or is_over(state, parts):
            break
    return state, StepResult(results, starved=False)


def is_over(state: LoopState, parts: Parts) -> bool:
    """Whether the run ends with this step, by what its updates have shown."""
    return state.skipped_in_a_row > parts.max_skipped or parts.mismatch.passed_by(state.mismatch)


def score(state: LoopState, draw: Draw, parts: Parts, schedule: Schedule) -> Scored:
    """A draw as a batch, with what the algorithm reads: log-probs of pi_k and of pi_ref, values.

    Those of pi_k are left to the update where it is the policy that is differentiated.
    """
    padded = draw.batch(parts.prompts.length, parts.sampling.max_tokens)
    if parts.judge_steps is not None:
        padded = parts.judge_steps(padded, draw.problems)
    made = make_batch(padded, parts.packer, for_update=True)
    batch = parts.place(made.batch)
    temperature = jnp.float32(parts.sampling.temperature)
    proximal = ref = None
    if PROXIMAL in parts.reads and schedule.updates_per_batch > 1:
        proximal = parts.score(state.train.whole(), batch, temperature)
    if state.reference is not None:
        reference = state.train.whole(parts.reference.fetch(state.reference))
        ref = parts.score(reference, batch, temperature)
        del reference
    values = None if parts.values is None else parts.values(state.train.params, batch, temperature)
    batch = batch._replace(proximal_log_probs=proximal, ref_log_probs=ref, values=values)
    return Scored(batch, padded.policy_versions, made.shape, made.padding)


def update(
    state: LoopState,
    scored: Scored,
    parts: Parts,
    schedule: Schedule,
    *,
    number: int,
    measure_noise: bool,
) -> tuple[LoopState, UpdateResult]:
    """`i` updates on one batch; the metrics are those of the last.

    One that is skipped is the last: the others would meet the same weights and the same batch.

    Args:
      state: before them.
      scored: the batch.
      parts: of the loop.
      schedule: says how many updates there are.
      number: of the step's draws before this one.
      measure_noise: whether the variance of the gradient is measured.
    """
    batch = scored.batch
    lots = stream_seed(parts.seed, f"lots {number}", state.step)

    def hypers(iteration: int) -> Hypers:
        index = schedule.update_index(state.step, number, iteration)
        own = parts.hypers_at(index, state.clip_scale, lots)
        return own if parts.baseline_rate is None else at_baseline(own, state.baseline)

    noise: Record = {}
    if measure_noise and parts.noise is not None:
        noise = dict(parts.noise(state.train, batch, hypers(0)))
    train, on_device = parts.update(state.train, batch, hypers(0))
    mismatch = on_device["mismatch"]  # pi_k against mu: later updates have left pi_k
    updates = 1
    while updates < schedule.updates_per_batch and not on_device["skipped"]:
        train, on_device = parts.update(train, batch, hypers(updates))
        updates += 1
    figures = jax.device_get({**on_device, "mismatch": mismatch})
    metrics = {name: float(value) for name, value in figures.items()}
    failed: tuple[Skipped, ...] = ()
    if skipped := bool(metrics.pop("skipped")):
        place = (state.step, number, updates - 1)
        failed = (Skipped(*place, batch, hypers(updates - 1), dict(metrics)),)
    goes_on = skipped and updates == 1  # none was taken since the last one that was skipped
    fresh = number == 0 and all_fresh(scored.policy_versions, state.step)
    shapes = state.shapes if scored.shape is None else state.shapes | {scored.shape}
    metrics |= {"padding": scored.padding, "shapes": max(1, len(shapes))}
    verdict = None
    if parts.limits is not None:
        verdict = judge_data(metrics, parts.limits, stale_per_fresh=number)
    state = replace(
        state,
        train=train,
        uses=state.uses + updates * len(batch.rewards),
        update_flops=state.update_flops + flops(scored, parts, updates),
        shapes=shapes,
        mismatch=metrics["mismatch"] if fresh else 0.0,
        skipped=state.skipped + skipped,
        skipped_in_a_row=(state.skipped_in_a_row if goes_on else 0) + skipped,
        failed=(state.failed if goes_on else ()) + failed,
    )
    return state, UpdateResult(metrics, state.step - scored.policy_versions, verdict, noise)


def at_baseline(hypers: Hypers, baseline: RunningMean) -> Hypers:
    """The hyper-parameters with the mean reward so far."""
    return hypers._replace(knobs={**hypers.knobs, "baseline": jnp.float32(baseline.mean)})


def with_rewards(state: LoopState, fresh: Fresh | None, parts: Parts) -> LoopState:
    """The fresh rewards in the running mean, after the updates that they were held against."""
    if fresh is None or parts.baseline_rate is None:
        return state
    seen = float(fresh.judged_rewards.mean(dtype=np.float64))
    return replace(state, baseline=running_mean(state.baseline, seen, rate=parts.baseline_rate))


def stop_where_diverged(state: LoopState, max_skipped: int) -> None:
    """Raises `DivergedError` where too many updates in a row were skipped."""
    if state.skipped_in_a_row <= max_skipped:
        return
    seen = state.failed[-1].metrics if state.failed else {}
    last = ", ".join(f"{name} {seen[name]:g}" for name in ("loss", "grad_norm") if name in seen)
    raise DivergedError(
        f"{state.skipped_in_a_row} updates in a row were skipped by step {state.step}, as they were"
        f" not finite ({last}); optimizer.max-skipped is {max_skipped}. The weights are those"
        " before them: a smaller --optimizer.learning-rate may go on from there"
        " (--resume-anyway)"
    )


def flops(scored: Scored, parts: Parts, updates: int) -> int:
    """What a batch cost: its updates, and the log-probs that were scored for them."""
    batch = scored.batch
    others = (batch.proximal_log_probs, batch.ref_log_probs, batch.values)
    scores = sum(read is not None for read in others)
    return updates * parts.costs.update(scored.shape) + scores * parts.costs.score(scored.shape)


def controlled(state: LoopState, parts: Parts, result: StepResult) -> LoopState:
    """What the step's signals mean for the next one: a fresh server, another clip width."""
    if parts.limits is None or not result.updates:
        return state
    last = result.updates[-1].verdict
    assert last is not None  # there are limits
    scale = next_clip_scale(state.clip_scale, last, parts.limits)
    return replace(state, clip_scale=scale, used_up=result.updates[0].is_used_up)
