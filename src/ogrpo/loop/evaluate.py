"""What the trainer's own weights earn on the held-out split: Pass@k, and mean rewards."""

from dataclasses import replace
from math import isnan

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation import Estimate, estimate, pass_at_k, success_reward
from ogrpo.learner.state import Params
from ogrpo.loop.heldout import HeldoutVerdicts
from ogrpo.loop.state import LoopState, Parts, Record, stream_seed
from ogrpo.protocol import Engine, Sampling
from ogrpo.rollout.collection import Collector
from ogrpo.rollout.embedded import EmbeddedEngine

MEAN = "heldout/reward"
"""Prefix of the mean rewards, in all and by name."""


def heldout_record(sampled: HeldoutVerdicts, greedy: HeldoutVerdicts, temperature: float) -> Record:
    """The evaluation's lines of a metrics record; a figure has its 95 % bounds beside it.

    Pass@k, of one sample or of all, is of the reward that says right or wrong (`success_reward`),
    with an interval of shares; it is None where no reward does. The weighted sum of the rewards and
    each reward by itself are means, with an interval for means.

    Raises:
      ValueError: the reward that is marked as saying right or wrong gave something else.
    """
    both = {
        name: np.concatenate([sampled.values[name].ravel(), greedy.values[name].ravel()])
        for name in sampled.values
    }
    success = success_reward(both, sampled.success)
    known = sampled.rewards[~np.isnan(sampled.rewards)]
    lines: Record = {"heldout/by": success}
    for how, verdicts in (("sampled", sampled), ("greedy", greedy)):
        decided = None if success is None else verdicts.values[success]
        lines |= _lines(f"pass@1/{how}", decided, share=True)
        if how == "sampled":
            lines |= _pass_at_all(decided, samples=sampled.rewards.shape[1])
        lines |= _lines(f"{MEAN}/{how}", verdicts.rewards, share=False)
        for name, values in verdicts.values.items():
            lines |= _lines(f"{MEAN}/{name}/{how}", values, share=False)
    return {
        **lines,
        "heldout/temperature": temperature,
        "heldout/unparsable": sampled.unparsable,
        "heldout/truncated": sampled.truncated,
        "heldout/unjudged": 1 - known.size / sampled.rewards.size,
        "heldout/equal": float(np.unique(known, return_counts=True)[1].max() / known.size),
    }


def _lines(key: str, values: NDArray[np.float32] | None, *, share: bool) -> Record:
    if values is None or np.isnan(values).all():
        return dict.fromkeys((key, f"{key}/low", f"{key}/high"))
    return _with_bounds(key, estimate(values, success=share))


def _with_bounds(key: str, found: Estimate) -> Record:
    bounds = {"low": found.low, "high": found.high}
    known = {f"{key}/{end}": None if isnan(value) else value for end, value in bounds.items()}
    return {key: found.mean, **known}


def _pass_at_all(decided: NDArray[np.float32] | None, *, samples: int) -> Record:
    """Pass@k with k the samples of each prompt; None where no prompt has all its verdicts."""
    if samples == 1:
        return {}
    key = f"pass@{samples}/sampled"
    if decided is None or not (~np.isnan(decided)).all(axis=1).any():
        return dict.fromkeys((key, f"{key}/low", f"{key}/high"))
    return _with_bounds(key, pass_at_k(decided, samples))


def not_evaluated(samples: int) -> Record:
    """The lines that every record has, empty, of a step without an evaluation: all but those of
    each reward by itself."""
    estimates = ["pass@1/sampled", "pass@1/greedy", f"{MEAN}/sampled", f"{MEAN}/greedy"]
    estimates += [f"pass@{samples}/sampled"] if samples > 1 else []
    facts = ("by", "temperature", "unparsable", "truncated", "unjudged", "equal")
    return {
        **{f"{key}{end}": None for key in estimates for end in ("", "/low", "/high")},
        **dict.fromkeys(f"heldout/{fact}" for fact in facts),
    }


def evaluate(state: LoopState, parts: Parts, collector: Collector | None) -> Record:
    """Scores the trainer's own weights on every held-out prompt; returns lines of a record.

    Where evaluation shares the samplers' engine, collection rests meanwhile, and the engine is
    given back with the weights that it had.
    """
    if collector is None or parts.evaluator is not parts.engine:
        return _evaluate(state.train.whole(), parts, state.step)
    with collector.alone() as engine:
        found = _evaluate(state.train.whole(), parts, state.step)
        if engine.version != state.server_version:
            engine.publish(state.train.whole(state.server), state.server_version)
    return found


def withdraw(engine: Engine) -> None:
    """Has an engine in this process let go of weights that the trainer is to donate."""
    if isinstance(engine, EmbeddedEngine):
        engine.withdraw()


def _evaluate(params: Params, parts: Parts, step: int) -> Record:
    sampling = parts.evaluation_sampling
    parts.evaluator.publish(params, step)
    seed = stream_seed(parts.seed, "evaluation", step)

    def verdicts(how: Sampling) -> HeldoutVerdicts:
        return parts.evaluation_fn(parts.evaluator.generate(parts.prompts.heldout, how, seed))

    sampled = verdicts(sampling)
    greedy = verdicts(replace(sampling, greedy=True, group_size=1))
    withdraw(parts.evaluator)
    return heldout_record(sampled, greedy, sampling.temperature)
