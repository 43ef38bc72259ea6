import re
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from ogrpo.rewards.pool import RewardPool
from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import KINDS
from tests.rewards import functions
from tests.rewards.asking import pool, request
from tests.rewards.functions import BAD


def test_rewards_are_summed_by_weight():
    rewards = [Reward("length", functions.length, 0.5), Reward("equal", functions.equal, 2.0)]
    with pool(*rewards) as p:
        scores = p.score(request("4", "five", answer="4"))
    np.testing.assert_array_equal(scores.rewards, np.float32([2.5, 2.0]))
    np.testing.assert_array_equal(scores.values["length"], np.float32([1, 4]))
    np.testing.assert_array_equal(scores.values["equal"], np.float32([1, 0]))
    assert scores.rewards.dtype == np.float32
    assert not scores.failed.any()
    assert scores.failures == ()


def test_a_function_is_given_what_it_names_and_one_with_columns_everything():
    def told(**given):
        given.pop("completions")
        return [float(given == {
            "prompts": ["2 + 2?"] * 2, "completion_ids": [[0], [1]], "finish_reasons": ["stop"] * 2,
            "answer": ["4"] * 2, "level": [3] * 2,
        })] * 2  # fmt: skip

    def names(completion_ids, level, absent=7):
        return [
            float(ids[0] + 10 * n + absent) for ids, n in zip(completion_ids, level, strict=True)
        ]

    with pool(told, names) as p:
        scores = p.score(request("a", "b", answer="4", level=3))
    assert scores.values["told"].tolist() == [1.0, 1.0]
    assert scores.values["names"].tolist() == [37.0, 38.0]


def test_a_chat_task_hands_over_messages():
    def judge(prompts, completions, **columns):
        pairs = zip(prompts, completions, strict=True)
        return [float(f"{p[-1]['content']}{c[0]['role']}{c[0]['content']}" == "2 + 2?assistant4") for p, c in pairs]  # fmt: skip

    with pool(judge) as p:
        asked = request("4", "5", prompt=({"role": "user", "content": "2 + 2?"},))
        assert p.score(asked).rewards.tolist() == [1.0, 0.0]


def test_an_argument_that_no_column_gives_is_named_with_its_function_and_line():
    with pool(functions.equal) as p:
        with pytest.raises(
            ValueError,
            match=r"reward 'equal' \(.*functions\.py:\d+\) takes 'answer', which no column of the "
            r"task gives: there are anwser, level\. Did you mean 'anwser'\?",
        ):
            p.score(request("4", anwser="4", level=1))
        with pytest.raises(ValueError, match="there is none"):
            p.check_columns([])
        p.check_columns(["answer"])


def test_what_only_trls_trainer_passes_needs_a_default():
    def logs(completions, log_metric):
        return [0.0] * len(completions)

    with (
        pool(logs) as p,
        pytest.raises(ValueError, match=r"TRL's trainer passes it .* log_metric=None"),
    ):
        p.score(request("4"))


FAILING = {
    "raised": (
        functions.raises,
        r"raised KeyError: 'no such answer'\n[\s\S]*functions\.py[\s\S]* in _worth",
    ),
    "timeout": (functions.overruns, r"did not end within 0\.7 s of wall time"),
    "memory": (functions.takes_memory, r"ran out of its 2 GiB of memory: raised MemoryError"),
    "died": (functions.dies, r"was not done: its process ended: signal SIGSEGV"),
    "not finite": (functions.gives_nan, r"gave nan for completion 2"),
    "not a number": (functions.gives_text, r"gave '1\.0' for completion 2"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_one_bad_completion_fails_alone_and_says_why(kind):
    function, message = FAILING[kind]
    with pool(function, Reward("length", functions.length), seconds=0.7) as p:
        scores = p.score(request("a", "bb", BAD, "dddd"))
        metrics = p.metrics()
    name = function.__name__
    assert scores.failed.tolist() == [False, False, True, False]
    assert scores.rewards.tolist() == [2.0, 3.0, 0.0, 5.0]
    np.testing.assert_array_equal(scores.values[name], np.float32([1, 1, np.nan, 1]))
    assert scores.values["length"].tolist() == [1, 2, 3, 4]
    (failure,) = scores.failures
    assert failure[:3] == (name, 2, kind)
    assert re.search(rf"reward '{name}' \(.*functions\.py:\d+\) {message}", failure.message)
    by_kind = {k: metrics[f"reward/{name}/failed/{k.replace(' ', '_')}"] for k in KINDS}
    assert by_kind == {**dict.fromkeys(KINDS, 0), kind: 1}
    assert metrics["reward/failed"] == metrics[f"reward/failed/{kind.replace(' ', '_')}"] == 1


def test_all_kinds_are_tried():
    assert {*FAILING, "wrong count", "none"} == {*KINDS}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (functions.gives_one_for_all, "returned 1 values for 3 completions"),
        (functions.gives_a_number, "returned 1.0, not a list with a number for each completion"),
    ],
)
def test_a_wrong_number_of_values_fails_all_and_is_not_hidden_by_asking_one_by_one(
    function, message
):
    with pool(function) as p:
        scores = p.score(request("a", "b", "c"))
        assert p.metrics()["reward/calls"] == 1
    assert scores.failed.all()
    assert {f.kind for f in scores.failures} == {"wrong count"}
    assert all(message in f.message for f in scores.failures)


