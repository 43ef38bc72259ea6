"""From stored groups to better weights: drawing, scoring, updating, certifying."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.certify import certify, period_gaps
from ogrpo.core.advantages import RunningMean, running_mean
from ogrpo.core.algorithms import PROXIMAL
from ogrpo.data.packing import Shape
from ogrpo.data.replay import Draw, TooFewGroups
from ogrpo.learner.hosts import fetch
from ogrpo.learner.state import Hypers
from ogrpo.trainer.batches import make_batch
from ogrpo.trainer.collect import Fresh
from ogrpo.trainer.control import ReuseLimits, UseVerdict, judge_data, next_clip_scale
from ogrpo.trainer.diverged import DivergedError, Skipped
from ogrpo.trainer.mismatch import all_fresh
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import LoopState, Parts, Record, stream_seed

NOISE = ("grad_variance", "grad_snr")
NOT_CERTIFIED: Record = dict.fromkeys(
    ("certificate/bound", "certificate/mean", "certificate/completions")
)


UNKNOWN = -1e30
"""The gap of a completion whose log-probs are not finite: none is certified with it."""


class Scored(NamedTuple):
    """A batch for the update, and what is known of it."""

    batch: Batch[jax.Array]
    policy_versions: np.ndarray
    shape: Shape | None
    """None where it is padded."""
    padding: float
    """Share of the tokens computed that are padding."""


@dataclass
class Use:
    """How a step used its data, for its record."""

    measure_noise: bool
    """Whether the first draw's gradient variance is wanted."""
    noise: Record = field(default_factory=lambda: dict.fromkeys(NOISE))
    staleness: list[np.ndarray] = field(default_factory=list)
    starved: bool = False
    """Whether the buffer had less than a batch to draw."""
    draws: int = 0
    metrics: Record = field(default_factory=dict)
    verdicts: list[UseVerdict] = field(default_factory=list)

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

    def used_up(self, limits: ReuseLimits | None) -> bool:
        """Whether the signals of the last update end the step's draws; without limits, never."""
        if limits is None:
            return False
        verdict = judge_data(self.metrics, limits, stale_per_fresh=self.draws - 1)
        self.verdicts.append(verdict)
        return verdict.use >= 1


def draws(state: LoopState, parts: Parts, schedule: Schedule, use: Use) -> Iterator[Draw]:
    """At most `replay` draws; none while the buffer cannot serve a batch, which is noted."""
    for n in range(schedule.draws(state.step)):
        seed = stream_seed(parts.seed, f"replay {n}", state.step)
        try:
            draw = state.buffer.sample(schedule.prompts, seed=seed)
        except TooFewGroups:
            use.starved = True
            return
        yield draw


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
    state: LoopState, scored: Scored, parts: Parts, schedule: Schedule, use: Use
) -> LoopState:
    """`i` updates on one batch; the metrics are those of the last.

    One that is skipped is the last: the others would meet the same weights and the same batch.
    """
    batch = scored.batch
    lots = stream_seed(parts.seed, f"lots {use.draws}", state.step)

    def hypers(iteration: int) -> Hypers:
        index = schedule.update_index(state.step, use.draws, iteration)
        own = parts.hypers_at(index, state.clip_scale, lots)
        return own if parts.baseline_rate is None else at_baseline(own, state.baseline)

    if use.draws == 0 and use.measure_noise and parts.noise is not None:
        use.noise = dict(parts.noise(state.train, batch, hypers(0)))
    train, metrics = parts.update(state.train, batch, hypers(0))
    mismatch = metrics["mismatch"]  # pi_k against mu: later updates have left pi_k
    updates = 1
    while updates < schedule.updates_per_batch and not metrics["skipped"]:
        train, metrics = parts.update(train, batch, hypers(updates))
        updates += 1
    metrics = {**metrics, "mismatch": mismatch}
    shapes = state.shapes if scored.shape is None else state.shapes | {scored.shape}
    use.metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
    last = (state.step, use.draws, updates - 1)
    failed: tuple[Skipped, ...] = ()
    if skipped := bool(use.metrics.pop("skipped")):
        failed = (Skipped(*last, batch, hypers(updates - 1), dict(use.metrics)),)
    goes_on = skipped and updates == 1  # none was taken since the last one that was skipped
    fresh = use.draws == 0 and all_fresh(scored.policy_versions, state.step)
    use.metrics |= {"padding": scored.padding, "shapes": max(1, len(shapes))}
    use.staleness.append(state.step - scored.policy_versions)
    use.draws += 1
    return replace(
        state,
        train=train,
        uses=state.uses + updates * len(batch.rewards),
        update_flops=state.update_flops + flops(scored, parts, updates),
        shapes=shapes,
        mismatch=use.metrics["mismatch"] if fresh else 0.0,
        skipped=state.skipped + skipped,
        skipped_in_a_row=(state.skipped_in_a_row if goes_on else 0) + skipped,
        failed=(state.failed if goes_on else ()) + failed,
    )


def at_baseline(hypers: Hypers, baseline: RunningMean) -> Hypers:
    """The hyper-parameters with the mean reward so far."""
    return hypers._replace(knobs={**hypers.knobs, "baseline": jnp.float32(baseline.mean)})


def with_rewards(state: LoopState, fresh: Fresh | None, parts: Parts) -> LoopState:
    """The fresh rewards in the running mean, after the updates that they were held against."""
    if fresh is None or parts.baseline_rate is None:
        return state
    seen = float(fresh.groups.rewards.mean(dtype=np.float64))
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


def controlled(state: LoopState, parts: Parts, use: Use) -> LoopState:
    """What the step's signals mean for the next one: a fresh server, another clip width."""
    if parts.limits is None or not use.verdicts:
        return state
    scale = next_clip_scale(state.clip_scale, use.verdicts[-1], parts.limits)
    return replace(state, clip_scale=scale, used_up=use.verdicts[0].use >= 1)


def certify_period(
    state: LoopState, fresh: Fresh | None, parts: Parts, *, ends: bool
) -> tuple[LoopState, Record]:
    """Gathers what the period's samples say, and at its end whether the server improved."""
    if fresh is None or parts.certificate_delta is None or state.server_version == 0:
        return state, NOT_CERTIFIED
    made = make_batch(fresh.groups, parts.packer, for_update=False)
    active = made.batch.active_mask
    current = made.batch.policy_versions == state.server_version  # collected ahead: not yet
    judged = current & active.any(axis=-1)  # of the others the reward is not known
    if judged.any():
        batch, temperature = parts.place(made.batch), jnp.float32(parts.sampling.temperature)
        before = fetch(parts.score(state.train.whole(state.previous), batch, temperature))
        drawn, rewards = map(jnp.asarray, (made.batch.behavior_log_probs, made.batch.rewards))
        gaps = period_gaps(jnp.asarray(before), drawn, jnp.asarray(active), rewards)
        found = np.nan_to_num(np.asarray(gaps)[judged], nan=UNKNOWN, posinf=UNKNOWN, neginf=UNKNOWN)
        state = replace(state, gaps=(*state.gaps, *found.tolist()))
    if not ends or not state.gaps:
        return state, NOT_CERTIFIED
    verdict = certify(jnp.asarray(state.gaps), parts.certificate_delta)
    return state, {
        "certificate/bound": float(verdict.certificate.bound),
        "certificate/mean": float(verdict.certificate.mean),
        "certificate/completions": verdict.completions,
    }
