"""Function calls compared as values: the same functions with equal arguments, however written.

A call is written `[find(city="Rome", days=2)]` (ToolACE, arXiv:2409.00920; the Berkeley function
calling leaderboard), or as JSON `{"name": "find", "arguments": {"city": "Rome", "days": 2}}`,
alone, in a list, or in `<tool_call>` tags (Hermes, Qwen).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from ogrpo.rewards.call_reader import FunctionCall, calls_from_json, read_calls
from ogrpo.rewards.judge import Judge, Outcome, check_each


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
        """Say how a completion comes out, without counting it.

        Args:
            text: the completion.
            finish_reason: "stop" if it ended itself.
            gold: a text of calls, or what JSON makes of one (a mapping or a list of them).

        Raises:
            ValueError: the gold calls cannot be read.
        """
        wanted = _read_gold(gold)
        if finish_reason != "stop":
            return "truncated"
        try:
            made = read_calls(text.rpartition("</think>")[2])
        except ValueError:
            return "unparsable"
        return "correct" if same_calls(made, wanted, ordered=self.ordered) else "wrong"

    def check_golds(self, golds: Sequence[Any], sources: Sequence[str]) -> None:
        """Refuse gold calls that cannot be read."""
        check_each(golds, sources, _fault)


def same_calls(
    made: Sequence[FunctionCall], wanted: Sequence[FunctionCall], *, ordered: bool = False
) -> bool:
    """Tell whether the same calls were made, as often."""
    if len(made) != len(wanted):
        return False
    if ordered:
        return all(map(_same_call, made, wanted))
    left = list(wanted)
    for call in made:
        place = next((n for n, other in enumerate(left) if _same_call(call, other)), None)
        if place is None:
            return False
        del left[place]
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


def _same_call(one: FunctionCall, other: FunctionCall) -> bool:
    return one.name == other.name and same_value(one.arguments, other.arguments)


def _read_gold(gold: Any) -> list[FunctionCall]:
    try:
        return read_calls(gold) if isinstance(gold, str) else calls_from_json(gold)
    except ValueError as error:
        raise ValueError(f"the gold calls {gold!r:.200} cannot be read: {error}.") from error


def _fault(gold: Any) -> str:
    try:
        _read_gold(gold)
    except ValueError as error:
        return str(error)
    return ""