def test_an_exit_and_an_infinite_integer_are_failures_too():
    with pool(functions.exits, functions.gives_too_much) as p:
        scores = p.score(request("a", BAD))
    assert [f[:3] for f in scores.failures] == [
        ("exits", 1, "raised"),
        ("gives_too_much", 1, "not finite"),
    ]
    assert "SystemExit: enough" in scores.failures[0].message


def test_a_function_that_always_overruns_is_given_up():
    def never(completions, **columns):
        threading.Event().wait()

    with pool(never, seconds=0.15) as p:
        scores = p.score(request(*"abcdefghijkl"))
        metrics = p.metrics()
    assert scores.failed.all()
    assert metrics["reward/failed/timeout"] == 12
    # The call itself, 4 that overrun, and what the other process was asked meanwhile.
    assert metrics["reward/calls"] <= 1 + 4 + 1
    assert "was not asked for this completion" in scores.failures[-1].message


def test_none_is_not_judged_and_left_out_of_the_sum():
    rewards = [
        Reward("here", functions.gives_none, 2.0),
        Reward("there", lambda completions: [None if c == "a" else 3.0 for c in completions]),
    ]
    with pool(*rewards) as p:
        scores = p.score(request("a", BAD, "c"))
    assert scores.rewards.tolist() == [2.0, 3.0, 5.0]
    assert scores.failures == ()
    with pool(rewards[0]) as p:
        alone = p.score(request("a", BAD))
    assert alone.failed.tolist() == [False, True]
    assert alone.failures[0].kind == "none"
    told = (
        r"reward 'here' \(.*functions\.py:\d+\) gave None for completion 1, which no reward judged"
    )
    assert re.fullmatch(told, alone.failures[0].message)


def test_the_failure_of_a_reward_of_weight_0_is_counted_and_fails_no_completion():
    with pool(Reward("seen", functions.raises, 0.0), functions.length) as p:
        scores = p.score(request("a", BAD))
        assert p.metrics()["reward/seen/failed/raised"] == 1
    assert not scores.failed.any()
    assert scores.rewards.tolist() == [1.0, 3.0]


def test_a_sum_that_float32_cannot_hold_is_a_failure():
    def large(completions):
        return [3e38, 1.0]

    with pool(Reward("large", large, 10.0)) as p:
        scores = p.score(request("a", "b"))
    assert scores.failed.tolist() == [True, False]
    assert scores.failures[0].kind == "not finite"
    assert "too large for float32" in scores.failures[0].message


def meeting(me, everyone):
    def meets(completions, folder, **columns):
        from tests.rewards import functions

        return [float(functions.meets(folder[0], me, everyone))] * len(completions)

    return Reward(me, meets)


def test_slow_rewards_run_at_the_same_time(tmp_path):
    everyone = ["one", "two", "three", "four"]
    with pool(*(meeting(me, everyone) for me in everyone), processes=4, seconds=60.0) as p:
        scores = p.score(request("a", folder=str(tmp_path)))
    assert scores.rewards.tolist() == [4.0]


def test_groups_of_different_threads_run_at_the_same_time(tmp_path):
    def meets(completions, folder, **columns):
        from tests.rewards import functions

        return [float(functions.meets(folder[0], completions[0], ["a", "b"]))]

    with pool(meets, seconds=60.0) as p, ThreadPoolExecutor(2) as threads:
        asked = [request(me, folder=str(tmp_path)) for me in "ab"]
        found = list(threads.map(p.score, asked))
        assert p.metrics()["reward/completions"] == 2
    assert [scores.rewards.tolist() for scores in found] == [[1.0], [1.0]]


