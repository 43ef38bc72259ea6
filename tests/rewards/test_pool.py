"""Whole requests through a pool: sums, failures that stay alone, threads, processes that end."""

import asyncio
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from ogrpo.rewards.reward import Reward
from ogrpo.rewards.scores import KINDS
from tests.rewards import functions
from tests.rewards.functions import BAD
from tests.rewards.pools import pool, request


def score_all(p, requests):
    """Returns the scores of requests that as many threads make at once."""
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(p.score, requests))


def test_rewards_are_summed_by_weight():
    rewards = [Reward("length", functions.length, 0.5), Reward("equal", functions.equal, 2.0)]
    with pool(*rewards) as p:
        scores = p.score(request("4", "five", answer="4"))
        empty = p.score(request(answer="4"))
    np.testing.assert_array_equal(scores.rewards, np.float32([2.5, 2.0]))
    np.testing.assert_array_equal(scores.values["length"], np.float32([1, 4]))
    np.testing.assert_array_equal(scores.values["equal"], np.float32([1, 0]))
    assert scores.rewards.dtype == np.float32
    assert not scores.failed.any()
    assert scores.failures == ()
    with pool(Reward("style", functions.raises, 0.0), Reward("main", functions.raises)) as p:
        assert [each.reward for each in p.score(request(BAD)).failures] == ["main", "style"]
    assert empty.rewards.shape == empty.failed.shape == (0,)


def test_a_function_gets_what_it_names_and_one_with_columns_everything():
    def everything(**columns):
        columns.pop("completions")
        return [float(columns == {
            "prompts": ["2 + 2?"] * 2, "completion_ids": [[0], [1]], "finish_reasons": ["stop"] * 2,
            "answer": ["4"] * 2, "level": [3] * 2,
        })] * 2  # fmt: skip

    def names(completion_ids, level, absent=7):
        pairs = zip(completion_ids, level, strict=True)
        return [float(ids[0] + 10 * n + absent) for ids, n in pairs]

    class Scale:
        by = 0.5

        def __call__(self, completions, **columns):
            return [self.by * len(text) for text in completions]

    def power(completions, exponent):
        return [len(text) ** exponent for text in completions]

    with pool(everything, names, Scale(), partial(power, exponent=2)) as p:
        scores = p.score(request("a", "bbb", answer="4", level=3))
    assert {name: values.tolist() for name, values in scores.values.items()} == {
        "everything": [1.0, 1.0],
        "names": [37.0, 38.0],
        "Scale": [0.5, 1.5],
        "power": [1.0, 9.0],
    }


def test_an_argument_that_no_column_gives_is_named_with_its_function_and_line():
    def logs(completions, log_metric):
        return [0.0] * len(completions)

    with pool(functions.equal) as p:
        message = r"reward 'equal' \(.*functions\.py:\d+\) takes 'answer', which no column of the"
        message += r" task gives: there are anwser, level\. Did you mean 'anwser'\?"
        with pytest.raises(ValueError, match=message):
            p.score(request("4", anwser="4", level=1))
        with pytest.raises(ValueError, match="there is none"):
            p.rewards[0].check_columns([])
        p.rewards[0].check_columns(["answer"])
    with pytest.raises(ValueError, match=r"TRL's trainer passes it .* log_metric=None"):
        Reward("logs", logs).check_columns([])


RAISED = r"raised KeyError: 'no such answer'\n[\s\S]*functions\.py[\s\S]* in _worth"
FAILING = {
    "raised": (functions.raises, RAISED),
    "timeout": (functions.overruns, r"did not end within 0\.7 s of wall time"),
    "memory": (functions.takes_memory, r"ran out of its 2 GiB of memory: raised MemoryError"),
    "died": (functions.dies, r"was not done: its process ended: signal SIGSEGV"),
    "not finite": (functions.giving(float("nan")), r"gave nan for completion 2"),
    "not a number": (functions.giving("1.0"), r"gave '1\.0' for completion 2"),
}


@pytest.mark.parametrize("kind", FAILING)
def test_one_bad_completion_fails_alone_and_says_why(kind):
    assert {*FAILING, "wrong count", "none"} == {*KINDS}
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
    for counted in ("reward", f"reward/{name}"):
        by_kind = {k: metrics[f"{counted}/failed/{k.replace(' ', '_')}"] for k in KINDS}
        assert by_kind == {**dict.fromkeys(KINDS, 0), kind: 1}
        assert metrics[f"{counted}/failed"] == 1


