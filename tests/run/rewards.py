"""Rewards of runs: this file imports little, so that the processes that call them start fast.

The task's own would never reward decoders that know nothing.
"""

import asyncio


def varied(completions):
    """An untrained decoder is never right: a reward that varies lets it learn something."""
    return [float(len(text) % 2) for text in completions]


def odd(completions):
    """The same, of another text: some groups share it."""
    return [float(text.count("1") % 2) for text in completions]


def ends_right(prompts, completions, answer, **columns):
    return [float(c.split()[-1:] == [a]) for c, a in zip(completions, answer, strict=True)]


def even_length(completions, **_):
    return varied(completions)


async def slow_judge(prompts, completions, level, **_):
    await asyncio.sleep(0.01)
    return [float((len(text) + n) % 2) for text, n in zip(completions, level, strict=True)]


varied.bounded = odd.bounded = True  # called in the judges' own threads, which is quick
VARIED, ODD = (f"{__name__}:{function.__name__}" for function in (varied, odd))
