"""Evaluation of the trainer's weights on the held-out split: Pass@k, and mean rewards."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from ogrpo.evaluation import pass_at_k, success_reward
from ogrpo.evaluation.metrics import lines, mean_lines
from ogrpo.loop.parts import HeldoutVerdicts, Parts, Record, stream_seed
from ogrpo.loop.state import LoopState
from ogrpo.protocol import Engine
from ogrpo.rollout.collection import Collector
from ogrpo.rollout.embedded import EmbeddedEngine

MEAN = "heldout/reward"
"""Prefix of the mean rewards, in all and by name."""


def heldout_record(sampled: HeldoutVerdicts, greedy: HeldoutVerdicts, temperature: float) -> Record:
    """Returns the evaluation's lines of a record; a figure has its 95 % bounds beside it.

    Pass@k, of one sample or of all, is of the reward that says right or wrong (`success_reward`),
    with an interval of shares; it is None where no reward does. The weighted sum of the rewards and
    each reward by itself are means, with an interval for means.

    Raises:
      ValueError: the reward that is marked as saying right or wrong gave something else.
    """
    both = {name: np.append(values, greedy.values[name]) for name, values in sampled.values.items()}
    success = success_reward(both, sampled.success)
    judged = sampled.rewards[~np.isnan(sampled.rewards)]
    record: Record = {"heldout/by": success}
    for how, verdicts in (("sampled", sampled), ("greedy", greedy)):
        undecided = np.full_like(verdicts.rewards, np.nan)
        decided = undecided if success is None else verdicts.values[success]
        record |= mean_lines(f"pass@1/{how}", decided, share=True)
        if how == "sampled" and (samples := decided.shape[1]) > 1:
            known = (~np.isnan(decided)).all(axis=1).any()
            figure = pass_at_k(decided, samples) if known else None
            record |= lines(f"pass@{samples}/sampled", figure)
        record |= mean_lines(f"{MEAN}/{how}", verdicts.rewards)
        for name, values in verdicts.values.items():
            record |= mean_lines(f"{MEAN}/{name}/{how}", values)
    return {
        **record,
        "heldout/temperature": temperature,
        "heldout/unparsable": sampled.unparsable,
        "heldout/truncated": sampled.truncated,
        "heldout/unjudged": 1 - judged.size / sampled.rewards.size,
        "heldout/equal": float(np.unique(judged, return_counts=True)[1].max() / judged.size),
    }


def not_evaluated(samples: int) -> Record:
    """Returns an evaluation's lines, empty, but those of each reward by itself."""
    estimates = ["pass@1/sampled", "pass@1/greedy", f"{MEAN}/sampled", f"{MEAN}/greedy"]
    estimates += [f"pass@{samples}/sampled"] if samples > 1 else []
    facts = ("by", "temperature", "unparsable", "truncated", "unjudged", "equal")
    return {
        **{f"{key}{end}": None for key in estimates for end in ("", "/low", "/high")},
        **dict.fromkeys(f"heldout/{fact}" for fact in facts),
    }


def evaluate(state: LoopState, parts: Parts, collector: Collector | None) -> Record:
    """Scores the weights, or the mean that is kept of them; returns lines of a record.

    Where evaluation shares the samplers' engine, collection rests meanwhile, and the engine gets
    back the weights that it had.
    """
    evaluator, seed = parts.evaluator, stream_seed(parts.seed, "evaluation", state.step)
    engine, sampling = evaluator.engine, evaluator.sampling
    others = collector if engine is parts.collection.engine else None
    with others.alone() if others is not None else nullcontext() as shared:
        engine.publish(state.train.whole(), state.step)
        verdicts = [
            evaluator.judge(engine.generate(parts.prompts.heldout, how, seed))
            for how in (sampling, replace(sampling, greedy=True, group_size=1))
        ]
        withdraw(engine)
        if shared is not None and shared.version != state.server_version:
            shared.publish(state.train.whole(state.server), state.server_version)
    sampled, greedy = verdicts
    return heldout_record(sampled, greedy, sampling.temperature)


def withdraw(engine: Engine) -> None:
    """Has an engine in this process let go of weights that the trainer is to donate."""
    if isinstance(engine, EmbeddedEngine):
        engine.withdraw()
