"""Function calls read from text: `[find(city="Rome", days=2)]`, JSON, or `<tool_call>` tags.

They are read with `json` and `ast`; nothing that a model wrote is evaluated.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MAX_LENGTH = 16_384
"""Characters of a text of calls; a longer one is malformed."""
MAX_DEPTH = 32
"""Brackets within brackets in a text of calls; a deeper one is malformed."""

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCED = re.compile(r"```\w*\s*\n(.*)```\Z", re.DOTALL)
_QUOTED = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_TOKEN = re.compile(rf"{_QUOTED}|(?P<open>[(\[{{])|(?P<close>[)\]}}])|[^\"'()\[\]{{}}]+", re.DOTALL)
_NAME = re.compile(r"[^\W\d][^()\[\]{}\"'=,<>\n]*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"abfnrtvxuU\n")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}


class FunctionCall(NamedTuple):
    """A function's name and its arguments by name; one without a name has its place for one."""

    name: str
    arguments: Mapping[str | int, Any]


def read_calls(text: str) -> list[FunctionCall]:
    """Read the calls of a text: all that stand in tags, or else the text itself.

    >>> read_calls('[Stock Price(symbol="AAPL"), now()]')[0]
    FunctionCall(name='Stock Price', arguments={'symbol': 'AAPL'})
    >>> read_calls('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    [FunctionCall(name='now', arguments={})]

    Raises:
        ValueError: it is no text of calls, too long, too deep, or gives an argument twice.
    """
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text)} characters of calls; at most {MAX_LENGTH} are read")
    tagged = _TAGGED.findall(text)
    if tagged:
        return [call for part in tagged for call in _read_part(part.strip())]
    fenced = _FENCED.match(text.strip())
    return _read_part((fenced[1] if fenced else text).strip())


def calls_from_json(value: Any) -> list[FunctionCall]:
    """Read a mapping `{"name": ..., "arguments": {...}}`, or a sequence of them.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, Mapping):
        return [_from_mapping(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_from_mapping(one) for one in value]
    raise ValueError(f"{value!r:.100} is neither a call nor a list of calls")


def _read_part(text: str) -> list[FunctionCall]:
    _check_brackets(text)
    if text.startswith(("[", "{")):
        try:
            value = _load(text)
        except json.JSONDecodeError:
            pass
        else:
            return calls_from_json(value)
    return _from_python(text)


def _from_mapping(value: Any) -> FunctionCall:
    call = value.get("function", value) if isinstance(value, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
        raise ValueError(f'{value!r:.100} is no call: give "name" and "arguments"')
    arguments = call.get("arguments", call.get("parameters", {}))
    if isinstance(arguments, str):  # as the API of OpenAI gives them
        _check_brackets(arguments)
        arguments = _load(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError(f"the arguments of {call['name']} are {arguments!r:.100}, not named")
    return FunctionCall(call["name"], arguments)


def _load(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"one of {[name for name, _ in pairs]!r:.100} is given twice")
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no value of JSON")


def _from_python(text: str) -> list[FunctionCall]:
    inner = text[1:-1].strip().removesuffix(",") if text.startswith("[") else text
    calls: list[FunctionCall] = []
    for name, arguments in _split_calls(inner):
        if calls and not name.startswith(","):
            raise ValueError(f"there is no comma before the call of {name!r:.60}")
        name = name.removeprefix("," if calls else "").strip()
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.60} is no function's name")
        calls.append(FunctionCall(name, _arguments(arguments)))
    if not calls:
        raise ValueError("there is no call")
    return calls


def _split_calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield each call's name (with what separates it from the one before) and its `(...)`."""
    start = opened = depth = 0
    for token in _TOKEN.finditer(text):
        if token["open"]:
            opened = token.start() if depth == 0 else opened
            depth += 1
        elif token["close"]:
            depth -= 1
            if depth < 0 or text[opened] != "(":
                raise ValueError("there are brackets that enclose no arguments")
            if depth == 0:
                yield text[start:opened].strip(), text[opened : token.end()]
                start = token.end()
    if text[start:].strip():
        raise ValueError(f"{text[start:].strip()!r:.60} is no call")


def _check_brackets(text: str) -> None:
    expected: list[str] = []
    read = 0
    for token in _TOKEN.finditer(text):
        if token.start() != read:
            break
        read = token.end()
        if token["open"]:
            expected.append(_CLOSING[token["open"]])
        elif token["close"] and (not expected or expected.pop() != token["close"]):
            raise ValueError(f"{token['close']!r} closes no bracket")
        if len(expected) > MAX_DEPTH:
            raise ValueError(f"there are more than {MAX_DEPTH} brackets within brackets")
    if read < len(text) or expected:
        raise ValueError("a bracket or a quotation mark is not closed")


def _arguments(text: str) -> dict[str | int, Any]:
    try:
        call = ast.parse("f" + _ESCAPE.sub(_known_escape, text), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text!r:.100} are no arguments") from error
    assert isinstance(call, ast.Call)
    given = [(n, _value(node)) for n, node in enumerate(call.args)]
    named = [(keyword.arg, _value(keyword.value)) for keyword in call.keywords]
    if any(name is None for name, _ in named):
        raise ValueError("arguments are given by ** and not one by one")
    return _unique([*given, *named])


def _known_escape(escape: re.Match[str]) -> str:
    # Python warns of any other, and keeps its backslash.
    return escape[0] if escape[1] in _KNOWN_ESCAPES else "\\" + escape[0]


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | None as value):
            return value
        case ast.Name(id=word) if word in _WORDS:
            return _WORDS[word]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_value(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return _unique([(_key(k), _value(v)) for k, v in zip(keys, values, strict=True)])
    raise ValueError(f"a value is a {type(node).__name__}, and not written out")


def _key(node: ast.expr | None) -> Any:
    if not isinstance(node, ast.Constant):
        raise ValueError("a key is no constant")
    return _value(node)
