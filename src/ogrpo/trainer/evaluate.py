"""Pass@1 and Pass@k of the trainer's own weights on the held-out split."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation import Estimate, clustered_interval, pass_at_k, wilson_interval
from ogrpo.learner.state import Params
from ogrpo.rollout.collection import Collector
from ogrpo.rollout.embedded import EmbeddedEngine
from ogrpo.rollout.protocol import Engine, Sampling
from ogrpo.trainer.state import LoopState, Parts, Record, stream_seed


@dataclass(frozen=True)
class Evaluation:
    """Scores on the held-out split: sampled at a named temperature, and greedy."""

    sampled: Estimate
    greedy: Estimate
    temperature: float
    solved: Estimate
    """Prompts of which at least one sample was right: Pass@k with k = `samples`."""
    samples: int
    """Completions of each prompt."""

    def record(self) -> Record:
        """The evaluation's lines of a metrics record; one sample a prompt has no Pass@k."""
        estimates = {"pass@1/sampled": self.sampled, "pass@1/greedy": self.greedy}
        if self.samples > 1:
            estimates[f"pass@{self.samples}/sampled"] = self.solved
        lines: Record = {}
        for key, estimate in estimates.items():
            bounds = {f"{key}/low": estimate.low, f"{key}/high": estimate.high}
            lines |= {key: estimate.mean, **bounds}
        return {**lines, "pass@1/temperature": self.temperature}


def not_evaluated(samples: int) -> Record:
    """The same lines, empty, of a step without an evaluation."""
    nothing = Estimate(0, 0, 0, 0)
    return dict.fromkeys(Evaluation(nothing, nothing, 1, nothing, samples).record())


def evaluate(state: LoopState, parts: Parts, collector: Collector | None) -> Evaluation:
    """Scores the trainer's own weights on every held-out prompt.

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


def _evaluate(params: Params, parts: Parts, step: int) -> Evaluation:
    sampling = parts.evaluation_sampling
    samples = sampling.group_size
    parts.evaluator.publish(params, step)
    seed = stream_seed(parts.seed, "evaluation", step)

    def rewards(chosen: Sampling) -> NDArray[np.float32]:
        return parts.evaluation_fn(parts.evaluator.generate(parts.prompts.heldout, chosen, seed))

    outcomes = rewards(sampling)
    sampled = clustered_interval(outcomes)
    greedy = wilson_interval(rewards(replace(sampling, greedy=True, group_size=1))[:, 0])
    withdraw(parts.evaluator)
    solved = pass_at_k(outcomes, samples) if samples > 1 else sampled
    return Evaluation(sampled, greedy, sampling.temperature, solved, samples)
