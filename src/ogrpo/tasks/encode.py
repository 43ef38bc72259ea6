"""Prompts of token ids, made of examples."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.protocol import IntArray
from ogrpo.tasks.example import Example


class Encoded(NamedTuple):
    """Prompts that fit, with their examples, and how many do not."""

    prompts: list[IntArray]
    examples: list[Example]
    too_long: int


def encode_example(
    example: Example,
    tokenizer: TextTokenizer,
    *,
    system: str | None = None,
    chat_variables: Mapping[str, Any] | None = None,
) -> IntArray:
    """Render an example's prompt, text or messages, and return its int32 token ids.

    Args:
        example: the example.
        tokenizer: brings the chat template, its own system prompt and template options.
        system: an opening system turn in place of the tokenizer's.
        chat_variables: of the chat template (`enable_thinking=False`).

    Raises:
        ValueError: as of `TextTokenizer.render_prompt`; the message names the example's line.
    """
    try:
        return tokenizer.encode_prompt(example.prompt, system=system, chat_variables=chat_variables)
    except ValueError as error:
        raise ValueError(f"{example.source}: {error}") from error


def encode_examples(
    examples: Sequence[Example],
    tokenizer: TextTokenizer,
    *,
    prompt_length: int,
    system: str | None = None,
    chat_variables: Mapping[str, Any] | None = None,
) -> Encoded:
    """Encode examples, and leave out those of more than `prompt_length` tokens.

    Raises:
        ValueError: as of `encode_example`, or none of them fits.
    """
    encoded = [
        (encode_example(e, tokenizer, system=system, chat_variables=chat_variables), e)
        for e in examples
    ]
    kept = [(ids, example) for ids, example in encoded if len(ids) <= prompt_length]
    if encoded and not kept:
        shortest = min(len(ids) for ids, _ in encoded)
        raise ValueError(
            f"none of {len(encoded)} prompts fits into prompt_length = {prompt_length} tokens; the "
            f"shortest has {shortest}: raise it."
        )
    return Encoded([ids for ids, _ in kept], [e for _, e in kept], len(encoded) - len(kept))
