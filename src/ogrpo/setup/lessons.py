"""What a decoder that is made here imitates before it is trained: prompts, each with answers."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ogrpo.config.train import TrainConfig
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.loop.parts import stream_seed
from ogrpo.protocol import Completion, Group, IntArray
from ogrpo.tasks import Task, arithmetic
from ogrpo.tasks.arithmetic import WordProblem
from ogrpo.tasks.encode import Encoded


@dataclass(frozen=True)
class Lessons:
    """Demonstrations, made when they are needed."""

    groups: Callable[[TextTokenizer], list[Group]]
    """Each prompt with its answers; their log-probs are not read."""
    key: str
    """What they depend on beside the config, as a hash."""
    left_out: Sequence[tuple[str, int]] = ()


def careless_teacher(config: TrainConfig, problems: Sequence[WordProblem]) -> Lessons:
    """Answers of a teacher who makes slips, to generated problems that are not trained on."""
    wanted = config.warm_start
    few = problems[: wanted.problems]

    def groups(tokenizer: TextTokenizer) -> list[Group]:
        shown = [
            [
                p.answer
                for p in arithmetic.demonstrate(
                    few, seed=stream_seed(config.seed, "teacher", n), teacher=wanted.teacher
                )
            ]
            for n in range(wanted.demonstrations)
        ]
        return [
            demonstration(
                tokenizer.encode_prompt(problem.question),
                [tokenizer.encode(answer, add_eos=True) for answer in answers],
            )
            for problem, *answers in zip(few, *shown, strict=True)
        ]

    digest = hashlib.sha256()
    for problem in few:
        digest.update(f"{problem.question}\n{problem.answer}\n".encode())
    return Lessons(groups, digest.hexdigest())


def worked_solutions(
    config: TrainConfig, task: Task, tokenizer: TextTokenizer, train: Encoded
) -> Lessons | None:
    """The task's own solutions to its training prompts; None where there are none."""
    column = task.solutions
    if column is None:
        return None
    pairs = [
        (ids, tokenizer.encode(str(example.columns[column]), add_eos=True))
        for ids, example in zip(train.prompts, train.examples, strict=True)
        if example.columns.get(column)
    ]
    fitting = [(ids, answer) for ids, answer in pairs if len(answer) <= config.longest_completion]
    digest = hashlib.sha256()
    for ids, answer in fitting:
        digest.update(ids.tobytes() + b"\n" + answer.tobytes() + b"\n")
    lost = len(pairs) - len(fitting)
    label = f"worked solutions longer than {config.longest_completion} tokens, not imitated"
    return Lessons(
        lambda _: [demonstration(ids, [answer]) for ids, answer in fitting],
        digest.hexdigest(),
        ((label, lost),) if lost else (),
    )


def demonstration(prompt: IntArray, answers: Sequence[IntArray]) -> Group:
    """A prompt with answers that nobody sampled."""
    return Group(prompt, tuple(map(_completion, answers)))


def _completion(token_ids: IntArray) -> Completion:
    return Completion(
        token_ids=token_ids,
        log_probs=np.zeros(len(token_ids), np.float32),
        policy_version=0,
        temperature=1.0,
        finish_reason="stop",
    )
