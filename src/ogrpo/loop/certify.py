"""Does the next synchronisation improve the policy? A certificate from samples no update has seen.

The draws of the old weights judge the new ones: sequence ratios of new to old, the lowest reward as
baseline (`ogrpo.core.certificates` says why each is needed). Forwards the values are quiet; those
of draws of the new weights explode on failures that these have given up.

    sync_offset > 0   groups that were requested ahead of a renewal and taken after it
    sync_offset = 0   completions drawn at the renewal for this alone, `certificate/price` of the
                      period's own; training is not touched

It speaks of the reward at the sampling temperature, averaged over the prompts drawn.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogrpo.batch import Batch
from ogrpo.core.certificates import Certificate, betting_confidence, improvement_gap
from ogrpo.core.ratios import exp_ratio, sequence_log_ratio
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.learner.hosts import fetch, from_first
from ogrpo.learner.state import Params
from ogrpo.loop.batches import make_batch
from ogrpo.loop.parts import Parts, Record, stream_seed
from ogrpo.loop.state import LoopState
from ogrpo.rollout.collection import Collector, Request

RATES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)
"""Stakes, fixed before any sample is seen; each begins with an equal part of the wealth."""
HEADROOM = 3.0
"""A ratio counts up to 1 + this: the mean loses what lies above, and no draw counts for more."""
LOWEST, HIGHEST = 0.0, 1.0
UNKNOWN = -1e30
"""The value of a completion whose log-probs are not finite: nothing is certified with it."""
NOT_CERTIFIED: Record = dict.fromkeys(
    f"certificate/{name}" for name in ("bound", "mean", "evidence", "completions", "price")
)


def draw_gains(
    new_log_probs: Array, behavior_log_probs: Array, mask: Array, rewards: Array
) -> Array:
    """X = (min(pi/mu, 1 + headroom) - 1) r `[N, G]`, whose mean is at most J(pi) - J(mu).

    Raises:
      ValueError: rewards outside [0, 1].
    """
    seen = np.asarray(rewards)  # a trace knows no values, so they are judged before it
    if not (seen.min() >= LOWEST and seen.max() <= HIGHEST):
        raise ValueError(
            f"rewards span [{seen.min()}, {seen.max()}], and a certificate is for rewards within"
            f" [{LOWEST}, {HIGHEST}]: rescale them, or switch it off with --certificate.delta None"
        )
    return _gains(new_log_probs, behavior_log_probs, mask, rewards)


@jax.jit
def _gains(new_log_probs: Array, behavior_log_probs: Array, mask: Array, rewards: Array) -> Array:
    log_ratio = sequence_log_ratio(new_log_probs, behavior_log_probs, mask)[..., 0]
    return improvement_gap(
        exp_ratio(log_ratio),
        jnp.ones_like(rewards),
        rewards,
        eps_low=1.0,
        eps_high=HEADROOM,
        reward_low=LOWEST,
        reward_high=HIGHEST,
    )


def certify(gains: np.ndarray, delta: float) -> Certificate:
    """Returns the lower confidence limit of the improvement, wrong with probability <= `delta`.

    In double precision: rounding moves it by less than 1e-9, which is taken off.
    """
    with jax.enable_x64():
        certificate = _bound_at(delta)(jnp.asarray(gains, jnp.float64))
        return certificate._replace(bound=certificate.bound - 1e-9)


@cache
def _bound_at(delta: float) -> Callable[[Array], Certificate]:
    return jax.jit(partial(betting_confidence, floor=HIGHEST - LOWEST, delta=delta, rates=RATES))


def certify_period(
    state: LoopState,
    groups: Batch[np.ndarray] | None,
    parts: Parts,
    collector: Collector,
    *,
    ends: bool,
) -> tuple[LoopState, Record]:
    """Gathers gains of the new weights on draws of those before; certifies at a period's end.

    Args:
      state: after the step's updates.
      groups: the step's fresh batch; None where there is none.
      parts: of the run.
      collector: its engine draws the completions that are for this alone.
      ends: whether new weights are due before the next step.
    """
    terms = parts.certificate
    if terms is None or terms.delta is None or groups is None:
        return state, NOT_CERTIFIED
    drawn = 0
    if parts.schedule.sync_offset > 0:
        renewed = state.train.whole(state.server)
        gains = _gains_of(groups, state.previous_version, renewed, parts)
        state = replace(state, gaps=(*state.gaps, *gains))
    else:
        while ends and drawn < terms.completions:
            heldback = _draw(state, parts, collector, prompts=len(groups.rewards), drawn=drawn)
            gains = _gains_of(heldback, state.server_version, state.train.whole(), parts)
            state = replace(state, gaps=(*state.gaps, *gains))
            drawn += heldback.rewards.size
    if not ends or not state.gaps:
        return state, NOT_CERTIFIED
    verdict = certify(np.array(state.gaps), terms.delta)
    period = (state.step - state.server_version) * groups.rewards.size
    return replace(state, gaps=()), {
        "certificate/bound": float(verdict.bound),
        "certificate/mean": float(verdict.mean),
        "certificate/evidence": float(verdict.evidence),
        "certificate/completions": len(state.gaps),
        "certificate/price": drawn / period,
    }


def _gains_of(groups: Batch[np.ndarray], version: int, params: Params, parts: Parts) -> list[float]:
    """Returns the gains of `params` on the rewarded completions of that version."""
    learner = parts.learner
    made = make_batch(groups, learner.packer, for_update=False)
    active = made.batch.active_mask
    judged = (made.batch.policy_versions == version) & active.any(axis=-1)
    if not judged.any():
        return []
    temperature = jnp.float32(parts.collection.sampling.temperature)
    new = jnp.asarray(fetch(learner.score(params, learner.place(made.batch), temperature)))
    behavior, rewards = map(jnp.asarray, (made.batch.behavior_log_probs, made.batch.rewards))
    gains = np.asarray(draw_gains(new, behavior, jnp.asarray(active), rewards), np.float64)[judged]
    return np.nan_to_num(gains, nan=UNKNOWN, posinf=UNKNOWN, neginf=UNKNOWN).tolist()


def _draw(
    state: LoopState, parts: Parts, collector: Collector, *, prompts: int, drawn: int
) -> Batch[np.ndarray]:
    """Draws and rewards a batch by the server's weights, with prompts and seeds of its own."""
    train, sampling = parts.prompts.train, parts.collection.sampling
    place = state.step * 1000 + drawn // (prompts * sampling.group_size)
    seed = stream_seed(parts.seed, "certificate", place)
    stream = PromptStream(len(train), prompts, stream_seed(parts.seed, "certificate", 0))
    problems = [int(n) for n in stream.indices(place)]
    request = Request(state.step, problems, [train[n] for n in problems], seed)
    with collector.alone() as engine:
        if engine.version != state.server_version:
            engine.publish(state.train.whole(state.server), state.server_version)
        groups = engine.generate(request.prompts, sampling, seed)

    def rewarded() -> Batch[np.ndarray]:
        judged = parts.collection.reward_fn(request, range(len(groups)), groups)
        rewards = np.stack([each.rewards for each in judged])
        longest = parts.prompts.length, sampling.max_tokens
        return pad_groups([each.group for each in judged], *longest, rewards=rewards)

    return from_first(rewarded)
