import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.rewards.judge import RewardCounts
from ogrpo.rewards.tool_calls import FunctionCall, ToolCalls, read_calls, same_value

GOLD = '[Stock Price(symbol="AAPL", days=2), now()]'
JSON = [
    {"name": "Stock Price", "arguments": {"symbol": "AAPL", "days": 2}},
    {"name": "now", "arguments": {}},
]


def tagged(calls):
    return "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>\n" for call in calls)


@pytest.mark.parametrize(
    "text",
    [
        GOLD,
        "[Stock Price(days=2.0, symbol='AAPL'), now()]",
        '[now(), Stock Price(symbol="AAPL", days=2)]',
        'Stock Price(symbol="AAPL", days=2), now()',
        "<think>[f(a=1)]?</think>\n\n" + GOLD,
        json.dumps(JSON),
        tagged(JSON),
        "I look it up." + tagged(reversed(JSON)) + "Done.",
        f"```json\n{json.dumps(JSON, indent=2)}\n```",
        json.dumps([{"type": "function", "function": call} for call in JSON]),
        json.dumps([{**call, "arguments": json.dumps(call["arguments"])} for call in JSON]),
        json.dumps([{"name": c["name"], "parameters": c["arguments"]} for c in JSON]),
    ],
)
def test_the_same_calls_are_right_however_written(text):
    for gold in (GOLD, JSON, json.dumps(JSON), tagged(JSON)):
        assert ToolCalls().judge(text, "stop", gold) == "correct"


@pytest.mark.parametrize(
    "text",
    [
        '[Stock Price(symbol="AAPL", days=2)]',
        '[Stock Price(symbol="AAPL", days=2), now(), now()]',
        '[Stock Price(symbol="AAPL", days=2), now(zone="UTC")]',
        '[stock price(symbol="AAPL", days=2), now()]',
        '[Stock Price(symbol="AAPL", days=3), now()]',
        '[Stock Price(symbol="AAPL", days="2"), now()]',
        '[Stock Price(symbol="aapl", days=2), now()]',
        '[Stock Price("AAPL", days=2), now()]',
        "[]",
    ],
)
def test_other_calls_are_wrong(text):
    assert ToolCalls().judge(text, "stop", GOLD) == "wrong"


MALFORMED = [
    "", "I do not know.", "[f(a=1)", "f(a=1))", "[f(a=1) g(b=2)]", "[f(a=1)](b)", "f(a=x)",
    "f(a=1, a=2)", "f(**{'a': 1})", "f(a=open('x'))", "f(a=[i for i in (1, 2)])", "f(a=1 + 1)",
    "f(a='b)", "f(a=b'x')", "f[a]", "(a=1)", "2f(a=1)", "f(a={'b': 1, 'b': 2})", "f(a={**b})",
    '{"name": "f", "name": "g"}', '{"arguments": {}}', '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": {"a": NaN}}', '[{"name": "f"}, 3]', "3", '"f"', '{"name": 3}',
    '{"name": "f", "arguments": "no"}', "<tool_call>f</tool_call>", "f(a=1);",
    "f(a=" + "[" * 40 + "]" * 40 + ")", "f(a=" + "-" * 9000 + "1)", "f(a=" + "1+" * 7000 + "1)",
    "f(a=" + "1 if 1 else " * 1000 + "1)", "f(a=" + "9" * 5000 + ")", "f(a='" + "x" * 20_000 + "')",
    "f(a='\ud800'", "f(a=1\0)", "f(a='\\x')",
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: ascii(text[:30]))
def test_what_is_malformed_is_refused_and_counted(text):
    with pytest.raises(ValueError, match=r"\w"):
        read_calls(text)
    reward = ToolCalls()
    assert reward.score(text, "stop", GOLD) == 0.0
    assert reward.counts == RewardCounts(unparsable=1)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("-1.5e3", -1500.0),
        ("[1, (2, 'a')]", [1, [2, "a"]]),
        ("{'a': None, 2: true}", {"a": None, 2: True}),
        (r'"C:\dir \d+\n"', "C:\\dir \\d+\n"),
    ],
)
def test_values_are_read(written, value):
    assert read_calls(f"[f(a={written})]") == [FunctionCall("f", {"a": value})]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        ("1", 1, False),
        ([1, 2], (1.0, 2), True),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": 1, "b": None}, False),
    ],
)
def test_values_are_compared_as_values(one, other, same):
    assert same_value(one, other) is same
    assert same_value(other, one) is same


def test_the_order_counts_for_an_ordered_judge_and_no_call_is_a_gold_answer_too():
    turned = '[now(), Stock Price(symbol="AAPL", days=2)]'
    ordered = ToolCalls(ordered=True)
    assert ordered.judge(GOLD, "stop", GOLD) == "correct"
    assert ordered.judge(turned, "stop", GOLD) == "wrong"
    assert ToolCalls().judge("[]", "stop", "[]") == "correct"
    assert ToolCalls().judge("[f()]", "stop", []) == "wrong"


def test_a_gold_that_cannot_be_read_is_an_error_with_its_source():
    with pytest.raises(ValueError, match=r"toolace\.jsonl:7: .*'Which city\?' cannot be read"):
        ToolCalls().check_golds([GOLD, "Which city?"], ["toolace.jsonl:6", "toolace.jsonl:7"])
    with pytest.raises(ValueError, match="cannot be read"):
        ToolCalls().judge(GOLD, "length", "Which city?")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.from_regex(r"[a-z]\w{0,5}", fullmatch=True), values, max_size=3))
def test_json_gives_back_what_was_written(arguments):
    call = {"name": "f", "arguments": arguments}
    assert ToolCalls().judge(json.dumps(call), "stop", call) == "correct"


@given(st.text(alphabet="f(a=1,'\"[]{}): \\x\n-", max_size=60))
def test_any_text_is_read_or_refused(text):
    assert ToolCalls().judge(text, "stop", "[f(a=1)]") in ("correct", "wrong", "unparsable")
