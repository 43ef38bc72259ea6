"""Pass@1 and Pass@k of the trainer's own weights on the held-out split."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation import Estimate, clustered_interval, pass_at_k, wilson_interval
from ogrpo.learner.state import Params
from ogrpo.rollout.protocol import Sampling
from ogrpo.trainer.collect import judge
from ogrpo.trainer.state import Parts, Record, stream_seed


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


def evaluate(params: Params, parts: Parts, step: int) -> Evaluation:
    """Scores the trainer's own weights on every held-out prompt."""
    task, sampling = parts.task, parts.evaluation_sampling
    samples = sampling.group_size
    parts.evaluator.publish(params, step)
    seed = stream_seed(parts.seed, "evaluation", step)

    def rewards(chosen: Sampling) -> NDArray[np.float32]:
        groups = parts.evaluator.generate(task.heldout.prompts, chosen, seed)
        return judge(task, groups, task.heldout.answers, reward=task.evaluation_reward)

    outcomes = rewards(sampling)
    sampled = clustered_interval(outcomes)
    greedy = wilson_interval(rewards(replace(sampling, greedy=True, group_size=1))[:, 0])
    parts.evaluator.withdraw()
    solved = pass_at_k(outcomes, samples) if samples > 1 else sampled
    return Evaluation(sampled, greedy, sampling.temperature, solved, samples)
