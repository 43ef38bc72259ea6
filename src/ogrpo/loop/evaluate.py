"""Pass@1 of the trainer's own weights on the held-out split."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ogrpo.evaluation import Estimate, clustered_interval, wilson_interval
from ogrpo.loop.collect import judge
from ogrpo.loop.state import Parts, Record, stream_seed
from ogrpo.rollout.protocol import Sampling
from ogrpo.training.state import Params


@dataclass(frozen=True)
class Evaluation:
    """Pass@1 on the held-out split: sampled at a named temperature, and greedy."""

    sampled: Estimate
    greedy: Estimate
    temperature: float

    def record(self) -> Record:
        """The evaluation's lines of a metrics record."""
        return {
            "pass@1/sampled": self.sampled.mean,
            "pass@1/sampled/low": self.sampled.low,
            "pass@1/sampled/high": self.sampled.high,
            "pass@1/greedy": self.greedy.mean,
            "pass@1/greedy/low": self.greedy.low,
            "pass@1/greedy/high": self.greedy.high,
            "pass@1/temperature": self.temperature,
        }


NOT_EVALUATED: Record = dict.fromkeys(
    Evaluation(Estimate(0, 0, 0, 0), Estimate(0, 0, 0, 0), 1).record()
)


def evaluate(params: Params, parts: Parts, step: int) -> Evaluation:
    """Scores the trainer's own weights on every held-out prompt."""
    task, sampling = parts.task, parts.evaluation_sampling
    parts.evaluator.publish(params, step)
    seed = stream_seed(parts.seed, "evaluation", step)

    def rewards(chosen: Sampling) -> NDArray[np.float32]:
        groups = parts.evaluator.generate(task.heldout.prompts, chosen, seed)
        return judge(task, groups, task.heldout.answers, reward=task.evaluation_reward)

    sampled = clustered_interval(rewards(sampling))
    greedy = wilson_interval(rewards(replace(sampling, greedy=True, group_size=1))[:, 0])
    parts.evaluator.withdraw()
    return Evaluation(sampled, greedy, sampling.temperature)
