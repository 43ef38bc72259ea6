"""Function calls compared as values: the same functions with equal arguments, however written.

A call is written `[find(city="Rome", days=2)]` (ToolACE, arXiv:2409.00920; the Berkeley function
calling leaderboard), or as JSON `{"name": "find", "arguments": {"city": "Rome", "days": 2}}`,
alone, in a list, or in `<tool_call>` tags (Hermes, Qwen). Calls are read with `json` and `ast`;
nothing that a model wrote is evaluated.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ogrpo.rewards.judge import Judge, Outcome, check_each

MAX_LENGTH = 16_384
"""Characters of a text of calls; a longer one is malformed."""
MAX_DEPTH = 32
"""Brackets within brackets in a text of calls; a deeper one is malformed."""

_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_FENCED = re.compile(r"```\w*\s*\n(.*)```\Z", re.DOTALL)
_QUOTED = r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
_TOKEN = re.compile(rf"{_QUOTED}|(?P<open>[(\[{{])|(?P<close>[)\]}}])|[^\"'()\[\]{{}}]+", re.DOTALL)
_NAME = re.compile(r"[^\W\d][^()\[\]{}\"'=,<>\n]*")
# Python warns of any other escape than its own, and keeps its backslash.
_UNKNOWN_ESCAPE = re.compile(r"\\([\\'\"abfnrtvxuU\n])|\\(?=.)", re.DOTALL)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {"true": True, "false": False, "null": None}


class FunctionCall(NamedTuple):
    """A function's name and its arguments by name; one without a name has its place for one."""

    name: str
    arguments: Mapping[str | int, Any]


class ToolCalls(Judge):
    """Scores completions that make the gold function calls and no others.

    Names must be equal, and arguments as values: `1` is `1.0`, but not `"1"` and not `true`. The
    order of named arguments does not matter. What cannot be read is "unparsable". A thought before
    `</think>` is put aside, and so is what stands around `<tool_call>` tags.

    >>> reward = ToolCalls()
    >>> reward.judge('[find(days=2.0, city="Rome")]', "stop", "[find(city='Rome', days=2)]")
    'correct'

    Args:
        ordered: whether the calls must come in the gold order.
    """

    def __init__(self, *, ordered: bool = False) -> None:
        super().__init__("tool_calls")
        self.ordered = ordered

    def judge(self, text: str, finish_reason: str, gold: Any) -> Outcome:
        """Return the outcome of a completion, without counting it.

        Args:
            text: the completion.
            finish_reason: "stop" if it ended itself.
            gold: a text of calls, or what JSON makes of one (a mapping or a list of them).

        Raises:
            ValueError: the gold calls cannot be read.
        """
        golds = _gold_calls(gold)
        if finish_reason != "stop":
            return "truncated"
        try:
            calls = read_calls(text.rpartition("</think>")[2])
        except ValueError:
            return "unparsable"
        return "correct" if self._same(calls, golds) else "wrong"

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Refuse gold calls that cannot be read."""
        check_each(golds, sources, _fault)

    def _same(self, calls: Sequence[FunctionCall], golds: Sequence[FunctionCall]) -> bool:
        if len(calls) != len(golds):
            return False
        left = list(golds)
        for call in calls:
            same = (
                n
                for n, gold in enumerate(left[:1] if self.ordered else left)
                if call.name == gold.name and same_value(call.arguments, gold.arguments)
            )
            if (index := next(same, None)) is None:
                return False
            del left[index]
        return True


def same_value(one: Any, other: Any) -> bool:
    """Compare values: numbers by size, a truth value with no number, a tuple as a list.

    >>> same_value([1, {"a": 2.0}], (1.0, {"a": 2})), same_value(1, True), same_value(1, "1")
    (True, False, False)
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same_value(one[k], other[k]) for k in one)
    return one == other


def _gold_calls(gold: Any) -> list[FunctionCall]:
    try:
        return read_calls(gold) if isinstance(gold, str) else _from_json(gold)
    except ValueError as error:
        raise ValueError(f"the gold calls {gold!r:.200} cannot be read: {error}.") from error


def _fault(gold: Any) -> str:
    try:
        _gold_calls(gold)
    except ValueError as error:
        return str(error)
    return ""


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
    fenced = _FENCED.match(text.strip())
    calls: list[FunctionCall] = []
    for part in _TAGGED.findall(text) or [fenced[1] if fenced else text]:
        part = part.strip()
        _check_brackets(part)
        try:
            value = _load_json(part) if part.startswith(("[", "{")) else None
        except json.JSONDecodeError:
            value = None
        calls += _from_python(part) if value is None else _from_json(value)
    return calls


def _from_json(value: Any) -> list[FunctionCall]:
    """Read a mapping `{"name": ..., "arguments": {...}}`, or a sequence of them."""
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        raise ValueError(f"{value!r:.100} is neither a call nor a list of calls")
    calls = []
    for one in [value] if isinstance(value, Mapping) else value:
        call = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str):
            raise ValueError(f'{one!r:.100} is no call: give "name" and "arguments"')
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):  # as the API of OpenAI gives them
            _check_brackets(arguments)
            arguments = _load_json(arguments)
        if not isinstance(arguments, Mapping):
            raise ValueError(f"the arguments of {call['name']} are {arguments!r:.100}, not named")
        calls.append(FunctionCall(call["name"], arguments))
    return calls


def _load_json(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no value of JSON")

    return json.loads(text, object_pairs_hook=_unique, parse_constant=refuse)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError(f"one of {[name for name, _ in pairs]!r:.100} is given twice")
    return mapping


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
    """Read `(1, days=2)`: the arguments by their places and names."""
    source = "f" + _UNKNOWN_ESCAPE.sub(lambda m: m[0] if m[1] else "\\\\", text)
    try:
        call = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text!r:.100} are no arguments") from error
    assert isinstance(call, ast.Call)
    if any(keyword.arg is None for keyword in call.keywords):
        raise ValueError("arguments are given by ** and not one by one")
    named = [(keyword.arg, _value(keyword.value)) for keyword in call.keywords]
    return _unique([*((n, _value(node)) for n, node in enumerate(call.args)), *named])


def _value(node: ast.expr | None) -> Any:
    """Return the value of a literal."""
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
            if not all(isinstance(key, ast.Constant) for key in keys):
                raise ValueError("a key is no constant")
            return _unique([(_value(k), _value(v)) for k, v in zip(keys, values, strict=True)])
    raise ValueError(f"a value is a {type(node).__name__}, and not written out")
