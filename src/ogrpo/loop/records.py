"""The record of a step: every figure of metrics.jsonl, assembled here and nowhere else."""

from ogrpo.loop.certify import NOT_CERTIFIED
from ogrpo.loop.collect import Fresh
from ogrpo.loop.evaluate import not_evaluated
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.state import LoopState, Stopwatch
from ogrpo.rollout.check import REFUSED
from ogrpo.rollout.collection import Collector

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
