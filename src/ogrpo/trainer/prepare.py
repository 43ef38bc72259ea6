"""The task of the main study: word problems, tokenised, with what was left out counted."""

from collections.abc import Sequence
from dataclasses import dataclass

from ogrpo.data.batching import fits
from ogrpo.data.tokenizer import TextTokenizer, train_bpe, word_level
from ogrpo.rewards.extract import EXTRACTORS
from ogrpo.rewards.math import MathReward
from ogrpo.tasks import arithmetic, gsm8k
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.problems import Split as Parted
from ogrpo.trainer import Ids, Split, Task, stream_seed
from ogrpo.trainer.config import Gsm8k

Counts = list[tuple[str, int]]


@dataclass(frozen=True)
class Problems:
    """Text problems: to train on, held out, and those whose answers the warm start imitates."""

    train: Sequence[Problem]
    heldout: Sequence[Problem]
    warm_start: Sequence[WordProblem] = ()


@dataclass(frozen=True)
class Prepared:
    """A task, its tokenizer, the problems behind it and the counts to be shown."""

    task: Task
    tokenizer: TextTokenizer
    reward: MathReward
    evaluation_reward: MathReward
    """Counts the answers to held-out prompts."""
    heldout: Sequence[Problem]
    left_out: Counts


MOST_HELDOUT = 2048
"""Problems that are made for each held-out split; an evaluation takes the first so many."""


def load_problems(config: Gsm8k) -> Problems:
    """Reads the problems from a folder or a hub, or makes them from the seed.

    Generated ones depend on `data.seed` only, so that runs are judged on the same problems.
    """
    if config.data.path is None:
        return _generate(config)
    loaded = gsm8k.load(config.data.path)
    if config.evaluation.split == "validation":
        loaded = gsm8k.cut_validation(loaded.train)
    train = loaded.train[: config.data.limit]
    return Problems(train, loaded.heldout[: config.evaluation.prompts])


def _generate(config: Gsm8k) -> Problems:
    warm, first = config.warm_start.problems, config.data.train
    made = arithmetic.split(first + warm, MOST_HELDOUT, seed=config.data.seed)
    heldout = made.heldout if config.evaluation.split == "validation" else _test(config, made)
    train = made.train[:first][: config.data.limit]
    return Problems(train, heldout[: config.evaluation.prompts], made.train[first:])


def _test(config: Gsm8k, others: Parted[WordProblem]) -> list[WordProblem]:
    # A stream of its own: were it a later part of the others', then with less training data it
    # would begin where settings were chosen with more.
    taken = {problem.question for part in others for problem in part}
    seed = stream_seed(config.data.seed, "test", 0)
    return arithmetic.generate(MOST_HELDOUT, seed, apart_from=taken)


def make_tokenizer(config: Gsm8k, problems: Problems) -> TextTokenizer:
    """The model's own tokenizer, or one made for the problems."""
    if config.model.path is not None:
        return TextTokenizer.load(config.model.path, prompt_template=config.data.prompt)
    if config.data.path is None:
        return word_level(arithmetic.vocabulary())
    texts = [text for problem in problems.train for text in (problem.question, problem.answer)]
    return train_bpe(
        texts, vocab_size=config.model.tokenizer_size, prompt_template=config.data.prompt
    )


def prepare(config: Gsm8k) -> tuple[Prepared, Problems]:
    """Loads, tokenises and filters; a prompt that does not fit is left out, counted and shown."""
    problems = load_problems(config)
    tokenizer = make_tokenizer(config, problems)
    reward = MathReward(EXTRACTORS[config.reward.extraction], seconds=config.reward.seconds)
    evaluation_reward = reward.counting_apart()
    length = config.data.prompt_length
    train, dropped_train, _ = _encode(problems.train, tokenizer, length)
    heldout, dropped_heldout, kept = _encode(problems.heldout, tokenizer, length)
    task = Task(
        train=train,
        heldout=heldout,
        decode=tokenizer.decode,
        reward=reward.score,
        prompt_length=length,
        completion_length=config.rollout.max_tokens,
        evaluation_reward=evaluation_reward.score,
    )
    few = config.evaluation.prompts - len(problems.heldout)
    left_out = [
        (f"training prompts longer than {length} tokens, left out", dropped_train),
        (f"held-out prompts longer than {length} tokens, left out", dropped_heldout),
        (f"prompts fewer than asked for are in the split {config.evaluation.split!r}", few),
    ]
    return Prepared(task, tokenizer, reward, evaluation_reward, kept, left_out), problems


def _encode(
    problems: Sequence[Problem], tokenizer: TextTokenizer, length: int
) -> tuple[Split, int, list[Problem]]:
    encoded = [(tokenizer.encode_prompt(p.question), p) for p in problems]
    kept: list[tuple[Ids, Problem]] = [(ids, p) for ids, p in encoded if fits(ids, length)]
    if not kept:
        shortest = min(len(ids) for ids, _ in encoded)
        raise ValueError(
            f"none of {len(problems)} prompts fits into data.prompt-length = {length} tokens; "
            f"the shortest has {shortest}: raise --data.prompt-length"
        )
    split = Split([ids for ids, _ in kept], [final_answer(p) for _, p in kept])
    return split, len(encoded) - len(kept), [p for _, p in kept]
