"""Prompts of token ids, made of examples."""

from collections.abc import Mapping
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
    """Renders an example's prompt, text or messages, and returns its int32 token ids.

    Args:
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
