"""Updates from stored groups: drawing, scoring, updating, until signals say the data are used up.

Each signal is divided by its limit; the data are used up when the largest quotient reaches 1, and
that signal is named. The effective sample size alone does not warn: it can stay near 1 while a run
collapses. So it is one of four.

    kl         KL(pi||mu), nats a token, of the batch drawn
    ess        lost effective sample size, 1 - ESS/n of the tokens
    tail       log of the 99 % quantile of the token ratios
    staleness  chi^2 of the sequences against 1 + m/N: `m` stale samples beside `N` fresh ones lower
               the variance of a plain mean iff sigma_1^2/sigma_0^2 < 2 + m/N
               (`ogrpo.core.bounds.stale_samples_help`), the ratio of variances taken as 1 + chi^2;
               the loop takes m/N as the draws before this one in the step, which is rough: even
               the first draw from a large buffer holds stored samples
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.config.schedule import ReuseLimits
from ogrpo.core.advantages import running_mean
from ogrpo.core.algorithms import PROXIMAL
from ogrpo.data.replay import Draw, TooFewGroups
from ogrpo.learner.state import Hypers
from ogrpo.loop.batches import HostBatch, make_batch
from ogrpo.loop.collect import Fresh
from ogrpo.loop.parts import Parts, Record, stream_seed
from ogrpo.loop.state import DivergedError, LoopState, Skipped
from ogrpo.loop.tokens import sample_tokens
from ogrpo.protocol import IntArray


class UseVerdict(NamedTuple):
    """The signal nearest to its limit, and the quotient of the two: used up at 1."""

    signal: str
    use: float


def judge_data(
    metrics: Mapping[str, float], limits: ReuseLimits, *, stale_per_fresh: float
) -> UseVerdict:
    """Returns the binding signal among an update's metrics.

    Args:
      metrics: `kl/pi_mu`, `ess`, `ratio/tail` and `chi_square`, as an update reports them.
      limits: what each may reach.
      stale_per_fresh: m/N, uses of stored samples for each fresh one.
    """
    uses = {
        "kl": metrics["kl/pi_mu"] / limits.kl,
        "ess": (1 - metrics["ess"]) / limits.ess,
        "tail": math.log(max(metrics["ratio/tail"], 1.0)) / limits.tail,
    }
    if limits.staleness:
        uses["staleness"] = metrics["chi_square"] / (1 + stale_per_fresh)
    finite = {name: use if math.isfinite(use) else math.inf for name, use in uses.items()}
    signal = max(finite, key=lambda name: finite[name])
    return UseVerdict(signal, finite[signal])


def next_clip_scale(scale: float, verdict: UseVerdict, limits: ReuseLimits) -> float:
    """Returns a narrower clip where the data were used up, else a wider one, by `clip_step`.

    The rule of `ogrpo.core.trust_region.adaptive_clip`, on the combined signal.
    """
    step = math.exp(-limits.clip_step if verdict.use >= 1 else limits.clip_step)
    return min(max(scale * step, 1 / limits.clip_range), limits.clip_range)


NOISE = ("grad_variance", "grad_snr")


class UpdateResult(NamedTuple):
    """Outcome of the updates on one draw."""

    metrics: Record
    """Of the last of them."""
    staleness: IntArray
    """Steps since the weights that drew each completion were published."""
    verdict: UseVerdict | None
    """The signal nearest to its limit; None where the schedule alone decides."""
    noise: Record
    """Variance of the gradient, where that was measured."""

    @property
    def is_used_up(self) -> bool:
        """Whether the signals end the step's draws."""
        return self.verdict is not None and self.verdict.use >= 1


