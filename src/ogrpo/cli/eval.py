"""`ogrpo eval`: how often a model is right on a task's held-out problems.

ogrpo eval --model.path DIR --task math-500 --data.path DIR --samples 16 --output answers.jsonl
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from ogrpo.cli.options import parse_config
from ogrpo.config.rollout import Rollout, Servers, check_servers
from ogrpo.config.train import Data, Evaluation, Judging, Model, TrainConfig
from ogrpo.config.values import (
    INERT,
    Count,
    OptionalCount,
    Table,
    check,
    check_conditions,
    metavar,
)

ACTS: Table = (
    ("reward.flip", lambda _: False, "held-out answers are judged as they are; leave it out"),
)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """The model that is evaluated, the problems, and how answers are drawn, judged and kept."""

    samples: OptionalCount = None
    """Answers to each problem; the task's protocol says it where left out."""
    temperature: Annotated[float | None, Ge(0), metavar("{None}|FLOAT>=0")] = None
    """0 for the most likely token, greedily; the task's protocol says it where left out."""
    max_tokens: OptionalCount = None
    """Tokens of an answer at most; the task's protocol says it where left out."""
    batch: Count = 32
    """Problems that the engine is asked for at once."""
    concurrent: Count = 1
    """Batches that are sampled at once: 2 or 3 keep servers busy while a batch's longest answers
    come."""
    judges: Count = 8
    """Problems that are judged at once."""
    seed: int = 0
    """Of the draws."""
    ks: tuple[int, ...] = ()
    """The k of Pass@k and maj@k; by default the powers of two up to the number of samples, and that
    number."""
    by: str | None = None
    """The reward that says right or wrong; by default the one that the task names, or the only one
    that is 0 or 1."""
    output: Path | None = None
    """Where answers are written, one a line; a new file."""
    task: str = "gsm8k"
    """The name of a task (docs/tasks.md), or a file of your own, whose held-out part is taken."""
    rewards: tuple[str, ...] = ()
    """Functions that judge answers, as FILE.py:NAME or MODULE:NAME; default: the task's own."""
    problems: OptionalCount = None
    """Use only the first so many held-out problems."""
    split: Literal["validation", "test"] = "test"
    """Which held-out problems, where the task has both."""
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    reward: Judging = field(default_factory=Judging)
    servers: Servers = field(default_factory=Servers)

    def __post_init__(self) -> None:
        check(self)
        check_servers(self.servers, "servers.")
        check_conditions(self, ACTS, clause=INERT)

    @property
    def as_train(self) -> TrainConfig:
        """The same options where a trainer reads them."""
        return TrainConfig(
            task=self.task,
            rewards=self.rewards,
            data=self.data,
            model=self.model,
            reward=self.reward,
            rollout=Rollout(**vars(self.servers)),
            evaluation=Evaluation(split=self.split),
        )


def main(options: Sequence[str]) -> int:
    """Evaluates, or judges again; returns the exit code."""
    config = parse(options)
    from ogrpo.cli.evaluate import evaluate

    return evaluate(config)


def parse(options: Sequence[str]) -> EvalConfig:
    """Returns the config of the options."""
    return parse_config(
        options,
        program="ogrpo eval",
        base=lambda _, __: EvalConfig(),
        title="How often a model is right on held-out problems.",
    )