def test_a_wrong_number_of_values_fails_all_and_is_not_hidden_by_repeats():
    one_for_all = Reward("one", lambda completions: [1.0])
    with pool(one_for_all, Reward("number", lambda completions: 1.0)) as p:
        scores = p.score(request("a", "b", "c"))
        assert p.metrics()["reward/calls"] == 2
    assert scores.failed.all()
    assert {f.kind for f in scores.failures} == {"wrong count"}
    one, *_, other = [f.message for f in scores.failures]
    assert "returned 1 values for 3 completions" in one
    assert "returned 1.0, not a list with a number for each completion" in other


def test_none_is_not_judged_and_left_out_of_the_sum():
    rewards = [
        Reward("here", functions.giving(None), 2.0),
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
    message = r"\(.*functions\.py:\d+\) gave None for completion 1, which no reward judged"
    assert re.search(message, alone.failures[0].message)


N, FEW, PROCESSES = 256, 8, 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "kind", "first"),
    [("hangs", "timeout", 120), ("takes_memory", "memory", 0), ("dies", "died", N - FEW)],
)
def test_eight_of_256_fail_alone_wherever_they_stand(function, kind, first):
    """Neighbours, as the completions of one hard prompt are."""
    function = getattr(functions, function)
    texts = [BAD if first <= n < first + FEW else str(n) for n in range(N)]
    with pool(function, processes=PROCESSES, seconds=1.0) as p:
        scores = p.score(request(*texts))
        metrics = p.metrics()
    assert [n for n in range(N) if scores.failed[n]] == [*range(first, first + FEW)]
    assert {failure.kind for failure in scores.failures} == {kind}
    assert metrics["reward/failed"] == metrics[f"reward/failed/{kind}"] == FEW
    # The bound on the time: the call itself and each bad one wait once for their bound, the latter
    # in all processes at once; each costs one start of a process.
    assert metrics["reward/calls"] == 1 + N
    assert metrics["reward/processes"] <= PROCESSES + 1 + FEW


@pytest.mark.parametrize(
    ("function", "kind"), [("hangs", "timeout"), ("dies", "died"), ("is_killed", "died")]
)
def test_where_all_of_256_fail_few_are_judged_and_all_are_counted(function, kind):
    with pool(getattr(functions, function), processes=2, seconds=0.3) as p:
        scores = p.score(request(*[BAD] * N))
        metrics = p.metrics()
    assert scores.failed.all()
    assert metrics["reward/failed"] == metrics[f"reward/failed/{kind}"] == len(scores.failures) == N
    # The call, 4 that fail and what the other process judged meanwhile; what was killed from
    # outside is first asked once more, all that were asked before the first failed alone.
    assert metrics["reward/calls"] <= (1 + 4 + 1 if function != "is_killed" else 2 + N + 4 + 1)
    assert "was not asked for this completion" in scores.failures[-1].message


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_process_that_somebody_kills_or_stops_costs_no_completion_its_reward(tmp_path, number):
    """A stopped one is noticed by the clock, as it takes no time of its own."""
    with pool(functions.hangs_once, processes=1, seconds=1.5) as p, ThreadPoolExecutor(1) as thread:
        future = thread.submit(p.score, request("abc", folder=str(tmp_path)))
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        os.kill(int((tmp_path / "pid").read_text()), number)
        scores = future.result(60.0)
        metrics = p.metrics()
    assert scores.rewards.tolist() == [3.0]
    assert scores.failures == ()
    assert metrics["reward/processes"] == 2
    assert metrics["reward/failed"] == 0


def test_slow_rewards_and_groups_of_several_threads_are_judged_at_the_same_time(tmp_path):
    four = ["one", "two", "three", "four"]
    rewards = [Reward(me, partial(functions.meets, everyone=four, me=me)) for me in four]
    with pool(*rewards, processes=4, seconds=60.0) as p:
        assert p.score(request("a", folder=str(tmp_path))).rewards.tolist() == [4.0]
    with pool(partial(functions.meets, everyone=["a", "b"]), seconds=60.0) as p:
        scores = score_all(p, [request(me, folder=str(tmp_path)) for me in "ab"])
        assert p.metrics()["reward/completions"] == 2
    assert [each.rewards.tolist() for each in scores] == [[1.0], [1.0]]


def test_waiting_for_a_process_is_not_charged_to_the_call():
    def slow(completions):
        import time

        time.sleep(0.2)
        return [1.0]

    with pool(slow, processes=1, seconds=0.7) as p:
        scores = score_all(p, [request("a")] * 5)
        metrics = p.metrics()
    assert [each.rewards.tolist() for each in scores] == [[1.0]] * 5
    assert metrics["reward/seconds"] >= 1.0
    assert metrics["reward/busy_seconds"] >= 1.0
    assert 0 < metrics["reward/completions_per_second"] <= 5 / 1.0


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


