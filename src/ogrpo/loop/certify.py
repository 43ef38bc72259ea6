"""Does the next synchronisation improve the policy? A certificate from samples no update has seen.

Sequence ratios of both weights to what drew a completion, the lowest reward as baseline
(`ogrpo.core.certificates` says why each is needed).

    sync_offset > 0   groups of the old weights, requested ahead of a renewal and taken after it
    sync_offset = 0   completions drawn at the renewal for this alone, in rounds until they certify,
                      have little hope to, or the budget is spent. Each has a prompt of its own;
                      two of three are by the old weights and one by the new, so that the ratios
                      are to the mixture and at most 3. Training is not touched
    pairs             the same rounds, but both weights answer each prompt with the same random
                      numbers, and a value is the difference of their rewards, without a ratio

Draws of the old weights alone certify less, as a ratio counts for no more than the headroom; among
draws of the new weights alone old/new is huge for answers that these hardly give any more.

A certificate speaks of the reward at the sampling temperature, averaged over the prompts drawn:
with an offset those of a few groups, else as many as there are completions, in the order of fresh
permutations.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ogrpo.batch import Batch
from ogrpo.config.train import Certification
from ogrpo.core.advantages import leave_one_out
from ogrpo.core.bounds import unit_center_price
from ogrpo.core.certificates import Certificate, betting_confidence, improvement_gap, mixture_ratios
from ogrpo.core.ratios import exp_ratio, log_ratio
from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.learner.checkpoint import content_hash
from ogrpo.learner.hosts import fetch, from_first
from ogrpo.learner.state import Params
from ogrpo.loop.batches import make_batch
from ogrpo.loop.parts import Parts, Record, stream_seed
from ogrpo.loop.state import Certified, LoopState
from ogrpo.protocol import Engine, Group
from ogrpo.rollout.collection import Collector, Request

RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Stakes, fixed before any sample is seen; each begins with an equal part of the wealth."""
OLD, NEW = 2, 1
"""Batches that the old and the new weights draw in a round."""
SHARE = NEW / (OLD + NEW)
FUTILITY = 1.0
"""Draws end where the mean that would certify is so many standard errors above the mean so far."""
HEADROOM = 30.0
"""A ratio counts up to 1 + this: the mean loses what lies above, and no draw counts for more."""
LOWEST, HIGHEST = 0.0, 1.0
PADDED_TO = 2048
"""Draws of one compiled program: gains are padded to a multiple of it."""
UNKNOWN = -1e30
"""The value of a completion whose log-probs are not finite: nothing is certified with it."""
NOT_CERTIFIED: Record = dict.fromkeys(
    f"certificate/{name}"
    for name in ("bound", "mean", "evidence", "completions", "price", "unit_center")
)


def check_range(rewards: np.ndarray) -> None:
    """Raises ValueError where a reward, NaN apart, lies outside the range of a certificate."""
    if ((rewards < LOWEST) | (rewards > HIGHEST)).any():
        least, most = np.nanmin(rewards), np.nanmax(rewards)
        raise ValueError(
            f"rewards span [{least}, {most}], and a certificate is for rewards within"
            f" [{LOWEST}, {HIGHEST}]: rescale them, or switch it off with --certificate.delta None"
        )


def draw_gains(
    new_log_probs: Array, old_log_probs: Array, mask: Array, rewards: Array, *, share: float
) -> Array:
    """`improvement_gap` `[N, G]` of the new weights over the old, whose mean is at most the gain.

    The draws are of the mixture in which the new weights have that share; of the old alone with
    0, when X = (min(new/old, 1 + headroom) - 1) r. A completion that no reward could judge (NaN)
    has the reward that makes its X least.

    Raises:
      ValueError: rewards outside [0, 1].
    """
    check_range(np.asarray(rewards))  # a trace knows no values, so they are judged before it
    return _gains(new_log_probs, old_log_probs, mask, rewards, jnp.float32(share))


def pair_gains(new_rewards: np.ndarray, old_rewards: np.ndarray) -> np.ndarray:
    """X = r(new) - r(old) `[pairs]`, whose mean is the gain however the two draws of a pair depend.

    X >= -1. NaN, a completion that no reward could judge, counts with the reward that makes X
    least. Theorem `Balance.paired_mean`.

    Raises:
      ValueError: rewards outside [0, 1].
    """
    check_range(new_rewards)
    check_range(old_rewards)
    new, old = (x.astype(np.float64).ravel() for x in (new_rewards, old_rewards))
    return np.nan_to_num(new, nan=LOWEST) - np.nan_to_num(old, nan=HIGHEST)


