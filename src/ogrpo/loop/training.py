"""Algorithm 1 of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257), with reuse.

    prompt -> rollout (token ids, behaviour log-probs, policy version) -> reward
           -> replay buffer (whole groups) -> batch -> log-probs -> objective -> update -> publish

Policies and who holds them:
    pi_theta  `train.params`: differentiated
    pi_k      the trainer's own when a batch is drawn; its log-probs are `proximal_log_probs`
    mu        `server`: what the engine samples from, republished every `v` steps (alpha there)
    pi_ref    `reference`: swapped in at the start of each of the `stages`; absent when beta = 0

A policy version is the number of the step at which its weights were published, so that
`step - version` is the staleness in steps. Every figure of metrics.jsonl is assembled here.
"""

from collections.abc import Callable, Generator
from dataclasses import replace

import jax

from ogrpo.core.algorithms import REFERENCE
from ogrpo.learner.hosts import is_first
from ogrpo.learner.memory import LEAST_SECONDS, give_back
from ogrpo.loop.certify import NOT_CERTIFIED, certify_period
from ogrpo.loop.collect import Fresh, insert, make_collector, take
from ogrpo.loop.evaluate import evaluate, not_evaluated
from ogrpo.loop.learn import run_updates, stop_where_diverged
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.state import LoopState, Stopwatch, snapshot
from ogrpo.rollout.check import REFUSED
from ogrpo.rollout.collection import Collector

BeforeEvaluation = Callable[[LoopState, Callable[[], Record]], None]
"""Called when a step is complete but for its evaluation: with its state, and with what makes its
record without one."""


def train(
    state: LoopState, parts: Parts, before_evaluation: BeforeEvaluation = lambda *_: None
) -> Generator[tuple[LoopState, Record], None, None]:
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
            evaluation = evaluate(state, parts, None)
        yield state, first_record(state, watch, evaluation)
    with make_collector(state, parts) as collector:
        if (record := state.unevaluated) is not None:  # its evaluation failed when it was last run
            watch = Stopwatch()
            with watch("eval"):
                evaluation = evaluate(state, parts, collector)
            state = replace(state, unevaluated=None)
            yield state, {**record, **evaluation, "seconds/eval": watch.seconds["eval"]}
        while state.step < parts.schedule.steps:
            state, record = advance(state, parts, collector, before_evaluation)
            yield state, record
            stop_where_diverged(state, parts.limits.skipped)
            parts.limits.mismatch.check(state.mismatch, state.step)


def advance(
    state: LoopState,
    parts: Parts,
    collector: Collector,
    before_evaluation: BeforeEvaluation = lambda *_: None,
) -> tuple[LoopState, Record]:
    """Takes one step: renews the server, takes groups, stores them, updates, evaluates."""
    schedule, watch, begun = parts.schedule, Stopwatch(), state
    with watch("sync"):
        state = synchronise(state, parts, collector)
    state.buffer.expire(state.step)  # before what is new: too old on arrival, it is refused
    with watch("rollout"):
        fresh = take(parts, collector, state.step) if schedule.collects(state.step) else None
    state = insert(state, fresh, parts)
    evaluates = schedule.evaluates(state.step + 1)
    with watch("update"):
        if not parts.collection.limits.lead:  # else a call may be drawing with them
            _free_renewed(begun, state)
        if watch.seconds["rollout"] >= LEAST_SECONDS:
            give_back()
        state, used = run_updates(state, fresh, parts, examine=evaluates)
        groups, ends = None if fresh is None else fresh.groups, is_due(state, parts)
        state, certificate = certify_period(state, groups, parts, collector, ends=ends)

    def record(evaluation: Record | None) -> Record:
        figures = fresh, used, certificate
        return step_record(state, parts, watch, collector, evaluation, *figures)

    evaluation = None
    if evaluates:
        before_evaluation(state, lambda: record(None))
        with watch("eval"):
            evaluation = evaluate(state, parts, collector)
    return state, record(evaluation) if is_first() else {}


