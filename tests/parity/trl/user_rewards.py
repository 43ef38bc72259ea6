"""Reward functions as a user of TRL has them: nothing here knows which trainer calls."""

import asyncio
import functools


def exact(prompts, completions, answer, **kwargs):
    return [1.0 if text == gold else 0.0 for text, gold in zip(completions, answer, strict=True)]


def by_ids(completion_ids, level, **kwargs):
    pairs = zip(completion_ids, level, strict=True)
    return [sum(ids) * weight / 7 for ids, weight in pairs]


def integers_and_truths(completions, **kwargs):
    return [len(text) if i % 2 else bool(text) for i, text in enumerate(completions)]


def only_short(completions, **kwargs):
    """Gives None where it does not apply, as TRL's documentation says of several tasks."""
    return [None if len(text) > 3 else len(text) / 3 for text in completions]


def logs_where_it_can(completions, log_metric=None, trainer_state=None, **kwargs):
    if log_metric:
        log_metric("characters", float(sum(map(len, completions))))
    return [0.25] * len(completions)


async def judge(prompts, completions, answer, **kwargs):
    async def ask(text, gold):
        await asyncio.sleep(0.001 * len(text))
        return 1 / (1 + abs(len(text) - len(gold)))

    return await asyncio.gather(*map(ask, completions, answer))


class Penalty:
    def __init__(self, each):
        self.each = each

    def __call__(self, completions, **kwargs):
        return [-self.each * text.count("b") for text in completions]


def power(completions, exponent, **kwargs):
    return [len(text) ** exponent for text in completions]


TEXT = [
    *(exact, by_ids, integers_and_truths, logs_where_it_can, judge, Penalty(0.1)),
    functools.partial(power, exponent=1.5),
]


def says(prompts, completions, answer, **kwargs):
    questions = [prompt[-1]["content"] for prompt in prompts]
    said = [completion[0]["content"] for completion in completions]
    assert {completion[0]["role"] for completion in completions} == {"assistant"}
    return [len(q) + 10 * (s == a) for q, s, a in zip(questions, said, answer, strict=True)]


async def asks(completions, **kwargs):
    await asyncio.sleep(0)
    return [float(len(completion[0]["content"])) for completion in completions]


CHAT = [says, asks]
