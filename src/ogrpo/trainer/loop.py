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
from ogrpo.learner.hosts import is_first
from ogrpo.rollout.collection import Collector
from ogrpo.trainer.collect import inserted, request_at, take
from ogrpo.trainer.evaluate import evaluate
from ogrpo.trainer.learn import (
    Use,
    certify_period,
    controlled,
    draws,
    score,
    stop_where_diverged,
    update,
    with_rewards,
)
from ogrpo.trainer.records import first_record, step_record
from ogrpo.trainer.schedule import Schedule
from ogrpo.trainer.state import LoopState, Parts, Record, Stopwatch, snapshot


def train(state: LoopState, parts: Parts, schedule: Schedule) -> Iterator[tuple[LoopState, Record]]:
    """Runs the remaining steps, yielding the state and a metrics record after each.

    A fresh run first yields the evaluation of the initial policy as step 0's record. With several
    processes all run this loop, and the first alone has records.

    Raises:
      DivergedError: after the record of a step whose updates were skipped once too often.
      RolloutError: after that of a step whose samples' log-probs are not the trainer's.
    """
    if state.step == 0:
        watch = Stopwatch()
        with watch("eval"):
            base = evaluate(state, parts, None)
        yield state, first_record(state, watch, base)
    with make_collector(state, parts, schedule) as collector:
        if state.owed is not None:
            yield (turn := settled(state, state.owed, parts, collector))
            state = turn[0]
        while state.step < schedule.steps:
            yield (turn := advance(state, parts, schedule, collector))
            state = turn[0]
            stop_where_diverged(state, parts.max_skipped)
            parts.mismatch.check(state.mismatch, state.step)


def advance(
    state: LoopState, parts: Parts, schedule: Schedule, collector: Collector
) -> tuple[LoopState, Record]:
    """One step: renew the server, take groups, store them, draw and update, evaluate."""
    watch, evaluation = Stopwatch(), None
    with watch("sync"):
        state = synchronise(state, parts, schedule, collector)
    state.buffer.expire(state.step)  # before what is new: too old on arrival, it is refused
    with watch("rollout"):
        fresh = take(parts, collector, state.step) if schedule.collects(state.step) else None
    state = inserted(state, fresh, parts)
    evaluates = schedule.evaluates(state.step + 1)
    with watch("update"):
        use = Use(measure_noise=evaluates)
        for draw in draws(state, parts, schedule, use):
            batch = score(state, draw, parts, schedule)
            state = update(state, batch, parts, schedule, use)
            if use.used_up(parts.limits) or is_over(state, parts):
                break
        state = with_rewards(state, fresh, parts)
        state = replace(controlled(state, parts, use), step=state.step + 1)
        ends = due(state, schedule)
        state, certificate = certify_period(state, fresh, parts, ends=ends)
    record = partial(step_record, state, parts, schedule, watch, collector)
    rest = (fresh, use, certificate)
    if evaluates:
        parts.heard(state, lambda: record(None, *rest))
        with watch("eval"):
            evaluation = evaluate(state, parts, collector)
    return state, record(evaluation, *rest) if is_first() else {}


def settled(
    state: LoopState, owed: Record, parts: Parts, collector: Collector
) -> tuple[LoopState, Record]:
    """A step whose evaluation failed when the run was last started: evaluates, and ends it."""
    watch = Stopwatch()
    with watch("eval"):
        evaluation = evaluate(state, parts, collector)
    record = {**owed, **evaluation.record(), "seconds/eval": watch.seconds["eval"]}
    return replace(state, owed=None), record


def make_collector(state: LoopState, parts: Parts, schedule: Schedule) -> Collector:
    """Collects the groups of the remaining steps, `lead` batches ahead.

    What was on its way when a checkpoint was written is asked for again from the same weights. This
    repeats it exactly for a lead of 0 or 1; for a longer one, those batches are a little fresher.
    """
    last = schedule.warmup if schedule.offline else schedule.steps
    collector = parts.collect(
        parts.engine,
        partial(request_at, parts, schedule),
        parts.sampling,
        parts.reward_fn,
        steps=range(state.step, max(last, state.step)),
        limits=parts.collection,
        retry_on=parts.retry_on,
        terms=parts.terms,
    )
    collector.publish(state.train.whole(state.server), state.server_version)
    collector.request(state.step + schedule.sync_offset - 1)
    return collector


def is_over(state: LoopState, parts: Parts) -> bool:
    """Whether the run ends with this step, by what its updates have shown."""
    return state.skipped_in_a_row > parts.max_skipped or parts.mismatch.passed_by(state.mismatch)


def due(state: LoopState, schedule: Schedule) -> bool:
    """Whether the server gets new weights before `state.step`: by schedule, or by the signals."""
    return schedule.renews(state.step) or (state.used_up and not schedule.offline)


def synchronise(
    state: LoopState, parts: Parts, schedule: Schedule, collector: Collector
) -> LoopState:
    """At a stage's start a new reference and optimizer; the server's weights where they are due."""
    stage = schedule.starts_stage(state.step) and state.step > 0
    swaps = stage and REFERENCE in parts.reads
    renews = due(state, schedule)
    if stage and parts.reset_optimizer is not None:
        state = replace(state, train=parts.reset_optimizer(state.train))
    if swaps or renews:
        now = snapshot(state.train.params)
        state = replace(state, reference=parts.reference.keep(now)) if swaps else state
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
