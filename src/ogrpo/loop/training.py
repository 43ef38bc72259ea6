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

from ogrpo.config.schedule import Schedule
from ogrpo.core.algorithms import REFERENCE
from ogrpo.learner.hosts import is_first
from ogrpo.loop.certify import certify_period
from ogrpo.loop.collect import inserted, request_at, take
from ogrpo.loop.evaluate import evaluate
from ogrpo.loop.learn import (
    controlled,
    run_updates,
    stop_where_diverged,
    with_rewards,
)
from ogrpo.loop.records import first_record, step_record
from ogrpo.loop.state import LoopState, Parts, Record, Stopwatch, snapshot
from ogrpo.rollout.collection import Collector


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
        if state.unevaluated is not None:
            state, record = settled(state, state.unevaluated, parts, collector)
            yield state, record
        while state.step < schedule.steps:
            state, record = advance(state, parts, schedule, collector)
            yield state, record
            stop_where_diverged(state, parts.max_skipped)
            parts.mismatch.check(state.mismatch, state.step)


def advance(
    state: LoopState, parts: Parts, schedule: Schedule, collector: Collector
) -> tuple[LoopState, Record]:
    """One step: renew the server, take groups, store them, draw and update, evaluate."""
    watch = Stopwatch()
    with watch("sync"):
        state = synchronise(state, parts, schedule, collector)
    state.buffer.expire(state.step)  # before what is new: too old on arrival, it is refused
    with watch("rollout"):
        fresh = take(parts, collector, state.step) if schedule.collects(state.step) else None
    state = inserted(state, fresh, parts)
    evaluates = schedule.evaluates(state.step + 1)
    with watch("update"):
        state, result = run_updates(state, parts, schedule, measure_noise=evaluates)
        state = with_rewards(state, fresh, parts)
        state = replace(controlled(state, parts, result), step=state.step + 1)
        groups = None if fresh is None else fresh.groups
        ahead = schedule.sync_offset > 0
        state, certificate = certify_period(
            state, groups, parts, collector, ends=due(state, schedule), ahead=ahead
        )

    def record(evaluation: Record | None) -> Record:
        trained = (fresh, result, certificate)
        return step_record(state, parts, schedule, watch, collector, evaluation, *trained)

    evaluation = None
    if evaluates:
        parts.before_evaluation(state, lambda: record(None))
        with watch("eval"):
            evaluation = evaluate(state, parts, collector)
    return state, record(evaluation) if is_first() else {}


def settled(
    state: LoopState, unevaluated: Record, parts: Parts, collector: Collector
) -> tuple[LoopState, Record]:
    """A step whose evaluation failed when the run was last started: evaluates, and ends it."""
    watch = Stopwatch()
    with watch("eval"):
        evaluation = evaluate(state, parts, collector)
    record = {**unevaluated, **evaluation, "seconds/eval": watch.seconds["eval"]}
    return replace(state, unevaluated=None), record


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
        state = renewed(state, now) if renews else state
    if collector.version != state.server_version:
        collector.publish(state.train.whole(state.server), state.server_version)
    return state


def renewed(state: LoopState, server: object) -> LoopState:
    """A new server period begins with weights that no sample of it has seen."""
    return replace(
        state,
        previous_version=state.server_version,
        server=server,
        server_version=state.step,
        gaps=(),
        used_up=False,
    )