@jax.jit
def _gains(new: Array, old: Array, mask: Array, rewards: Array, share: Array) -> Array:
    sequence = log_ratio(new, old, mask).sum(-1)
    ratio, center = mixture_ratios(sequence, share=share)
    worst = worst_rewards(rewards, sequence)
    span = {"reward_low": LOWEST, "reward_high": HIGHEST}
    return improvement_gap(ratio, center, worst, eps_low=1.0, eps_high=HEADROOM, **span)


def worst_rewards(rewards: Array, log_ratio: Array) -> Array:
    """Returns rewards where NaN, what no reward could judge, is the one that makes X least."""
    return jnp.where(jnp.isnan(rewards), jnp.where(log_ratio < 0, HIGHEST, LOWEST), rewards)


@jax.jit
def center_prices(
    new_log_probs: Array,
    behavior_log_probs: Array,
    mask: Array,
    rewards: Array,
    eps_low: Array,
    eps_high: Array,
) -> Array:
    """`unit_center_price` `[N, G]` of the next update, were it to start here from the old draws.

    The baseline is the mean of all others drawn. Zero for a completion that was not judged.
    """
    sequence = log_ratio(new_log_probs, behavior_log_probs, mask).sum(-1)
    advantages = leave_one_out(rewards.ravel()).reshape(rewards.shape)
    return unit_center_price(exp_ratio(sequence), advantages, eps_low=eps_low, eps_high=eps_high)


