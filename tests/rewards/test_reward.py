import functools

import pytest

from ogrpo.rewards.reward import Reward, as_rewards, place_of
from ogrpo.rewards.scores import ScoreRequest
from tests.rewards import functions


def test_functions_become_rewards_named_like_them():
    partial = functools.partial(functions.equal, answer=["4"])
    rewards = as_rewards([functions.length, partial, Reward("other", functions.length, 0.5)])
    assert [(r.name, r.weight) for r in rewards] == [
        ("length", 1.0),
        ("equal", 1.0),
        ("other", 0.5),
    ]


def test_weights_are_given_in_the_rewards_order():
    rewards = as_rewards([functions.length, Reward("e", functions.equal)], [2.0, -1])
    assert [(r.name, r.weight) for r in rewards] == [("length", 2.0), ("e", -1)]


@pytest.mark.parametrize(
    ("rewards", "weights", "message"),
    [
        ([], None, "there is no reward"),
        (functions.length, None, r"give a list, such as rewards=\[reward\]"),
        ("length", None, "rewards is 'length'; give a list"),
        (["length"], None, "a reward is str, not a function: 'length'"),
        ([functions.length] * 2, None, r"(?s)two rewards are called 'length': .*functions\.py:\d+ and .*functions\.py:\d+\. Name one: Reward\("),
        ([lambda: 0], None, r"test_reward\.py:\d+: a lambda has no name; give it one: Reward\("),
        ([functions.length], [1.0, 2.0], "there are 2 weights for 1 rewards"),
        ([Reward("a", functions.length, 2.0)], [1.0], "a: has a weight of its own; leave weights out"),
        ([functions.length], [float("nan")], "has weight nan; give a finite number"),
        ([functions.length], [0.0], "no reward counts: length have weight 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_list_of_rewards_is_said(rewards, weights, message):
    with pytest.raises(ValueError, match=message):
        as_rewards(rewards, weights)


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("", functions.length, "a reward is called ''"),
        ("a/b", functions.length, "without '/'"),
        (
            "seconds",
            functions.length,
            r"'seconds', as a count of the metrics .*Reward\('my_seconds'",
        ),
        (functions.length, 1.0, "a reward is called <function length"),
        ("a", 0.5, "reward 'a' is no function but float: 0.5"),
    ],
)
def test_a_reward_is_a_function_with_a_name(name, function, message):
    with pytest.raises(ValueError, match=message):
        Reward(name, function)


class Judge:
    async def __call__(self, completions):
        return [0.0]

    def method(self, completions):
        return [0.0]


def test_coroutines_are_known_in_all_their_forms():
    for function in (functions.judge, Judge(), functools.partial(Judge()), functools.partial(functions.judge)):  # fmt: skip
        assert Reward("judge", function).asynchronous
    for function in (functions.length, Judge().method, Judge, len):
        assert not Reward("judge", function).asynchronous


def test_a_coroutine_cannot_be_bounded():
    judge = Judge()
    judge.bounded = True
    with pytest.raises(ValueError, match="cannot be bounded in a caller's thread"):
        Reward("judge", judge)


def test_a_functions_place_is_where_it_is_written():
    def here(completions):
        return [0.0]

    @functools.wraps(here)
    def wrapped(completions):
        return here(completions)

    line = here.__code__.co_firstlineno
    assert {place_of(f) for f in (here, wrapped, functools.partial(here))} == {f"{__file__}:{line}"}
    assert place_of(Judge()).startswith(f"{__file__}:")
    assert place_of(Judge().method).startswith(f"{__file__}:")


def test_what_is_scored_together_has_one_length():
    with pytest.raises(ValueError, match=r"'answer': 1"):
        ScoreRequest(["q"] * 2, ["a"] * 2, [[1]] * 2, ["stop"] * 2, {"answer": ["4"]})


def test_a_column_with_the_name_of_an_argument_is_refused():
    with pytest.raises(ValueError, match="the column 'completions' has the name of an argument"):
        ScoreRequest(["q"], ["a"], [[1]], ["stop"], {"completions": ["4"]})
