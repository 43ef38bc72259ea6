"""Chat templates in jinja2's sandbox, as `transformers` sets it up.

This file runs in a process of its own (`ogrpo.data.chat`), which is killed when a template takes
too much time or memory, so that it imports nothing of ours. The sandbox gives a template no way to
files, imports or attributes of Python objects.
"""

import json
import signal
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import DictLoader, Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CHARACTERS = 1 << 24
"""Characters of a rendered text."""
TODAY = datetime(2024, 7, 26)
"""The day that templates are told, so that a run resumed tomorrow has the same prompts."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training masks; no matter here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Renders what is inside as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which models were not trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


_SANDBOX = ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[loopcontrols, _Generation],
    loader=DictLoader({}),  # a template includes nothing
)
_SANDBOX.filters["tojson"] = _to_json
_SANDBOX.globals["raise_exception"] = _raise_exception
_SANDBOX.globals["strftime_now"] = lambda pattern: TODAY.strftime(pattern)

_compiled: Callable[[str], Template] = lru_cache(maxsize=16)(_SANDBOX.from_string)


def render(template: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Returns `{"result": TEXT}`, or `{"error": MESSAGE}` where the template fails."""

    def text() -> str:
        rendered = _compiled(template).render(**arguments)
        if len(rendered) > MOST_CHARACTERS:
            raise TemplateError(f"it writes more than {MOST_CHARACTERS:,} characters")
        rendered.encode()  # a template can write half of a surrogate pair
        return rendered

    return _bounded(text, seconds)


def names(template: str, seconds: float) -> dict[str, Any]:
    """Returns the names that a template reads and does not set, in the form of `render`."""

    def undeclared() -> list[str]:
        _compiled(template)
        return sorted(meta.find_undeclared_variables(_SANDBOX.parse(template)))

    return _bounded(undeclared, seconds)


def _bounded(function: Callable[[], Any], seconds: float) -> dict[str, Any]:
    # The timer's signal ends the process, in the middle of a long step in C too. It counts CPU
    # time: a busy machine fails no template.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"result": function()}
    except TemplateError as error:
        return {"error": str(error)}
    except MemoryError:
        raise
    except Exception as error:  # a stranger's program may end with anything
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