def certify(gains: np.ndarray, delta: float) -> Certificate:
    """Returns the lower confidence limit of the improvement, wrong with probability <= `delta`.

    It may be read after every draw, and draws may stop when it says enough. In double precision:
    rounding moves it by less than 1e-9, which is taken off.
    """
    padded = np.zeros(-(-gains.size // PADDED_TO) * PADDED_TO)
    padded[: gains.size] = gains
    with jax.enable_x64():
        drawn = jnp.arange(padded.size) < gains.size
        certificate = _bound_at(delta)(jnp.asarray(padded), where=drawn)
        return certificate._replace(bound=certificate.bound - 1e-9)


@cache
def _bound_at(delta: float) -> Callable[..., Certificate]:
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

    Without an offset draws are made in rounds of as many prompts as a step has, until the gains are
    settled or the budget is used up.

    Args:
      groups: the step's fresh batch; None where there is none.
      collector: its engine draws the completions that are for this alone.
      ends: whether new weights are due before the next step.
    """
    terms = parts.certificate
    if terms is None or terms.delta is None or groups is None:
        return state, NOT_CERTIFIED
    ahead = parts.schedule.sync_offset > 0  # the old weights are then no longer held
    gains, prices, drawn = [], [], 0
    if ahead:
        renewed = state.train.whole(state.server)
        gains, prices = _gains_of(groups, state.previous_version, renewed, state, parts)
    elif ends:
        while drawn < terms.completions and not is_settled(np.array(gains), terms):
            rounds = _draw(state, parts, collector, prompts=len(groups.rewards), drawn=drawn)
            drawn += sum(batch.rewards.size for batch, _, _ in rounds)
            if terms.pairs:
                (old, _, _), (new, _, _) = rounds
                gains += pair_gains(new.rewards, old.rewards).tolist()
                continue
            for batch, version, other in rounds:
                more, costs = _gains_of(batch, version, other, state, parts, share=SHARE)
                gains, prices = [*gains, *more], [*prices, *costs]
    state = replace(state, gains=(*state.gains, *gains))
    if not ends or not state.gains:
        return state, NOT_CERTIFIED
    verdict = certify(np.array(state.gains), terms.delta)
    period = (state.step - state.server_version) * groups.rewards.size
    certified = state.certificate
    if float(verdict.bound) > 0 and not terms.pairs:  # what is kept is proved of ratios
        held = ("", state.server) if ahead else (state.server, state.train.params)
        digests = (content_hash(params) if params else "" for params in held)
        certified = Certified(state.step, float(verdict.bound), terms.delta, state.gains, *digests)
    return replace(state, gains=(), certificate=certified), {
        "certificate/bound": float(verdict.bound),
        "certificate/mean": float(verdict.mean),
        "certificate/evidence": float(verdict.evidence),
        "certificate/completions": len(state.gains) * (2 if terms.pairs else 1),
        "certificate/price": drawn / period,
        "certificate/unit_center": float(np.mean(prices)) if prices else None,
    }


def is_settled(gains: np.ndarray, terms: Certification) -> bool:
    """Whether the draws certify, or are futile: the whole budget would hardly (`FUTILITY`)."""
    if terms.delta is None or not gains.size:
        return False
    if float(certify(gains, terms.delta).bound) > 0:  # as JAX compares doubles in x64 alone
        return True
    mean, square = gains.mean(), (gains**2).mean()
    n = terms.completions / (2 if terms.pairs else 1)
    nats = np.log(2 / terms.delta)  # half of the wealth lies on stakes that are not the best
    enough = np.sqrt(2 * square * nats / n) + nats / n
    error = np.sqrt(square * max(1 / gains.size - 1 / n, 0))
    return bool(enough - mean > FUTILITY * error)


def _gains_of(
    groups: Batch[np.ndarray],
    version: int,
    params: Params,
    state: LoopState,
    parts: Parts,
    *,
    share: float = 0.0,
) -> tuple[list[float], list[float]]:
    """Returns the gains on the completions of that version, and the unit centre's prices there.

    Args:
      groups: completions and their rewards.
      version: that drew them; other completions are passed over. The step's own is the new one.
      params: of the other side, scored here; the sampler's log-probs are `version`'s.
      share: of draws of the new weights.

    Returns:
      Gains of new over old, and prices, none for draws of the new or of a method without a clip.
    """
    learner, by_new = parts.learner, version == state.step
    on_host = make_batch(groups, learner.packer, for_update=False)
    # What was not judged carries no loss, and yet was drawn: it counts as the worst.
    drawn = on_host.batch.loss_mask | np.isnan(on_host.batch.rewards)[..., None]
    active = on_host.batch.completion_mask & drawn
    counted = (on_host.batch.policy_versions == version) & active.any(axis=-1)
    if not counted.any():
        return [], []
    temperature = jnp.float32(parts.collection.sampling.temperature)
    scored = jnp.asarray(fetch(learner.score(params, learner.place(on_host.batch), temperature)))
    behavior, rewards = map(jnp.asarray, (on_host.batch.behavior_log_probs, on_host.batch.rewards))
    new, old = (behavior, scored) if by_new else (scored, behavior)
    sides = new, old, jnp.asarray(active), rewards
    gains = np.asarray(draw_gains(*sides, share=share), np.float64)[counted]
    gains = np.nan_to_num(gains, nan=UNKNOWN, posinf=UNKNOWN, neginf=UNKNOWN).tolist()
    knobs = parts.method.hypers_at(int(state.train.updates), state.clip_scale, 0).knobs
    if by_new or not {"eps_low", "eps_high"} <= knobs.keys():
        return gains, []
    prices = center_prices(*sides, knobs["eps_low"], knobs["eps_high"])
    return gains, np.asarray(prices, np.float64)[counted].tolist()


def _draw(
    state: LoopState, parts: Parts, collector: Collector, *, prompts: int, drawn: int
) -> list[tuple[Batch[np.ndarray], int, Params]]:
    """Draws and rewards a round, with its prompts and seeds; the engine gets back its weights.

    Returns:
      Batches of one completion of each prompt, with the version that drew it and the other weights.
      In pairs there are two, of the same prompts and random numbers.
    """
    train, sampling = parts.prompts.train, replace(parts.collection.sampling, group_size=1)
    old, new = state.train.whole(state.server), state.train.whole()
    size = prompts * parts.collection.sampling.group_size
    place = state.step * 1000 + drawn // size
    stream = PromptStream(len(train), size, stream_seed(parts.seed, "certificate", 0))
    pairs = parts.certificate is not None and parts.certificate.pairs
    by_old, by_new = ([0], [0]) if pairs else (range(OLD), range(OLD, OLD + NEW))

    def draw(engine: Engine, number: int) -> tuple[Request, list[Group]]:
        problems = [int(n) for n in stream.indices(place + number)]
        seed = stream_seed(parts.seed, "certificate", place + number)
        request = Request(state.step, problems, [train[n] for n in problems], seed)
        return request, engine.generate(request.prompts, sampling, seed)

    with collector.alone() as engine:
        if engine.version != state.server_version:
            engine.publish(old, state.server_version)
        drawn_groups = [draw(engine, number) for number in by_old]
        engine.publish(new, state.step)
        drawn_groups += [draw(engine, number) for number in by_new]
        engine.publish(old, state.server_version)

    def rewarded() -> list[Batch[np.ndarray]]:
        batches = []
        for request, groups in drawn_groups:
            judged = parts.collection.reward_fn(request, range(len(groups)), groups)
            rewards = np.stack([each.rewards for each in judged])
            longest = parts.prompts.length, sampling.max_tokens
            batches.append(pad_groups(groups, *longest, rewards=rewards))
        return batches

    sides = [(state.server_version, new) for _ in by_old] + [(state.step, old) for _ in by_new]
    return [(batch, *side) for batch, side in zip(from_first(rewarded), sides, strict=True)]
