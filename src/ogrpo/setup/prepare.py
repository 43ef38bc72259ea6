"""A task made ready: its examples found, tokenised and filtered, what was not given settled."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ogrpo.config.train import TrainConfig
from ogrpo.config.values import require
from ogrpo.data.chat import PLAIN_CHAT, template_variables
from ogrpo.data.tokenizer import TextTokenizer, train_bpe, word_level
from ogrpo.loop.judge import GroupJudge, StepJudge
from ogrpo.loop.parts import Prompts
from ogrpo.policy import DecoderConfig, load_config
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward
from ogrpo.setup.cache import weights_folder
from ogrpo.setup.find_task import GENERATED, find_task
from ogrpo.setup.judges import with_named_rewards
from ogrpo.setup.lessons import Lessons, worked_solutions
from ogrpo.setup.settle import settled
from ogrpo.system.files import parse_json
from ogrpo.tasks import Example, Task, arithmetic
from ogrpo.tasks.encode import Encoded, encode_examples
from ogrpo.tasks.registry import TASKS

Counts = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class Prepared:
    """A task that a run can train on."""

    config: TrainConfig
    """With the lengths and the learning rate that were left open."""
    task: Task
    tokenizer: TextTokenizer
    prompts: Prompts
    heldout: Sequence[Example]
    """The held-out examples whose prompts fit."""
    judge: GroupJudge
    judge_heldout: GroupJudge
    judge_steps: StepJudge
    """Judges the lines of answers to problems that are made here."""
    lessons: Lessons | None
    """What a decoder that is made here imitates first."""
    left_out: Counts
    end_rewards: Callable[[], None]

    def close(self) -> None:
        """Ends the processes of the rewards."""
        self.end_rewards()


def prepare(config: TrainConfig, given: Task | None = None) -> Prepared:
    """Finds the task, makes a tokenizer where the model has none, and starts its rewards.

    Args:
      config: lengths and learning rate may be left open.
      given: a task in place of the one that `config.task` names.

    Raises:
      ValueError: the task cannot be found or read, no prompt fits, or there are fewer than a batch.
    """
    found = find_task(config, given)
    task = replace(found.task, heldout=found.task.heldout[: config.evaluation.prompts])
    tokenizer = make_tokenizer(config, task)
    check_chat(config, tokenizer)
    train, heldout = (_encode(config, tokenizer, part) for part in (task.train, task.heldout))
    if given is not None:
        config = with_named_rewards(config, task.rewards)
    config = settled(config, task, tokenizer, train.prompts + heldout.prompts, found.lengths)
    train, heldout = (_fitting(config, part) for part in (train, heldout))
    check_batch(config, train)
    imitates = config.model.path is None or config.warm_start.solutions
    lessons = found.lessons or (
        worked_solutions(config, task, tokenizer, train) if imitates else None
    )
    judges, close = make_judges(config, task, (train.examples, heldout.examples), tokenizer)
    length = config.longest_prompt
    return Prepared(
        config=config,
        task=task,
        tokenizer=tokenizer,
        prompts=Prompts(train.prompts, heldout.prompts, length),
        heldout=heldout.examples,
        judge=judges[0],
        judge_heldout=judges[1],
        judge_steps=StepJudge(train.examples, tokenizer.decode),
        lessons=lessons,
        left_out=[
            *task.left_out,
            (f"training prompts longer than {length} tokens, left out", train.too_long),
            (f"held-out prompts longer than {length} tokens, left out", heldout.too_long),
            *few_heldout(config, task),
            *(() if lessons is None else lessons.left_out),
        ],
        end_rewards=close,
    )


def few_heldout(config: TrainConfig, task: Task) -> Counts:
    """How many held-out prompts are lacking, of a split that is asked for by name."""
    if (config.evaluation.task or config.task) not in TASKS:
        return []
    few = max(0, config.evaluation.prompts - len(task.heldout))
    return [(f"prompts fewer than asked for are in the split {config.evaluation.split!r}", few)]


def make_tokenizer(config: TrainConfig, task: Task) -> TextTokenizer:
    """The model's own tokenizer, or one made for the task."""
    if config.model.path is not None:
        return model_tokenizer(weights_folder(config.model.path))
    if _in_words(task):
        return word_level(arithmetic.vocabulary())
    return train_bpe(
        task.texts(),
        vocab_size=config.model.tokenizer_size,
        chat_template=PLAIN_CHAT if task.is_chat else None,
    )


def model_tokenizer(folder: Path) -> TextTokenizer:
    """The tokenizer of a model's folder, which the model's config is compared with.

    Raises:
      ValueError: one of their files is missing or wrong, or the model has too small a vocabulary.
    """
    tokenizer = TextTokenizer.load(folder)
    check_vocabulary(tokenizer, load_config(folder), str(folder))
    return tokenizer


