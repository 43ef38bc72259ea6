"""Chat templates, rendered as `transformers` renders them, in a sandbox.

A template comes with a downloaded model, so it is a program by a stranger: the sandbox gives it no
way to files, imports or attributes of Python objects.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import DictLoader, Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training masks; no matter here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        """Render what is inside as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str, messages: Sequence[Mapping[str, str]], variables: Mapping[str, Any]
) -> str:
    """Render messages up to where the assistant begins to speak.

    Raises:
        ValueError: the template is not valid or refuses these messages; with its own words.
    """
    try:
        return _compiled(template).render(
            messages=messages, add_generation_prompt=True, tools=None, documents=None, **variables
        )
    except TemplateError as error:
        raise ValueError(f"chat template: {error}") from error


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        loader=DictLoader({}),  # a template includes nothing
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which models were not trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
