"""Samples answers to held-out problems, and judges them while the next ones are sampled.

    examples -> encode -> engine.generate, `batch` problems at a time -> decode -> score -> records

Any engine will do: the embedded one, which takes its own sampler's batches, and vLLM's servers,
which are sent `batch` problems' samples at once, and with `concurrent` > 1 the next ones before the
longest answer of these has come.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from math import nan
from typing import Any

from ogrpo.evaluation.answers import AnswerRecord, jsonable
from ogrpo.protocol import Engine, Group, IntArray, Sampling
from ogrpo.rewards.scores import FailureLog, ScoreRequest, Scores
from ogrpo.tasks.example import Example

JudgeFn = Callable[[ScoreRequest], Scores]
"""`RewardPool.score`, or anything like it that many threads may call at once."""


def sample_and_judge(
    engine: Engine,
    examples: Sequence[Example],
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
    """Yields the judged answers of one batch of problems after another, in the problems' order.

    The engine has the weights already. A batch that begins at problem i is drawn with the seed
    `seed + i`: with batches that are whole multiples of an embedded engine's, the answers do not
    depend on `batch`. Where sampling fails, the answers that were sampled before are yielded first.

    Args:
      engine: called from threads of this function's, from `concurrent` at once.
      encode: an example -> its prompt's token ids, int32 `[P]`.
      sampling: `group_size` is the number of samples of each problem.
      score: the rewards (`RewardPool.score`), called with the answers of one problem.
      seed: of the draws.
      batch: problems in one call of the engine.
      concurrent: calls of the engine at once; more than 1 keeps servers busy.
      judges: problems judged at once, each in a thread of its own.

    Raises:
      ValueError: there is no problem, a number is below 1, or a column cannot be recorded; before
        anything is sampled. Later, where `score` gives not one verdict for each answer.
    """
    if not examples:
        raise ValueError("there is no problem to evaluate on: the held-out split is empty")
    for name, value in (("batch", batch), ("concurrent", concurrent), ("judges", judges)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give at least 1")
    for n, example in enumerate(examples):
        where = example.source or f"problem {n}"
        jsonable(example.prompt, f"{where}: the prompt")
        jsonable(example.columns, f"{where}: column")
    prompts, failures = [encode(example) for example in examples], FailureLog()

    def draw(start: int) -> list[Group]:
        return engine.generate(prompts[start : start + batch], sampling, seed + start)

    def judge_problem(problem: int, group: Group, texts: Sequence[str]) -> list[AnswerRecord]:
        example = examples[problem]
        request = ScoreRequest.of_group(
            example.prompt,
            texts,
            completion_ids=[completion.token_ids.tolist() for completion in group.completions],
            finish_reasons=[completion.finish_reason for completion in group.completions],
            columns=example.columns,
        )
        scores = score(request)
        failures.add(scores.failures)
        sizes = [len(scores.rewards), len(scores.failed), *map(len, scores.values.values())]
        if sizes != [len(texts)] * len(sizes):
            raise ValueError(
                f"{example.source}: {len(texts)} answers were judged and {sizes} verdicts came back"
            )
        return [
            AnswerRecord(
                problem=problem,
                sample=sample,
                source=example.source,
                prompt=example.prompt,
                columns=example.columns,
                text=texts[sample],
                token_ids=tuple(completion.token_ids.tolist()),
                finish_reason=completion.finish_reason,
                values={name: float(values[sample]) for name, values in scores.values.items()},
                reward=nan if scores.failed[sample] else float(scores.rewards[sample]),
                failed=bool(scores.failed[sample]),
            )
            for sample, completion in enumerate(group.completions)
        ]

    def judge(start: int, groups: Sequence[Group]) -> list[AnswerRecord]:
        problems = range(start, start + len(groups))
        texts = [[decode(completion.token_ids) for completion in g.completions] for g in groups]
        with ThreadPoolExecutor(judges, thread_name_prefix="evaluation-reward") as threads:
            judged = threads.map(judge_problem, problems, groups, texts)
            return [answer for answers in judged for answer in answers]

    return _overlapped(range(0, len(prompts), batch), draw, judge, concurrent)


def _overlapped(
    starts: Sequence[int],
    draw: Callable[[int], list[Group]],
    judge: Callable[[int, Sequence[Group]], list[AnswerRecord]],
    concurrent: int,
) -> Iterator[list[AnswerRecord]]:
    """Yields each batch's answers in order; the next are drawn while these are judged."""
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