def check_vocabulary(tokenizer: TextTokenizer, decoder: DecoderConfig, what: str) -> None:
    """Refuses a tokenizer with ids that the model has no embedding for."""
    require(
        tokenizer.vocab_size <= decoder.vocab_size,
        f"{what}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, and the model's"
        f" vocab_size is {decoder.vocab_size}: give the tokenizer that the model was trained with",
    )


def _in_words(task: Task) -> bool:
    """Whether the problems are generated ones, and not another task of that name."""
    known = {*arithmetic.vocabulary()}
    return task.name == GENERATED and all(known.issuperset(x.split()) for x in task.texts())


def chat_variables(config: TrainConfig) -> Mapping[str, Any]:
    """The chat template's variables; values are JSON where they can be, and texts elsewhere."""
    pairs = [pair.partition("=") for pair in config.data.chat]
    return {name: _value(text) for name, _, text in pairs}


RENDERED = {"messages", "add_generation_prompt"}
"""What a chat template is always given."""


def check_chat(config: TrainConfig, tokenizer: TextTokenizer) -> None:
    """Refuses variables that the tokenizer's chat template does not read."""
    template = tokenizer.chat_template
    known = set() if template is None else template_variables(template) - RENDERED
    for name in chat_variables(config):
        require(
            name in known,
            f"data.chat sets {name}, which changes nothing here: "
            + ("there is no chat template" if template is None else _reads(known)),
        )


def _reads(known: set[str]) -> str:
    return f"the chat template reads {', '.join(sorted(known))}"


def _value(text: str) -> Any:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return parse_json(text, f"--data.chat {text:.40}")


def _encode(config: TrainConfig, tokenizer: TextTokenizer, examples: Sequence[Example]) -> Encoded:
    return encode_examples(
        examples,
        tokenizer,
        prompt_length=NO_LIMIT,
        system=config.data.system,
        chat_variables=chat_variables(config),
    )


NO_LIMIT = 1 << 30
"""Tokens of a prompt, while its limit is not settled."""


def _fitting(config: TrainConfig, encoded: Encoded) -> Encoded:
    length = config.longest_prompt
    pairs = zip(encoded.prompts, encoded.examples, strict=True)
    kept = [pair for pair in pairs if len(pair[0]) <= length]
    lost = len(encoded.prompts) - len(kept)
    if lost and not kept:
        raise ValueError(
            f"none of {lost} prompts fits into data.prompt-length = {length} tokens; the shortest"
            f" has {min(map(len, encoded.prompts))}: raise --data.prompt-length"
        )
    return Encoded([ids for ids, _ in kept], [e for _, e in kept], encoded.too_long + lost)


def check_batch(config: TrainConfig, train: Encoded) -> None:
    """Refuses a task that is smaller than a batch."""
    if len(train.prompts) < config.schedule.prompts:
        raise ValueError(
            f"there are {len(train.prompts)} training prompts, fewer than a batch of"
            f" schedule.prompts = {config.schedule.prompts}: give more, or smaller batches"
        )


def make_judges(
    config: TrainConfig,
    task: Task,
    examples: tuple[Sequence[Example], Sequence[Example]],
    tokenizer: TextTokenizer,
) -> tuple[tuple[GroupJudge, GroupJudge], Callable[[], None]]:
    """Judges of training and of evaluation, and what ends their processes.

    A reward that keeps counts of its own counts answers to held-out prompts apart.
    """
    own = tuple(map(counting_apart, task.evaluation_rewards or task.rewards))
    apart = task.evaluation_rewards is not None or own != task.rewards
    pools = [make_pool(config, task.rewards)]
    pools += [make_pool(config, own)] if apart else []
    judges = (
        GroupJudge(pools[0], examples[0], tokenizer.decode, flip=config.reward.flip),
        GroupJudge(pools[-1], examples[1], tokenizer.decode, success=task.success),
    )

    def close() -> None:
        for pool in pools:
            pool.close()
        for reward in (*task.rewards, *own):
            getattr(reward.function, "close", lambda: None)()

    return judges, close


def counting_apart(reward: Reward) -> Reward:
    """The reward with counts of its own, where it has any."""
    make = getattr(reward.function, "counting_apart", None)
    return reward if make is None else replace(reward, function=make())


def make_pool(config: TrainConfig, rewards: Sequence[Reward]) -> RewardPool:
    """The processes that rewards run in."""
    wanted = config.reward
    return RewardPool(
        rewards,
        processes=wanted.processes,
        seconds=wanted.call_seconds,
        memory_gib=wanted.memory_gib,
    )