def run_updates(
    state: LoopState, fresh: Fresh | None, parts: Parts, *, examine: bool
) -> tuple[LoopState, Record]:
    """Draws, scores and updates until the schedule, the signals or the buffer end the step.

    Args:
      state: its buffer has the step's fresh groups.
      fresh: these groups; None where none were collected.
      examine: whether the first draw is looked into: its gradient's variance and its tokens.

    Returns:
      The state after the step, the metrics of its last update, and how the data were used.
    """
    state, starved = replace(state, token_samples=()), False
    results: list[UpdateResult] = []
    for number in range(parts.schedule.draws(state.step)):
        seed = stream_seed(parts.seed, f"replay {number}", state.step)
        try:
            draw = state.buffer.sample(parts.schedule.draw_size, seed=seed)
        except TooFewGroups:
            starved = True
            break
        batch, on_host = score(state, draw, parts)
        first = examine and number == 0
        state, result = update(state, batch, on_host, parts, number=number, examine=first)
        results.append(result)
        diverged = state.skipped_in_a_row > parts.limits.skipped
        if result.is_used_up or diverged or parts.limits.mismatch.passed_by(state.mismatch):
            break
    state = after_updates(state, results, fresh, parts)
    last = results[-1] if results else None
    ages = np.concatenate([each.staleness.ravel() for each in results]) if last else None
    noise = {**dict.fromkeys(NOISE), **(results[0].noise if last else {})}
    verdict = last.verdict if last else None
    return state, {
        **(last.metrics if last else {}),
        **{name: None if x is None else float(x) for name, x in noise.items()},
        "staleness": None if ages is None else float(ages.mean()),
        "staleness/max": None if ages is None else int(ages.max()),
        "reuse/draws": len(results),
        "reuse/starved": starved,
        "reuse/signal": None if verdict is None else verdict.signal,
        "reuse/use": None if verdict is None else verdict.use,
    }


def score(state: LoopState, draw: Draw, parts: Parts) -> tuple[Batch[jax.Array], HostBatch]:
    """Makes a draw a batch, with the log-probs of pi_k and of pi_ref and the values that are read.

    Those of pi_k are left to the update where it is the policy that is differentiated.

    Returns:
      The batch on the devices, and the same on the host, without what was computed.
    """
    learner, method, sampling = parts.learner, parts.method, parts.collection.sampling
    padded = draw.batch(parts.prompts.length, sampling.max_tokens)
    if method.judge_steps is not None:
        padded = method.judge_steps(padded, draw.problems)
    on_host = make_batch(padded, learner.packer, for_update=True)
    batch = learner.place(on_host.batch)
    temperature = jnp.float32(sampling.temperature)
    proximal = ref = values = None
    if PROXIMAL in method.reads and parts.schedule.updates_per_batch > 1:
        proximal = learner.score(state.train.whole(), batch, temperature)
    if state.reference is not None:
        reference = state.train.whole(state.reference)
        ref = learner.score(reference, batch, temperature)
        del reference
    if learner.values is not None:
        values = learner.values(state.train.params, batch, temperature)
    return batch._replace(proximal_log_probs=proximal, ref_log_probs=ref, values=values), on_host