def test_a_bounded_reward_is_called_in_the_callers_thread():
    lock, threads = threading.Lock(), []

    def here(completions, **columns):
        with lock:  # it cannot be pickled
            threads.append(threading.current_thread())
        return functions.raises(completions)

    here.bounded = True
    with pool(here) as p:
        scores = p.score(request("a", BAD))
        metrics = p.metrics()
    assert scores.failed.tolist() == [False, True]
    assert scores.failures[0].kind == "raised"
    assert {*threads} == {threading.current_thread()}
    assert metrics["reward/processes"] == 0
    assert metrics["reward/here/calls"] == 3
    assert metrics["reward/repeated"] == 1


def test_a_completion_without_loss_is_counted_once_and_one_with_loss_is_not():
    def raises(completions):
        return functions.raises(completions)

    def refuses(completions):
        return [float("nan")] * len(completions)

    raises.bounded = refuses.bounded = True
    rewards = [Reward("one", raises), Reward("two", raises), Reward("shown", refuses, 0.0)]
    with pool(*rewards) as p:
        assert p.score(request("a", BAD)).failed.tolist() == [False, True]
        metrics = p.metrics()
    counted = {name: metrics[f"reward/{name}failed"] for name in ("", "one/", "two/", "shown/")}
    assert counted == {"": 1, "one/": 1, "two/": 1, "shown/": 2}
    assert metrics["reward/failed/raised"] == 1
    assert metrics["reward/failed/not_finite"] == 0


def test_what_cannot_be_pickled_is_named():
    lock = threading.Lock()

    def locked(completions):
        with lock:
            return [0.0]

    message = r"reward 'locked' \(.*test_pool\.py:\d+\) cannot be sent .*lock"
    with pytest.raises(ValueError, match=message):
        pool(locked)
    refused = pytest.raises(ValueError, match=r"'mutex' cannot be sent to a process: .*lock")
    with pool(functions.length) as p, refused:
        p.score(request("a", mutex=lock))


def test_a_bound_that_bounds_nothing_is_refused():
    with pytest.raises(ValueError, match="processes is 0; give a whole number of at least 1"):
        pool(functions.length, processes=0)
    with pytest.raises(ValueError, match="seconds is inf; give a finite number > 0"):
        pool(functions.length, seconds=float("inf"))


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_coroutines_are_under_way_as_the_option_says(concurrency):
    with pool(functions.counts_company, concurrency=concurrency) as p:
        scores = score_all(p, [request("a", seconds=0.05)] * 9)
        assert p.metrics()["reward/processes"] == 1
    assert max(each.rewards[0] for each in scores) == concurrency


def test_a_coroutine_that_waits_too_long_is_cancelled_and_its_process_stays():
    with pool(functions.judge, seconds=0.6) as p:
        scores = score_all(p, map(request, ["abc", "wait", BAD]))
        assert p.metrics()["reward/processes"] == 1
    assert [each.rewards.tolist() for each in scores] == [[3.0], [0.0], [0.0]]
    assert [f.kind for each in scores for f in each.failures] == ["timeout", "raised"]


def test_a_coroutine_that_blocks_its_process_takes_no_other_along():
    with pool(functions.judge, seconds=0.4) as p:
        scores = score_all(p, map(request, ("block", "abcd", "ab")))
    assert [each.failed.tolist() for each in scores] == [[True], [False], [False]]
    assert [f.kind for each in scores for f in each.failures] == ["timeout"]
    assert scores[1].rewards.tolist() == [4.0]


def test_coroutines_whose_process_another_one_blocked_are_no_reason_to_ask_no_more():
    with pool(functions.judge, seconds=0.4, concurrency=8) as p:  # 7 of the 8 are not to blame
        scores = p.score(request(BAD, "block", *["abcd"] * 20))
    assert scores.failed.tolist() == [True, True] + [False] * 20
    assert [failure.kind for failure in scores.failures] == ["raised", "timeout"]


def test_functions_that_wait_by_themselves_or_set_alarms_work():
    waits = Reward("waits", lambda completions: asyncio.run(functions.judge(completions)))
    gives_a_coroutine = Reward("gives", lambda completions: functions.judge(completions))
    with pool(waits, gives_a_coroutine, functions.has_alarms) as p:
        scores = p.score(request("ab", "c"))
    assert scores.failures == ()
    assert scores.rewards.tolist() == [5.0, 3.0]
