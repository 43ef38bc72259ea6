"""Samples answers to held-out problems and has them judged while the next ones are sampled.

    examples -> encode -> engine.generate, `batch` problems at a time -> decode -> score -> records

Any engine will do: the embedded one, which takes its own sampler's batches, and vLLM's servers,
which are sent `batch` problems' samples at once, and with `concurrent` > 1 the next ones before the
longest answer of these has come.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from math import nan
from typing import Any, Protocol

from ogrpo.evaluation.answers import AnswerRecord, Prompt, jsonable
from ogrpo.evaluation.judging import JudgeFn, judged
from ogrpo.protocol import Engine, Group, IntArray, Sampling


class ExampleLike(Protocol):
    """A problem (`ogrpo.tasks` has the class)."""

    @property
    def prompt(self) -> Prompt:
        """A text, or chat messages."""
        ...

    @property
    def columns(self) -> Mapping[str, Any]:
        """What the rewards read, by name."""
        ...

    @property
    def source(self) -> str:
        """`file:line`, for messages."""
        ...


def sample_and_judge(
    engine: Engine,
    examples: Sequence[ExampleLike],
    *,
    encode: Callable[[Any], IntArray],
    decode: Callable[[IntArray], str],
    sampling: Sampling,
    score: JudgeFn,
    seed: int,
    batch: int,
    concurrent: int = 1,
    judges: int = 8,
) -> Iterator[list[AnswerRecord]]:
    """Yield the judged answers of `batch` problems after the other, in the order of the problems.

    The engine has the weights already. A batch that begins at problem i is drawn with the seed
    `seed + i`: with batches that are whole multiples of an embedded engine's, the answers do not
    depend on `batch`. Where sampling fails, the answers that were sampled before are yielded first.

    Args:
        engine: called from threads of this function's, from `concurrent` at once.
        examples: the problems.
        encode: an example -> its prompt's token ids, int32 `[P]`.
        decode: token ids -> text.
        sampling: `group_size` is the number of samples of each problem.
        score: the rewards (`RewardPool.score`), called with the answers of one problem.
        seed: of the draws.
        batch: problems in one call of the engine.
        concurrent: calls of the engine at once; more than 1 keeps servers busy.
        judges: problems judged at once, each in a thread of its own.

    Raises:
        ValueError: there is no problem, a number is below 1, or a column cannot be recorded; before
            anything is sampled.
    """
    _check(examples, batch=batch, concurrent=concurrent, judges=judges)
    prompts = [encode(example) for example in examples]

    def draw(start: int) -> list[Group]:
        return engine.generate(prompts[start : start + batch], sampling, seed + start)

    def judge(start: int, groups: Sequence[Group]) -> list[AnswerRecord]:
        return judged([*_records(examples, start, groups, decode)], score, judges)

    return _overlapped(range(0, len(prompts), batch), draw, judge, concurrent)


def _overlapped(
    starts: Sequence[int],
    draw: Callable[[int], list[Group]],
    judge: Callable[[int, Sequence[Group]], list[AnswerRecord]],
    concurrent: int,
) -> Iterator[list[AnswerRecord]]:
    coming = iter(starts)
    samplers = ThreadPoolExecutor(concurrent, thread_name_prefix="evaluation-sampling")
    judging_thread = ThreadPoolExecutor(1, thread_name_prefix="evaluation-judging")
    drawing = deque((at, samplers.submit(draw, at)) for at in islice(coming, concurrent))
    judging: Future[list[AnswerRecord]] | None = None
    try:
        while drawing:
            start, drawn = drawing.popleft()
            try:
                groups = drawn.result()
            except BaseException:
                if judging is not None:
                    yield judging.result()
                raise
            drawing += [(at, samplers.submit(draw, at)) for at in islice(coming, 1)]
            ready, judging = judging, judging_thread.submit(judge, start, groups)
            if ready is not None:
                yield ready.result()
        if judging is not None:
            yield judging.result()
    finally:
        # An engine's call in flight ends by itself, or when its owner closes the engine.
        samplers.shutdown(wait=False, cancel_futures=True)
        judging_thread.shutdown(wait=False)


def _records(
    examples: Sequence[ExampleLike],
    start: int,
    groups: Sequence[Group],
    decode: Callable[[IntArray], str],
) -> Iterator[AnswerRecord]:
    taken = examples[start : start + len(groups)]
    for problem, (example, group) in enumerate(zip(taken, groups, strict=True), start=start):
        for sample, completion in enumerate(group.completions):
            yield AnswerRecord(
                problem=problem,
                sample=sample,
                source=example.source,
                prompt=example.prompt,
                columns=example.columns,
                text=decode(completion.token_ids),
                token_ids=tuple(completion.token_ids.tolist()),
                finish_reason=completion.finish_reason,
                values={},
                reward=nan,
                failed=False,
            )


def _check(examples: Sequence[ExampleLike], **counts: int) -> None:
    if not examples:
        raise ValueError("there is no problem to evaluate on: the held-out split is empty")
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; give at least 1")
    for n, example in enumerate(examples):
        where = example.source or f"problem {n}"
        jsonable(example.prompt, f"{where}: the prompt")
        jsonable(example.columns, f"{where}: column")
