"""The held-out split: cut off by the prompts' own digests, never sharing a prompt with training."""

from collections.abc import Sequence
from typing import NamedTuple

from ogrpo.tasks.example import Example, prompt_digest

DEFAULT_SHARE = 0.1
"""One prompt in ten is held out where nothing else is said."""
DEFAULT_MOST = 512
"""That share holds out at most so many."""


class SplitExamples(NamedTuple):
    """Examples to train on, those held out, and how many left training for repeating the latter."""

    train: list[Example]
    heldout: list[Example]
    repeats: int


def cut(examples: Sequence[Example], amount: float | int | None) -> SplitExamples:
    """Hold out the prompts with the smallest digests: a share, a number, or (None) the default.

    It needs no seed, does not depend on the order of the lines, and a line added moves few across.
    Held-out examples stand in the order of their digests, so that the first so many of them are a
    random sample. A prompt that comes again is held out once; the others of it leave training.

    Args:
        examples: all of them.
        amount: a share in (0, 1), or a number of distinct prompts; None: a tenth, at most 512.

    Raises:
        ValueError: nothing would be left to train on, or `amount` is no share and no number.
    """
    digests = [prompt_digest(example.prompt) for example in examples]
    distinct = sorted(set(digests))
    if amount is None:
        number = min(max(1, round(DEFAULT_SHARE * len(distinct))), DEFAULT_MOST)
    elif isinstance(amount, float) and 0.0 < amount < 1.0:
        number = max(1, round(amount * len(distinct)))
    elif isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        number = amount
    else:
        raise ValueError(f"heldout is {amount!r}; give a share between 0 and 1, or a whole number.")
    if number >= len(distinct):
        raise ValueError(
            f"no example is left to train on: {number} of {len(distinct)} distinct prompts would "
            "be held out; add lines, or hold out fewer."
        )
    smallest = set(distinct[:number])
    train = [e for e, d in zip(examples, digests, strict=True) if d not in smallest]
    held = [(d, e) for e, d in zip(examples, digests, strict=True) if d in smallest]
    unique: dict[bytes, Example] = {}
    for digest, example in sorted(held, key=lambda pair: pair[0]):
        unique.setdefault(digest, example)
    return SplitExamples(train, list(unique.values()), len(held) - len(unique))


def apart(train: Sequence[Example], heldout: Sequence[Example]) -> SplitExamples:
    """Take out of training what asks a held-out prompt.

    Raises:
        ValueError: nothing is left to train on.
    """
    prompts = {prompt_digest(example.prompt) for example in heldout}
    rest = [example for example in train if prompt_digest(example.prompt) not in prompts]
    if train and not rest:
        raise ValueError(
            f"no example is left to train on: all {len(train)} ask a held-out prompt "
            f"({train[0].source} the first)."
        )
    return SplitExamples(rest, list(heldout), len(train) - len(rest))
