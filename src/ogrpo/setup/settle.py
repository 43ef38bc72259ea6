"""Numbers that a config leaves open, settled by the task and the model."""

from collections.abc import Sequence
from dataclasses import replace

from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.protocol import IntArray
from ogrpo.setup.find_task import GENERATED_LENGTHS, TaskLengths
from ogrpo.tasks import Task

GIVEN_RATE, MADE_RATE = 1e-6, 1e-3
"""Learning rates of a model that is given, and of one that is made here."""
OTHERWISE = 256
"""Tokens of a completion, where nothing says how long one is."""


def settled(
    config: TrainConfig,
    task: Task,
    tokenizer: TextTokenizer,
    prompts: Sequence[IntArray],
    lengths: TaskLengths | None,
) -> TrainConfig:
    """The config with lengths and a learning rate."""
    lengths = lengths or TaskLengths(max(map(len, prompts)), longest_solution(task, tokenizer))
    return with_numbers(config, lengths, GIVEN_RATE if config.model.path else MADE_RATE)


def with_numbers(config: TrainConfig, lengths: TaskLengths, rate: float) -> TrainConfig:
    """The config with these numbers where it has none."""
    data, rollout, optimizer = config.data, config.rollout, config.optimizer
    return replace(
        config,
        data=replace(data, prompt_length=data.prompt_length or lengths.prompt),
        rollout=replace(rollout, max_tokens=rollout.max_tokens or lengths.completion),
        optimizer=replace(optimizer, learning_rate=optimizer.learning_rate or rate),
    )


def longest_solution(task: Task, tokenizer: TextTokenizer) -> int:
    """Tokens of the longest worked solution with its end; without any, what is usual."""
    column = task.solutions
    texts = [e.columns[column] for e in task.train if column and e.columns.get(column)]
    return max((len(tokenizer.encode(text, add_eos=True)) for text in texts), default=OTHERWISE)


__all__ = ["GENERATED_LENGTHS", "settled", "with_numbers"]
