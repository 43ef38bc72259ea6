"""The files of a tokenizer's folder, read with errors that name them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer


def token_text(token: Any) -> str | None:
    """Return a special token's text, which may stand in an object."""
    return token["content"] if isinstance(token, Mapping) else token


def read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the template of `chat_template.jinja`, or else of the config, or None."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _read(file)
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in template}
        if "default" not in named:
            raise ValueError(f"{folder}: chat templates {sorted(named)}, none named 'default'.")
        return named["default"]
    return template


def read_backend(file: Path) -> Tokenizer:
    """Read `tokenizer.json`."""
    if not isinstance(read_json(file).get("model"), Mapping):
        raise ValueError(f"{file} is no tokenizer: it has no 'model'.")
    return Tokenizer.from_file(str(file))


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON file; one that is missing or broken is a ValueError that names it."""
    try:
        return json.loads(_read(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is not valid JSON: {error}.") from error


def _read(file: Path) -> str:
    if not file.is_file():
        raise ValueError(
            f"{file} is missing; a tokenizer folder holds tokenizer.json and "
            "tokenizer_config.json (and chat_template.jinja, if it chats)."
        )
    return file.read_text(encoding="utf-8")
