"""Rewards for decoders that know nothing, which a task's own would never reward."""


def varied(completions):
    """An untrained decoder is never right: a reward that varies lets it learn something."""
    return [float(len(text) % 2) for text in completions]


def odd(completions):
    """The same, of another text: some groups share it."""
    return [float(text.count("1") % 2) for text in completions]


varied.bounded = odd.bounded = True  # called in the judges' own threads, which is quick
VARIED, ODD = (f"{__name__}:{function.__name__}" for function in (varied, odd))
