"""A batch is judged whatever some of its completions, or somebody outside, do to the processes."""

import os
import signal
import threading
import time

import pytest

from tests.rewards import functions
from tests.rewards.asking import pool, request
from tests.rewards.functions import BAD

N, FAILING, PROCESSES = 256, 8, 4


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 120, N - FAILING])
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (functions.hangs, "timeout"),
        (functions.takes_memory, "memory"),
        (functions.dies, "died"),
    ],
)
def test_eight_of_256_fail_alone_wherever_they_stand(function, kind, first):
    """Neighbours, as the completions of one hard prompt are."""
    texts = [BAD if first <= n < first + FAILING else str(n) for n in range(N)]
    with pool(function, processes=PROCESSES, seconds=1.0) as p:
        scores = p.score(request(*texts))
        metrics = p.metrics()
    assert [n for n in range(N) if scores.failed[n]] == [*range(first, first + FAILING)]
    assert {failure.kind for failure in scores.failures} == {kind}
    assert metrics["reward/failed"] == metrics[f"reward/failed/{kind}"] == FAILING
    # The bound on the time: the call itself and each bad one wait once for their bound, the latter
    # in all processes at once; each costs one start of a process.
    assert metrics["reward/calls"] == 1 + N
    assert metrics["reward/processes"] <= PROCESSES + 1 + FAILING


@pytest.mark.parametrize("function", [functions.hangs, functions.dies])
def test_where_all_of_256_fail_few_are_asked_and_all_are_counted(function):
    with pool(function, processes=2, seconds=0.3) as p:
        scores = p.score(request(*[BAD] * N))
        metrics = p.metrics()
    assert scores.failed.all()
    assert metrics["reward/failed"] == len(scores.failures) == N
    # The call, 4 that fail and what the other process was asked meanwhile.
    assert metrics["reward/calls"] <= 1 + 4 + 1
    assert "was not asked for this completion" in scores.failures[-1].message


def pid_of(folder):
    while not (folder / "pid").exists():
        time.sleep(0.01)
    return int((folder / "pid").read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_a_process_that_somebody_kills_or_stops_costs_no_completion_its_reward(tmp_path, number):
    """A stopped one is found by the clock, as it takes no time of its own."""
    found = []
    with pool(functions.hangs_once, processes=1, seconds=2.0) as p:
        asked = request("abc", folder=str(tmp_path))
        judge = threading.Thread(target=lambda: found.append(p.score(asked)))
        judge.start()
        os.kill(pid_of(tmp_path), number)
        judge.join(60.0)
        metrics = p.metrics()
    (scores,) = found
    assert scores.rewards.tolist() == [3.0]
    assert scores.failures == ()
    assert metrics["reward/processes"] == 2
    assert metrics["reward/failed"] == 0


def test_one_that_is_killed_each_time_is_counted(tmp_path):
    """By the kernel, say, since it takes the machine's memory."""

    def dies_again(completions, **columns):
        os.kill(os.getpid(), signal.SIGKILL)

    with pool(dies_again, processes=1) as p:
        scores = p.score(request("abc"))
        metrics = p.metrics()
    assert [failure.kind for failure in scores.failures] == ["died"]
    assert "signal SIGKILL" in scores.failures[0].message
    assert metrics["reward/calls"] == 2
