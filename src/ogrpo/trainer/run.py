"""Algorithm 1 of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257), with reuse.

    prompt -> rollout (token ids, behaviour log-probs, policy version) -> reward
           -> replay buffer (whole groups) -> batch -> log-probs -> objective -> update -> publish

Policies and who holds them:
    pi_theta  `train.params`: differentiated
    pi_k      the trainer's own when a batch is drawn; its log-probs are `proximal_log_probs`
    mu        `server`: what the engine samples from, republished every `v` steps (alpha there)
    pi_ref    `reference`: swapped in at the start of each of the `stages`; absent when beta = 0

A policy version is the number of the step at which its weights were published, so that
`step - version` is the staleness in steps.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ogrpo.core.algorithms import REFERENCE
from ogrpo.rollout.collection import Collector
from ogrpo.trainer.collect import Collected, collect, request_at
from ogrpo.trainer.evaluate import evaluate, not_evaluated
from ogrpo.trainer.improve import NOT_CERTIFIED, certify_period, improve
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import LoopState, Parts, Record, Stopwatch, snapshot


def train(state: LoopState, parts: Parts, schedule: Schedule) -> Iterator[tuple[LoopState, Record]]:
    """Runs the remaining steps, yielding the state and a metrics record after each.

    A fresh run first yields the evaluation of the initial policy as step 0's record.
    """
    if state.step == 0:
        watch = Stopwatch()
        with watch("eval"):
            base = evaluate(state.train.whole(), parts, 0)
        yield state, _record(state, watch, {**NOT_CERTIFIED, **base.record()})
    with make_collector(state, parts, schedule) as collector:
        while state.step < schedule.steps:
            yield (turn := advance(state, parts, schedule, collector))
            state = turn[0]


def make_collector(state: LoopState, parts: Parts, schedule: Schedule) -> Collector:
    """Buys the groups of the remaining steps, `lead` batches ahead.

    What was on its way when a checkpoint was written is asked for again from the same weights. This
    repeats it exactly for a lead of 0 or 1; for a longer one, those batches are a little fresher.
    """
    last = schedule.warmup if schedule.offline else schedule.steps
    collector = Collector(
        parts.engine,
        partial(request_at, parts, schedule),
        parts.sampling,
        steps=range(state.step, max(last, state.step)),
        limits=parts.collection,
        retry_on=parts.retry_on,
    )
    collector.publish(state.train.whole(state.server), state.server_version)
    collector.request(state.step + schedule.lead - 1)
    return collector


def advance(
    state: LoopState, parts: Parts, schedule: Schedule, collector: Collector
) -> tuple[LoopState, Record]:
    """One step: renew the server, buy, store, draw and update, evaluate."""
    watch = Stopwatch()
    state = synchronise(state, parts, schedule, collector, watch)
    bought: Record = NOT_BOUGHT
    collected = None
    state.buffer.expire(state.step)  # before what is new: too old on arrival, it is refused
    if schedule.buys(state.step):
        collected = collect(parts, collector, state.step, watch)
        state, bought = stored(state, collected, parts, watch)
    evaluates = (state.step + 1) % schedule.evaluate_every == 0 or state.step + 1 == schedule.steps
    with watch("update"):
        state, reuse = improve(state, parts, schedule, measure_noise=evaluates)
        state = replace(state, step=state.step + 1)
        certificate = NOT_CERTIFIED
        if collected is not None:
            ends = due(state, schedule)
            state, certificate = certify_period(state, collected, parts, ends=ends)
    evaluation = not_evaluated(parts.evaluation_sampling.group_size)
    if evaluates:
        with watch("eval"):
            evaluation = evaluate(state.train.whole(), parts, state.step).record()
    replay = {f"replay/{name}": value for name, value in state.buffer.statistics().items()}
    replay["replay/ratio"] = state.uses * parts.sampling.group_size / max(state.completions, 1)
    collection = collector.metrics()
    if schedule.lead > 0:  # the trainer's own wait says nothing of the engine's speed
        bought = {**bought, "tokens/s": collection["collect/tokens/s"]}
    values = {**evaluation, **bought, **reuse.record(), **certificate, **replay}
    return state, _record(state, watch, {**values, **collection, **parts.engine.metrics()})


def stored(
    state: LoopState, collected: Collected, parts: Parts, watch: Stopwatch
) -> tuple[LoopState, Record]:
    """The fresh groups in the buffer, and counted."""
    state.buffer.insert(collected.experiences)
    size, tokens = collected.rewards.size, collected.tokens
    longest = int(collected.groups.completion_mask.sum(axis=-1).max())
    state = replace(
        state,
        completions=state.completions + size,
        tokens=state.tokens + tokens,
        rollout_flops=state.rollout_flops + parts.costs.rollout(longest),
    )
    return state, {
        "reward": float(collected.rewards.mean()),
        "truncated": collected.truncated / size,
        "tokens/s": tokens / watch.seconds["rollout"],
    }


NOT_BOUGHT: Record = dict.fromkeys(("reward", "truncated", "tokens/s"))


def due(state: LoopState, schedule: Schedule) -> bool:
    """Whether the server gets new weights before `state.step`: by schedule, or by the signals."""
    return schedule.renews(state.step) or (state.used_up and not schedule.offline)


def synchronise(
    state: LoopState, parts: Parts, schedule: Schedule, collector: Collector, watch: Stopwatch
) -> LoopState:
    """At a stage's start a new reference and optimizer; the server's weights where they are due."""
    with watch("sync"):
        stage = schedule.starts_stage(state.step) and state.step > 0
        swaps = stage and REFERENCE in parts.reads
        renews = due(state, schedule)
        if stage and parts.reset_optimizer is not None:
            state = replace(state, train=parts.reset_optimizer(state.train))
        if swaps or renews:
            now = snapshot(state.train.params)
            state = replace(state, reference=now) if swaps else state
            state = renewed(state, now, parts) if renews else state
        if collector.version != state.server_version:
            collector.publish(state.train.whole(state.server), state.server_version)
    return state


def renewed(state: LoopState, server: object, parts: Parts) -> LoopState:
    """A new server period begins with weights that no sample of it has seen."""
    previous = state.server if parts.certificate_delta is not None else None
    return replace(
        state, previous=previous, server=server, server_version=state.step, gaps=(), used_up=False
    )


def _record(state: LoopState, watch: Stopwatch, values: Record) -> Record:
    return {
        "step": state.step,
        "completions": state.completions,
        "updates": int(state.train.updates),
        "tokens": state.tokens,
        "flops/rollout": state.rollout_flops,
        "flops/update": state.update_flops,
        "reward": None,
        "kl/mu_pi": None,
        "ess": None,
        "staleness": None,
        **values,
        **{f"seconds/{phase}": spent for phase, spent in watch.seconds.items()},
    }
