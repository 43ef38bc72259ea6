"""Coroutines side by side in one process, and functions that run loops of their own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.rewards import functions
from tests.rewards.asking import pool, request
from tests.rewards.functions import BAD


@pytest.mark.parametrize("concurrency", [1, 3])
def test_as_many_coroutines_are_under_way_as_the_option_says(concurrency):
    with (
        pool(functions.counts_company, concurrency=concurrency) as p,
        ThreadPoolExecutor(9) as threads,
    ):
        found = list(threads.map(p.score, [request("a", seconds=0.05)] * 9))
        assert p.metrics()["reward/processes"] == 1
    assert max(scores.rewards[0] for scores in found) == concurrency


def test_a_coroutine_that_waits_too_long_is_cancelled_and_its_process_stays():
    with pool(functions.judge, seconds=0.6) as p, ThreadPoolExecutor(3) as threads:
        found = list(threads.map(p.score, map(request, ["abc", "wait", BAD])))
        assert p.metrics()["reward/processes"] == 1
    assert [scores.rewards.tolist() for scores in found] == [[3.0], [0.0], [0.0]]
    assert [f.kind for scores in found for f in scores.failures] == ["timeout", "raised"]


def test_a_coroutine_that_blocks_its_process_takes_no_other_along():
    with pool(functions.judge, seconds=0.4) as p, ThreadPoolExecutor(3) as threads:
        found = list(threads.map(p.score, [request(t) for t in ("block", "abcd", "ab")]))
    assert [scores.failed.tolist() for scores in found] == [[True], [False], [False]]
    assert [f.kind for scores in found for f in scores.failures] == ["timeout"]
    assert found[1].rewards.tolist() == [4.0]


def test_functions_that_wait_by_themselves_or_set_alarms_work():
    with pool(functions.awaits_by_itself, functions.gives_a_coroutine, functions.has_alarms) as p:
        scores = p.score(request("ab", "c"))
    assert scores.failures == ()
    assert scores.rewards.tolist() == [5.0, 3.0]
