"""The sandbox of chat templates: no way to Python's objects, and an end to every rendering.

jinja2's sandbox refuses attributes, calls and changes by which a template could leave it. It leaves
loops in loops, 10 ** 10 ** 10 and texts that double in every turn, which are refused here: a
rendering takes `MOST_STEPS` turns of loops and calls of macros, and no text or list of it is longer
than `MOST_LENGTH`.
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import DictLoader, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_format
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MOST_STEPS = 100_000
"""Turns of loops and calls of macros; a template takes a few for each message."""
MOST_LENGTH = 1 << 24
"""Characters of a text, entries of a list, and characters that are written in all."""
MOST_AT_ONCE = 1 << 28
"""Characters that a call may make before they are counted."""
GROWING = (
    *("batch", "center", "indent", "join", "replace", "round", "slice", "truncate", "urlize"),
    "wordwrap",
)
"""The filters whose result can be larger than what they are given."""
MOST_DIGITS = 4096
"""Bits of a whole number."""


class _Spent(threading.local):
    """What the rendering under way in this thread has used."""

    steps = 0
    length = 0


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that a chat template is compiled and rendered in."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self.spent = _Spent()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _Generation],
            loader=DictLoader({}),  # a template includes nothing
            finalize=self.write,
        )
        self.filters |= {name: _bounded(self.filters[name]) for name in GROWING}
        self.filters["format"] = _format
        self.filters["tojson"] = _to_json
        # jinja2's own `lipsum` makes any number of words.
        self.globals = {name: x for name, x in self.globals.items() if name != "lipsum"}
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def begin(self) -> None:
        """Starts the counts of a rendering."""
        self.spent.steps = self.spent.length = 0

    def step(self) -> str:
        """Counts a turn of a loop or a call of a macro."""
        self.spent.steps += 1
        if self.spent.steps > MOST_STEPS:
            raise SecurityError(f"it takes more than {MOST_STEPS:,} steps")
        return ""

    def write(self, value: Any) -> Any:
        """Counts what is written."""
        self.spent.length += len(value) if isinstance(value, str) else 1
        if self.spent.length > MOST_LENGTH:
            raise SecurityError(f"it writes more than {MOST_LENGTH:,} characters")
        return value

    def join_texts(self, *parts: Any) -> str:
        """The operator `~`."""
        return _short("".join(map(str, parts)))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator of which a short text can ask for any amount."""
        if operator == "**":
            _check_power(left, right)
        elif operator == "*":
            _check_product(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_widths(left)
        return _short(super().call_binop(context, operator, left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **named: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A call that is allowed, of methods of texts too."""
        if isinstance(function, Macro):
            self.step()
        # The sandbox puts its own formatting around that of texts.
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if isinstance(owner, str | bytes | int | list | tuple):
            _check_sizes([owner, *args, *named.values()])
        if isinstance(owner, str) and getattr(function, "__name__", "").startswith("format"):
            _check_widths(owner)
        return super().call(context, function, *args, **named)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Counted().visit(super()._parse(source, name, filename))


class _Counted(NodeTransformer):
    """Puts a count into every loop, and `~` where it can be looked at."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_own("step", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _own("join_texts", node.nodes, node.lineno)


def _own(name: str, arguments: list[nodes.Expr], line: int) -> nodes.Call:
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training masks; no matter here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Render what is inside as it is."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is asked for no more than `MOST_AT_ONCE`, and gives no more than may be."""

    @wraps(function)
    def bounded(*args: Any, **named: Any) -> Any:
        _check_sizes([*args, *named.values()])
        return _short(function(*args, **named))

    return bounded


def _check_sizes(values: list[Any]) -> None:
    """Refuses arguments of which a result can be as large as the product of the largest two."""
    first, second, *_ = sorted([1, 1, *map(_size, values)], reverse=True)
    if first * second > MOST_AT_ONCE:
        raise SecurityError(f"a call in it can make {first * second:,} characters")


def _size(value: Any) -> int:
    if isinstance(value, int):
        return abs(value)
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return _size(list(value.values()))
    if isinstance(value, list | tuple):
        return sum(len(x) if isinstance(x, str) else 1 for x in value)
    return 1


_WIDTHS = re.compile(r"%[^a-zA-Z%]*(\*|\d{6})|\{[^{}]*(\{|\d{6})")


def _check_widths(text: str) -> None:
    """Refuses formats of a million places, as in `%1000000d`, and those of any number, as `%*d`."""
    if _WIDTHS.search(text):
        raise SecurityError(f"{text[:40]!r} in it is a format of more than 99,999 places")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        digits = abs(left).bit_length() * max(0, right)
        if digits > MOST_DIGITS:
            raise SecurityError(f"it computes a number of {digits:,} bits")


def _check_product(left: Any, right: Any) -> None:
    for text, times in ((left, right), (right, left)):
        if isinstance(times, int) and hasattr(text, "__len__") and len(text) * times > MOST_LENGTH:
            raise SecurityError(f"it makes a text of {len(text) * times:,} characters")


def _short(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MOST_LENGTH:
        raise SecurityError(f"it makes a text of {len(value):,} characters")
    if isinstance(value, int) and value.bit_length() > MOST_DIGITS:
        raise SecurityError(f"it computes a number of {value.bit_length():,} bits")
    return value


def _format(value: Any, *args: Any, **named: Any) -> str:
    _check_widths(str(value))
    return do_format(value, *args, **named)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # jinja2's own filter escapes <, > and & for HTML, which models were not trained on.
    if isinstance(indent, int) and indent > 100:
        raise SecurityError(f"it indents by {indent}")
    return _short(json.dumps(value, ensure_ascii=ensure_ascii, indent=indent))


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    _check_widths(str(pattern))
    return datetime.now().strftime(pattern)
