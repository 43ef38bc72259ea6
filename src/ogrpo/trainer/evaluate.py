"""Pass@1 and Pass@k of the trainer's own weights on the held-out split."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation import Estimate, clustered_interval, mean_interval, pass_at_k
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
    solved: Estimate | None
    """Prompts of which at least one sample was right: Pass@k with k = `samples`. None where rewards
    are graded, so that nothing is right or wrong, or where no prompt has all its verdicts."""
    samples: int
    """Completions of each prompt."""

    def record(self) -> Record:
        """The evaluation's lines of a metrics record; one sample a prompt has no Pass@k."""
        estimates = {"pass@1/sampled": self.sampled, "pass@1/greedy": self.greedy}
        lines: Record = {}
        for key, found in estimates.items():
            lines |= {key: found.mean, f"{key}/low": found.low, f"{key}/high": found.high}
        if self.samples > 1:
            key, found = f"pass@{self.samples}/sampled", self.solved
            bounds = (None, None, None) if found is None else (found.mean, found.low, found.high)
            lines |= dict(zip((key, f"{key}/low", f"{key}/high"), bounds, strict=True))
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
    greedy = estimate(rewards(replace(sampling, greedy=True, group_size=1)))
    withdraw(parts.evaluator)
    sampled = estimate(outcomes)
    whole = is_verdict(outcomes) and (~np.isnan(outcomes)).all(axis=1).any()
    solved = pass_at_k(outcomes, samples) if samples > 1 and whole else None
    return Evaluation(sampled, greedy, sampling.temperature, solved, samples)


def is_verdict(rewards: NDArray[np.float32]) -> bool:
    """Whether rewards say right or wrong and nothing between; NaN is no verdict."""
    return bool((np.isin(rewards, (0.0, 1.0)) | np.isnan(rewards)).all())


def estimate(rewards: NDArray[np.float32]) -> Estimate:
    """The mean of rewards `[N, k]` with its interval: of right ones a share."""
    return clustered_interval(rewards) if is_verdict(rewards) else mean_interval(rewards)
