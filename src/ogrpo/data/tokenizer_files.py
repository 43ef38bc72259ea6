"""The files of a tokenizer's folder, read with errors that name them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ogrpo.data.chat import template_variables
from ogrpo.system import files

TEMPLATE = "chat_template.jinja"
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")
MOST_TEMPLATE = 1 << 20
"""Bytes of a chat template; the longest known ones have some 20,000."""


def token_text(token: Any) -> str | None:
    """Return a special token's text, which may stand in an object."""
    return token["content"] if isinstance(token, Mapping) else token


def read_config(file: Path) -> dict[str, Any]:
    """Read `tokenizer_config.json`, whose special tokens are texts or objects with a text."""
    config = read_json(file)
    for name in SPECIAL:
        token = config.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        if not isinstance(text, str) and token is not None:
            raise ValueError(
                f"{file}: {name!r} is {token!r:.60}: give a text, or an object with the text as"
                " 'content'"
            )
    return config


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the template of `chat_template.jinja`, or else of the config, or None.

    Raises:
        ValueError: it is no text, or no template; names the file.
    """
    file = folder / TEMPLATE
    if file.is_file():
        template = files.read_text(file, MOST_TEMPLATE)
    else:
        file = folder / "tokenizer_config.json"
        template = _template_of(config.get("chat_template"), file)
    if template is not None:
        template_variables(template, str(file))
    return template


def _template_of(given: Any, file: Path) -> str | None:
    if isinstance(given, str | None):
        return given
    named = _named(given) if isinstance(given, list) else None
    if named is None:
        raise ValueError(
            f"{file}: 'chat_template' is {given!r:.60}: give a text, or a list of objects with"
            " 'name' and 'template'"
        )
    if not isinstance(named.get("default"), str):
        raise ValueError(f"{file}: chat templates {sorted(named)}, none named 'default'.")
    return named["default"]


def _named(entries: list[Any]) -> dict[str, Any] | None:
    """Several templates by their names; None if these are none."""
    if not all(isinstance(x, Mapping) and {"name", "template"} <= x.keys() for x in entries):
        return None
    return {str(entry["name"]): entry["template"] for entry in entries}


def read_backend(file: Path) -> Tokenizer:
    """Read `tokenizer.json`."""
    if not isinstance(read_json(file).get("model"), Mapping):
        raise ValueError(f"{file} is no tokenizer: it has no 'model'.")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library has no class of its own for what it does not take
        raise ValueError(f"{file} is no tokenizer that can be read: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object; one that is missing or broken is a ValueError that names it."""
    if not file.is_file():
        raise ValueError(
            f"{file} is missing; a tokenizer folder holds tokenizer.json and "
            f"tokenizer_config.json (and {TEMPLATE}, if it chats)."
        )
    value = files.read_json(file)
    if not isinstance(value, dict):
        raise ValueError(f"{file} must hold a JSON object, got {type(value).__name__}")
    return value
