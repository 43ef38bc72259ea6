"""A task made ready: its examples tokenised and filtered, its rewards started, numbers settled."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ogrpo.config.train import TrainConfig
from ogrpo.data.chat import PLAIN_CHAT, template_variables
from ogrpo.data.tokenizer import TextTokenizer, train_bpe, word_level
from ogrpo.loop.judge import GroupJudge, judge_steps
from ogrpo.loop.parts import Prompts, StepsFn
from ogrpo.policy import DecoderConfig, load_config
from ogrpo.protocol import IntArray
from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.judge import Judge
from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward, place_of
from ogrpo.setup.cache import weights_folder
from ogrpo.setup.find_task import CHAINS, GENERATED, find_task, settle
from ogrpo.setup.imitation import Demonstrations, worked_solutions
from ogrpo.setup.logs import RunLog
from ogrpo.system.files import parse_json
from ogrpo.system.values import require
from ogrpo.tasks import Example, Task, arithmetic, chains
from ogrpo.tasks.encode import Encoded, encode_example
from ogrpo.tasks.registry import TASKS

RENDERED = {"messages", "add_generation_prompt"}
"""Variables that every chat template gets."""
LOOKS_FOR = {
    "marker": "the one number after the last ####",
    "boxed": "the last \\boxed{...}",
    "free": "an answer anywhere, a box first",
    "choice": "the letter of a choice",
    "last": "the last number",
}
"""The part of an answer that each extractor returns."""


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
    judge_steps: StepsFn
    """Judges the lines of answers to problems that are made here."""
    decoder: DecoderConfig
    """The shape of a decoder that is made here."""
    demos: Demonstrations | None
    """Demonstrations that it imitates first."""
    left_out: Sequence[tuple[str, int]]
    """Labels and counts of examples that are not used."""
    logged: RunLog | None
    """Completions that were drawn elsewhere."""
    close: Callable[[], None]
    """Ends the processes of the rewards."""


def prepare(config: TrainConfig, task: Task | None = None) -> Prepared:
    """Reads the task, makes a tokenizer where the model has none, and starts its rewards.

    Args:
      config: lengths and learning rate may be left open.
      task: in place of the one that `config.task` names.

    Raises:
      ValueError: the task cannot be found or read, no prompt fits, or there are fewer than a batch.
    """
    brought, loaded = task is not None, find_task(config, task)
    task = replace(loaded.task, heldout=loaded.task.heldout[: config.evaluation.prompts])
    tokenizer = make_tokenizer(config, task)
    variables = chat_variables(config, tokenizer)
    encode = partial(
        encode_example, tokenizer=tokenizer, system=config.data.system, chat_variables=variables
    )
    parts = task.train, task.heldout
    prompts = [[encode(example) for example in part] for part in parts]
    if brought:
        config = with_named_rewards(config, task.rewards)
    config = settle(config, replace(loaded, task=task), tokenizer, [*prompts[0], *prompts[1]])
    train, heldout = (_fitting(config, *pair) for pair in zip(prompts, parts, strict=True))
    if len(train.prompts) < config.schedule.prompts:
        raise ValueError(
            f"there are {len(train.prompts)} training prompts, fewer than a batch of"
            f" schedule.prompts = {config.schedule.prompts}: give more, or smaller batches"
        )
    demos = loaded.demos
    if demos is None and config.imitates:
        demos = worked_solutions(config, task, tokenizer, train)
    judges, close = make_judges(config, task, (train.examples, heldout.examples), tokenizer)
    length, few = config.longest_prompt, []
    fitting = Prompts(train.prompts, heldout.prompts, length)
    logged = None
    if config.logs.path is not None:  # its rows of any held-out prompt stay out, of those cut, too
        every = [*prompts[1], *map(encode, loaded.task.heldout[len(task.heldout) :])]
        logged = RunLog(config, tokenizer, replace(fitting, heldout=every), variables)
    if (config.evaluation.task or config.task) in TASKS:
        split = config.evaluation.split
        lacking = max(0, config.evaluation.prompts - len(task.heldout))
        few = [(f"prompts fewer than requested are in the split {split!r}", lacking)]
    return Prepared(
        config=config,
        task=task,
        tokenizer=tokenizer,
        prompts=fitting,
        heldout=heldout.examples,
        judge=judges[0],
        judge_heldout=judges[1],
        judge_steps=partial(judge_steps, train.examples, tokenizer.decode),
        decoder=loaded.shape_fn(tokenizer.padded_vocab_size(16)),
        demos=demos,
        left_out=[
            *task.left_out,
            (f"training prompts longer than {length} tokens, left out", train.too_long),
            (f"held-out prompts longer than {length} tokens, left out", heldout.too_long),
            *few,
            *(() if demos is None else demos.left_out),
            *(logged.log.counts() if logged is not None and config.begins else ()),
        ],
        logged=logged,
        close=close,
    )


def _fitting(
    config: TrainConfig, prompts: Sequence[IntArray], examples: Sequence[Example]
) -> Encoded:
    """Returns the examples whose prompts are as short as prompts may be.

    Raises:
      ValueError: there are some, and none is.
    """
    length = config.longest_prompt
    pairs = zip(prompts, examples, strict=True)
    fitting = [pair for pair in pairs if len(pair[0]) <= length]
    lost = len(prompts) - len(fitting)
    if lost and not fitting:
        raise ValueError(
            f"none of {lost} prompts fits into data.prompt-length = {length} tokens; the shortest"
            f" has {min(map(len, prompts))}: raise --data.prompt-length"
        )
    return Encoded([ids for ids, _ in fitting], [x for _, x in fitting], lost)


def make_tokenizer(config: TrainConfig, task: Task) -> TextTokenizer:
    """Loads the model's tokenizer, or makes one for the task.

    Raises:
      ValueError: one of the model's files is missing or wrong, or it has too small a vocabulary.
    """
    if config.model.path is not None:
        folder = weights_folder(config.model.path)
        tokenizer = TextTokenizer.load(folder)
        check_vocabulary(tokenizer, load_config(folder), str(folder))
        return tokenizer
    if task.name in (GENERATED, CHAINS):
        words = (chains if task.name == CHAINS else arithmetic).vocabulary()
        if all({*words}.issuperset(text.split()) for text in task.texts()):
            return word_level(words)
    return train_bpe(
        task.texts(),
        vocab_size=config.model.tokenizer_size,
        chat_template=PLAIN_CHAT if task.is_chat else None,
    )


def check_vocabulary(tokenizer: TextTokenizer, decoder: DecoderConfig, what: str) -> None:
    """Refuses a tokenizer with ids that the model has no embedding for."""
    require(
        tokenizer.vocab_size <= decoder.vocab_size,
        f"{what}: the tokenizer has ids up to {tokenizer.vocab_size - 1}, and the model's"
        f" vocab_size is {decoder.vocab_size}: give the tokenizer that the model was trained with",
    )


def chat_variables(config: TrainConfig, tokenizer: TextTokenizer) -> Mapping[str, Any]:
    """Returns the chat template's variables; values are JSON where they can be, else texts.

    Raises:
      ValueError: one has no value, or the tokenizer's chat template does not read it.
    """
    template = tokenizer.chat_template
    known = set() if template is None else template_variables(template) - RENDERED
    reads = f"the chat template reads {', '.join(sorted(known))}"

    def value(text: str) -> Any:
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return text
        return parse_json(text, f"--data.chat {text:.40}")

    variables = {}
    for pair in config.data.chat:
        name, equals, text = pair.partition("=")
        require(bool(equals), f"data.chat is {pair!r:.60}: give NAME=VALUE")
        require(
            name in known,
            f"data.chat sets {name}, which changes nothing here: "
            + ("there is no chat template" if template is None else reads),
        )
        variables[name] = value(text)
    return variables


def make_judges(
    config: TrainConfig,
    task: Task,
    examples: tuple[Sequence[Example], Sequence[Example]],
    tokenizer: TextTokenizer,
) -> tuple[tuple[GroupJudge, GroupJudge], Callable[[], None]]:
    """Returns the judges of training and of evaluation, and what ends their processes.

    A reward that keeps counts of its own counts answers to held-out prompts apart.
    """
    heldout = tuple(
        replace(each, function=each.function.counting_apart())
        if isinstance(each.function, Judge)
        else each
        for each in task.heldout_rewards
    )
    pools = [make_pool(config, task.rewards)]
    if task.evaluation_rewards is not None or heldout != task.rewards:
        pools.append(make_pool(config, heldout))
    judges = (
        GroupJudge(pools[0], examples[0], tokenizer.decode, flip=config.reward.flip),
        GroupJudge(pools[-1], examples[1], tokenizer.decode, success=task.success),
    )

    def close() -> None:
        for pool in pools:
            pool.close()
        for reward in (*task.rewards, *heldout):
            if isinstance(reward.function, Judge):
                reward.function.close()

    return judges, close


def make_pool(config: TrainConfig, rewards: Sequence[Reward]) -> RewardPool:
    """Starts the processes that rewards run in."""
    judging = config.reward
    return RewardPool(
        rewards,
        processes=judging.processes,
        seconds=judging.call_seconds,
        memory_gib=judging.memory_gib,
    )


def judge_lines(task: Task) -> list[str]:
    """Returns the reward that decides success, and a line about each reward."""
    rewards = task.heldout_rewards
    names = ", ".join(reward.name for reward in rewards)
    if task.success is not None:
        decides = f"{task.success} decides what is right (Pass@k)"
    elif len(rewards) == 1:
        decides = f"{names} decides what is right (Pass@k) where all that it gives is 0 or 1"
    else:
        decides = (
            f"the only one of {names} that is 0 or 1 decides what is right (Pass@k), if there is"
            " one: --by NAME says which"
        )
    lines = [decides]
    for reward in (*rewards, *(reward for reward in task.rewards if reward not in rewards)):
        what = place_of(reward.function)
        if isinstance(reward.function, Judge):
            compares = (inspect.getdoc(type(reward.function)) or "").partition("\n")[0].rstrip(".")
            extract = getattr(reward.function, "extract", None)
            ways = [LOOKS_FOR[name] for name, way in EXTRACTORS.items() if way is extract]
            what = f"{compares[:1].lower()}{compares[1:]}"
            what += f"; it looks for {ways[0]}" if ways else ""
        weight = "" if reward.weight == 1 else f", weight {reward.weight:g}"
        when = "" if reward in rewards else " (in training)"
        lines.append(f"  {reward.name}{weight}: {what}{when}")
    return lines


def with_named_rewards(config: TrainConfig, rewards: Sequence[Reward]) -> TrainConfig:
    """Returns the config with the rewards of a task in Python, by file and name.

    The file is without its line, which other changes move.
    """
    names = []
    for reward in rewards:
        file, _, line = place_of(reward.function).rpartition(":")
        names.append(f"{file if line.isdigit() else place_of(reward.function)}:{reward.name}")
    weights = tuple(reward.weight for reward in rewards)
    judging = replace(config.reward, weights=() if all(w == 1 for w in weights) else weights)
    return replace(config, rewards=tuple(names), reward=judging)