def test_many_threads_get_their_own_answers():
    with pool(functions.length, functions.judge) as p, ThreadPoolExecutor(16) as threads:
        asked = [request("x" * n, "y" * (n + 1)) for n in range(40)]
        found = list(threads.map(p.score, asked))
        metrics = p.metrics()
    assert [s.rewards.tolist() for s in found] == [[2.0 * n, 2.0 * n + 2] for n in range(40)]
    assert metrics["reward/calls"] == 80
    assert metrics["reward/completions"] == 80
    assert metrics["reward/judge/completions"] == 80
    assert metrics["reward/processes"] <= 3


def test_waiting_for_a_process_is_not_charged_to_the_call():
    def slow(completions):
        import time

        time.sleep(0.3)
        return [1.0]

    with pool(slow, processes=1, seconds=1.0) as p, ThreadPoolExecutor(5) as threads:
        found = list(threads.map(p.score, [request("a")] * 5))
        metrics = p.metrics()
    assert [scores.rewards.tolist() for scores in found] == [[1.0]] * 5
    assert metrics["reward/seconds"] >= 1.5
    assert metrics["reward/busy_seconds"] >= 1.5
    assert 0 < metrics["reward/completions_per_second"] <= 5 / 1.5


def test_a_pool_counts_on_from_an_earlier_one():
    with pool(functions.raises) as first:
        first.score(request("a", BAD))
        before = first.metrics()
    with pool(functions.raises) as second:
        second.score(request(BAD))  # as a resumed run judges its shown answers once more
        second.go_on_from({**before, "reward/gone/calls": 3})
        assert second.metrics()["reward/failed/raised"] == 1
        second.score(request("a", BAD))
        after = second.metrics()
    measured = ("seconds", "per_second", "processes")
    counted = [name for name in after if not name.endswith(measured)]
    assert {name: after[name] for name in counted} == {name: 2 * before[name] for name in counted}
    speed = after["reward/completions"] / after["reward/busy_seconds"]
    assert after["reward/completions_per_second"] == pytest.approx(speed)


class Here:
    """A reward that bounds itself: it cannot be pickled, and is called where it was asked."""

    bounded = True

    def __init__(self):
        self.lock, self.threads = threading.Lock(), []

    def __call__(self, completions, **columns):
        with self.lock:
            self.threads.append(threading.current_thread())
        return [functions._worth(text) for text in completions]


def test_a_bounded_reward_is_called_in_the_callers_thread():
    here = Here()
    with RewardPool([here], processes=1, seconds=5.0, memory_gib=1.0) as p:
        scores = p.score(request("a", BAD))
        metrics = p.metrics()
    assert scores.failed.tolist() == [False, True]
    assert scores.failures[0].kind == "raised"
    assert {*here.threads} == {threading.current_thread()}
    assert metrics["reward/processes"] == 0
    assert metrics["reward/Here/calls"] == 3
    assert metrics["reward/repeated"] == 1


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions: [0.0], r"test_pool\.py:\d+: a lambda has no name"),
        (3, "a reward is int, not a function: 3"),
        (lambda: functions.length, "a lambda has no name"),
    ],
)
def test_a_pool_refuses_what_is_no_reward(reward, message):
    with pytest.raises(ValueError, match=message):
        pool(reward)


def test_what_cannot_be_pickled_is_named_at_once():
    lock = threading.Lock()

    def locked(completions):
        with lock:
            return [0.0]

    with pytest.raises(
        ValueError, match=r"reward 'locked' \(.*test_pool\.py:\d+\) cannot be sent .*lock"
    ):
        pool(locked)


def test_a_column_that_cannot_be_pickled_is_named():
    with (
        pool(functions.length) as p,
        pytest.raises(ValueError, match=r"'mutex' cannot be sent to a process: .*lock"),
    ):
        p.score(request("a", mutex=threading.Lock()))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"processes": 0}, "processes is 0; give a whole number of at least 1"),
        ({"concurrency": 1.5}, "concurrency is 1.5"),
        ({"seconds": float("inf")}, "seconds is inf; give a finite number > 0"),
        ({"memory_gib": 0}, "memory_gib is 0"),
        ({"start_seconds": -1.0}, "start_seconds is -1.0"),
    ],
)
def test_a_bound_that_bounds_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        pool(functions.length, **options)


def test_partial_functions_and_callable_objects_work():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __call__(self, completions, **columns):
            return [self.by * len(text) for text in completions]

    def power(completions, exponent):
        return [len(text) ** exponent for text in completions]

    with pool(Scale(0.5), partial(power, exponent=2)) as p:
        scores = p.score(request("aaa"))
    assert {k: v.tolist() for k, v in scores.values.items()} == {"Scale": [1.5], "power": [9.0]}


def test_no_completions_are_worth_nothing():
    with pool(functions.length) as p:
        scores = p.score(request())
    assert scores.rewards.shape == scores.failed.shape == (0,)