def _free_renewed(begun: LoopState, state: LoopState) -> None:
    """Frees the server's weights that others took the place of; `begun`, which has them, is held.

    Until the update takes its arrays it is what an error in the middle of the step would save.
    """
    kept = set(map(id, jax.tree.leaves((state.server, state.reference))))
    for leaf in jax.tree.leaves(begun.server):
        if id(leaf) not in kept:
            leaf.delete()


def is_due(state: LoopState, parts: Parts) -> bool:
    """Whether the server gets new weights before `state.step`: by schedule, or by the signals."""
    return parts.schedule.renews(state.step) or (state.used_up and not parts.schedule.offline)


def synchronise(state: LoopState, parts: Parts, collector: Collector) -> LoopState:
    """Renews the server's weights where they are due; reference and optimizer at a stage's start.

    A new server period begins with weights that no sample of it has seen.
    """
    learner = parts.learner
    stage = parts.schedule.starts_stage(state.step) and state.step > 0
    swaps, renews = stage and REFERENCE in parts.method.reads, is_due(state, parts)
    if stage and learner.reset_optimizer is not None:
        state = replace(state, train=learner.reset_optimizer(state.train))
    if swaps or renews:
        now = snapshot(state.train.params)
        if swaps:
            state = replace(state, reference=now)
        if renews:
            versions = {"previous_version": state.server_version, "server_version": state.step}
            state = replace(state, server=now, **versions, gains=(), used_up=False)
    if collector.version != state.server_version:
        collector.publish(state.train.whole(state.server), state.server_version)
    return state


NOT_COLLECTED: Record = dict.fromkeys(("reward", "unjudged", "truncated", "length", "tokens/s"))
NOT_UPDATED: Record = dict.fromkeys(("kl/mu_pi", "ess", "staleness"))


def first_record(state: LoopState, watch: Stopwatch, evaluation: Record) -> Record:
    """Returns the record before the first step."""
    lines = _lines(state, watch)
    return {**lines, "reward": None, **NOT_UPDATED, **NOT_CERTIFIED, **evaluation}


def step_record(
    state: LoopState,
    parts: Parts,
    watch: Stopwatch,
    collector: Collector,
    evaluation: Record | None,
    fresh: Fresh | None,
    used: Record,
    certificate: Record,
) -> Record:
    """Returns the record of a step that has ended; None for an evaluation that was not made."""
    samples, group_size = parts.evaluator.sampling.group_size, parts.collection.sampling.group_size
    collection, engine = collector.metrics(), parts.collection.engine.metrics()
    refused = sorted({name for name in (*collection, *engine) if name.startswith(REFUSED)})
    replay = state.buffer.statistics()
    came = state.completions + int(replay.get("logged", 0)) * group_size
    collected = NOT_COLLECTED
    if fresh is not None:
        # With overlap the seconds that the trainer waits say nothing of the engine's speed.
        ahead = parts.schedule.sync_offset > 0
        speed = collection["collect/tokens/s"] if ahead else fresh.tokens / watch.seconds["rollout"]
        collected = {
            "reward": float(fresh.judged_rewards.mean()),
            **{f"reward/{name}": value for name, value in fresh.values.items()},
            "unjudged": len(fresh.failures),
            "truncated": fresh.truncated / fresh.groups.rewards.size,
            "length": fresh.tokens / fresh.groups.rewards.size,
            "tokens/s": speed,
        }
    return {
        **_lines(state, watch),
        **NOT_UPDATED,
        **(not_evaluated(samples) if evaluation is None else evaluation),
        **collected,
        **used,
        **certificate,
        **{f"replay/{name}": value for name, value in replay.items()},
        "replay/ratio": state.uses * group_size / max(came, 1),
        **collection,
        **parts.collection.reward_metrics(),
        **engine,
        **{name: collection.get(name, 0) + engine.get(name, 0) for name in refused},
    }


def _lines(state: LoopState, watch: Stopwatch) -> Record:
    return {
        "step": state.step,
        "completions": state.completions,
        "updates": int(state.train.updates),
        "update/skipped": state.skipped,
        "tokens": state.tokens,
        "flops/rollout": state.rollout_flops,
        "flops/update": state.update_flops,
        **{f"seconds/{phase}": spent for phase, spent in watch.seconds.items()},
    }
