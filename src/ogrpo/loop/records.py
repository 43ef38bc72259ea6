"""The record of a step: every figure of metrics.jsonl, assembled here and nowhere else."""

from collections.abc import Mapping

from ogrpo.config.schedule import Schedule
from ogrpo.loop.certify import NOT_CERTIFIED
from ogrpo.loop.collect import Fresh
from ogrpo.loop.evaluate import not_evaluated
from ogrpo.loop.learn import StepResult
from ogrpo.loop.state import LoopState, Parts, Record, Stopwatch
from ogrpo.rollout.check import REFUSED
from ogrpo.rollout.collection import Collector

NOT_COLLECTED: Record = dict.fromkeys(("reward", "unjudged", "truncated", "length", "tokens/s"))


def first_record(state: LoopState, watch: Stopwatch, evaluation: Record) -> Record:
    """The record before the first step."""
    unknown = dict.fromkeys(("reward", "kl/mu_pi", "ess", "staleness"))
    return {
        **counted(state),
        **unknown,
        **NOT_CERTIFIED,
        **evaluation,
        **timed(watch),
    }


def step_record(
    state: LoopState,
    parts: Parts,
    schedule: Schedule,
    watch: Stopwatch,
    collector: Collector,
    evaluation: Record | None,
    fresh: Fresh | None,
    result: StepResult,
    certificate: Record,
) -> Record:
    """The record of a step that has ended."""
    samples = parts.evaluation_sampling.group_size
    collection, engine = collector.metrics(), parts.engine.metrics()
    return {
        **counted(state),
        **dict.fromkeys(("kl/mu_pi", "ess", "staleness")),
        **(not_evaluated(samples) if evaluation is None else evaluation),
        **collected(fresh, watch, collection, overlapped=schedule.sync_offset > 0),
        **result.record(),
        **certificate,
        **replayed(state, parts),
        **collection,
        **parts.reward_metrics(),
        **engine,
        **refused(collection, engine),
        **timed(watch),
    }


def counted(state: LoopState) -> Record:
    """Where the run stands."""
    return {
        "step": state.step,
        "completions": state.completions,
        "updates": int(state.train.updates),
        "update/skipped": state.skipped,
        "tokens": state.tokens,
        "flops/rollout": state.rollout_flops,
        "flops/update": state.update_flops,
    }


def collected(
    fresh: Fresh | None, watch: Stopwatch, collection: Mapping[str, float], *, overlapped: bool
) -> Record:
    """What came from the samplers and from the rewards."""
    if fresh is None:
        return NOT_COLLECTED
    # With overlap the trainer's own wait says nothing of the engine's speed.
    own = fresh.tokens / watch.seconds["rollout"]
    return {
        "reward": float(fresh.judged_rewards.mean()),
        **{f"reward/{name}": value for name, value in fresh.values.items()},
        "unjudged": len(fresh.failures),
        "truncated": fresh.truncated / fresh.groups.rewards.size,
        "length": fresh.tokens / fresh.groups.rewards.size,
        "tokens/s": collection["collect/tokens/s"] if overlapped else own,
    }


def refused(collection: Mapping[str, float], engine: Mapping[str, float]) -> Record:
    """Completions that were not what was ordered, as seen by the engine and the collector."""
    names = {name for name in (*collection, *engine) if name.startswith(REFUSED)}
    return {name: collection.get(name, 0) + engine.get(name, 0) for name in sorted(names)}


def replayed(state: LoopState, parts: Parts) -> Record:
    """What the buffer holds, and how often what was collected was used."""
    statistics = {f"replay/{name}": value for name, value in state.buffer.statistics().items()}
    used = state.uses * parts.sampling.group_size / max(state.completions, 1)
    return {**statistics, "replay/ratio": used}


def timed(watch: Stopwatch) -> Record:
    """Wall seconds by phase."""
    return {f"seconds/{phase}": spent for phase, spent in watch.seconds.items()}