def update(
    state: LoopState,
    batch: Batch[jax.Array],
    on_host: HostBatch,
    parts: Parts,
    *,
    number: int,
    examine: bool,
) -> tuple[LoopState, UpdateResult]:
    """Takes `i` updates on one batch; the metrics are those of the last.

    One that is skipped is the last: the others would meet the same weights and the same batch.

    Args:
      on_host: the same on the host.
      number: of the step's draws before this one.
      examine: whether the variance of the gradient is measured, and tokens are kept.
    """
    learner, versions = parts.learner, on_host.batch.policy_versions
    seed = stream_seed(parts.seed, f"lots {number}", state.step)

    def hypers(iteration: int) -> Hypers:
        index = parts.schedule.update_index(state.step, number, iteration)
        values = parts.method.hypers_at(index, state.clip_scale, seed)
        if parts.method.baseline_rate is None:
            return values
        baseline = jnp.float32(state.baseline.mean)
        return values._replace(knobs={**values.knobs, "baseline": baseline})

    noise: Record = {}
    if examine and learner.noise is not None:
        noise = dict(learner.noise(state.train, batch, hypers(0)))
    if examine and parts.evaluator.token_samples:
        samples = sample_tokens(state.train, batch, hypers(0), parts)
        state = replace(state, token_samples=samples)
    train, updates = state.train, 0
    first: Record = {}
    while True:
        train, on_device = learner.update(train, batch, hypers(updates))
        updates += 1
        # Of pi_k against mu: later updates have left pi_k.
        first = first or {name: on_device[name] for name in ("mismatch", "ratio/mean")}
        if updates == parts.schedule.updates_per_batch or on_device["skipped"]:
            break
    figures = jax.device_get({**on_device, **first})
    metrics = {name: float(value) for name, value in figures.items()}
    failed: tuple[Skipped, ...] = ()
    if skipped := bool(metrics.pop("skipped")):
        place = (state.step, number, updates - 1)
        failed = (Skipped(*place, batch, hypers(updates - 1), dict(metrics)),)
    goes_on = skipped and updates == 1  # none was taken since the last one that was skipped
    fresh = number == 0 and bool(np.all(versions == state.step))
    shapes = state.shapes if on_host.shape is None else state.shapes | {on_host.shape}
    metrics |= {"padding": on_host.padding, "shapes": max(1, len(shapes))}
    if fresh and parts.collection.sampling.truncates and not parts.method.sampling_mask:
        metrics["ratio/bias"] = metrics["ratio/mean"] - 1
    verdict = None
    if parts.limits.reuse is not None:
        verdict = judge_data(metrics, parts.limits.reuse, stale_per_fresh=number)
    others = (batch.proximal_log_probs, batch.ref_log_probs, batch.values)
    scores = sum(log_probs is not None for log_probs in others)
    costs = parts.costs
    flops = updates * costs.update(on_host.shape) + scores * costs.score(on_host.shape)
    state = replace(
        state,
        train=train,
        uses=state.uses + updates * len(batch.rewards),
        update_flops=state.update_flops + flops,
        shapes=shapes,
        mismatch=metrics["mismatch"] if fresh else 0.0,
        skipped=state.skipped + skipped,
        skipped_in_a_row=(state.skipped_in_a_row if goes_on else 0) + skipped,
        failed=(state.failed if goes_on else ()) + failed,
    )
    return state, UpdateResult(metrics, state.step - versions, verdict, noise)


def after_updates(
    state: LoopState, results: Sequence[UpdateResult], fresh: Fresh | None, parts: Parts
) -> LoopState:
    """Ends a step: the mean reward, which its updates were held against, and the reuse signals.

    The signals of the last draw set the next step's clip width, those of the first whether the
    server is due for new weights.
    """
    rate, limits = parts.method.baseline_rate, parts.limits.reuse
    if fresh is not None and rate is not None:
        reward = float(fresh.judged_rewards.mean(dtype=np.float64))
        state = replace(state, baseline=running_mean(state.baseline, reward, rate=rate))
    if limits is not None and results:
        verdict = results[-1].verdict
        assert verdict is not None  # there are limits
        scale = next_clip_scale(state.clip_scale, verdict, limits)
        state = replace(state, clip_scale=scale, used_up=results[0].is_used_up)
    return replace(state, step=state.step + 1)


def stop_where_diverged(state: LoopState, max_skipped: int) -> None:
    """Raises `DivergedError` where too many updates in a row were skipped."""
    if state.skipped_in_a_row <= max_skipped:
        return
    metrics = state.failed[-1].metrics if state.failed else {}
    names = [name for name in ("loss", "grad_norm") if name in metrics]
    last = ", ".join(f"{name} {metrics[name]:g}" for name in names)
    raise DivergedError(
        f"{state.skipped_in_a_row} updates in a row were skipped by step {state.step}, as they were"
        f" not finite ({last}); optimizer.max-skipped is {max_skipped}. The weights are those"
        " before them: a smaller --optimizer.learning-rate may go on from there"
        " (--resume-anyway)"
    )
