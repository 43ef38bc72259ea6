"""The simulation against hand arithmetic, an independent recursion, and what it must conserve."""

import heapq
import itertools

import numpy as np
import pytest

from ogrpo_plan.simulation import (
    Lengths,
    Pipeline,
    drawn_service,
    simulate,
    summarize,
    window,
)

MODES = ("wait", "abort", "keep")


def pipeline(**changes):
    defaults = {"steps": 24, "workers": 1, "lead": 1, "v": 1, "sync_seconds": 0.0}
    return Pipeline(**{**defaults, **changes})


def constant_service(seconds, *, calls):
    return lambda step: np.full(calls, seconds)


def rate(wanted, service_fn, train_seconds):
    trace = simulate(wanted, service_fn, lambda step: train_seconds)
    return summarize(trace, lead=wanted.lead, v=wanted.v)


def random_service(calls, seed=0):
    return lambda step: np.random.default_rng([seed, step]).gamma(2.0, 1.0, calls)


# ------------------------------------------------------------------ worked by hand


@pytest.mark.parametrize(("a", "b"), [(3.0, 2.0), (2.0, 5.0)])
def test_one_worker_in_turn_and_overlapped(a, b):
    """Drawing takes a, training b: 1/(a + b) in turn, 1/max(a, b) one batch ahead."""
    in_turn = rate(pipeline(lead=0), constant_service(a, calls=1), b)
    ahead = rate(pipeline(lead=1), constant_service(a, calls=1), b)
    assert in_turn.steps_per_second == pytest.approx(1 / (a + b))
    assert in_turn.trainer_idle == pytest.approx(a / (a + b))
    assert in_turn.workers_idle == pytest.approx(b / (a + b))
    assert ahead.steps_per_second == pytest.approx(1 / max(a, b))
    assert ahead.trainer_idle == pytest.approx(max(0, a - b) / a)
    assert ahead.workers_idle == pytest.approx(max(0, b - a) / b)


def test_calls_far_ahead_keep_all_workers_busy():
    """With nothing to wait for, W workers deliver W calls per call time, across batches."""
    wanted = pipeline(steps=40, lead=6, v=2, workers=4, in_flight="keep")
    got = rate(wanted, constant_service(2.0, calls=6), 0.5)
    assert got.steps_per_second == pytest.approx(4 / 2.0 / 6)
    assert got.workers_idle == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("in_flight", "ended", "version", "lost"),
    [("wait", 12, 0, 0), ("keep", 14, 0, 0), ("abort", 17, 1, 3)],
)
def test_what_a_push_does_to_a_call_under_way(in_flight, ended, version, lost):
    """Push 0-2; calls of 1 s and 10 s from 2; step 0 is trained at 5, when push 1 finds call 1.

    wait: call 1 ends at 12. keep: it stands still for 2 s. abort: 3 s are lost, again from 7.
    """
    wanted = pipeline(steps=2, workers=2, lead=1, sync_seconds=2.0, in_flight=in_flight)
    trace = simulate(wanted, lambda step: np.array([[1.0], [10.0]][step]), lambda step: 2.0)
    assert trace.call_begun.tolist() == [2, 2]
    assert trace.call_ended.tolist() == [3, ended]
    assert trace.call_version.tolist() == [0, version]
    assert np.diff(trace.lost).sum() == lost
    assert np.diff(trace.busy).sum() == 11
    assert trace.trained.tolist() == [5, ended + 2]


# ------------------------------------------------------------------ an independent recursion


def recursion(wanted, service_fn, train_fn):
    """Start and end of everything with ordered pushes, by maxima alone; no clock, no events."""
    free, begin, whole, trained = [0.0] * wanted.workers, 0.0, {}, []
    for step in range(wanted.steps):
        if step % wanted.v == 0:
            free = [max(begin, *free, 0.0) + wanted.sync_seconds] * wanted.workers
        first = 0 if step == 0 else step + wanted.lead
        for batch in range(first, min(step + wanted.lead + 1, wanted.steps)):
            ends = []
            for seconds in service_fn(batch):
                ends.append(max(heapq.heappop(free), begin) + seconds)
                heapq.heappush(free, ends[-1])
            whole[batch] = max(ends)
        begin = max(begin, whole[step]) + train_fn(step)
        trained.append(begin)
    return trained


@pytest.mark.parametrize(
    ("workers", "lead", "v", "calls"), [*itertools.product((1, 2, 5), (0, 1, 3), (1, 4), (1, 4))]
)
def test_the_simulation_is_the_recursion(workers, lead, v, calls):
    wanted = pipeline(workers=workers, lead=lead, v=v, sync_seconds=0.7)
    service, training = random_service(calls), lambda step: 1.0 + step % 3
    trace = simulate(wanted, service, training)
    np.testing.assert_allclose(trace.trained, recursion(wanted, service, training), rtol=1e-12)


# ------------------------------------------------------------------ what must hold in every run


RUNS = [
    pipeline(workers=workers, lead=lead, v=v, sync_seconds=0.5, in_flight=mode)
    for mode, workers, lead, v in itertools.product(MODES, (1, 3), (0, 2), (1, 3))
]


@pytest.mark.parametrize("wanted", RUNS, ids=lambda p: f"{p.in_flight}-{p.workers}-{p.lead}-{p.v}")
def test_nothing_is_lost_and_nothing_runs_further_ahead_than_allowed(wanted):
    calls, service = 4, random_service(4)
    trace = simulate(wanted, service, lambda step: 1.5)
    drawn = np.concatenate([service(step) for step in range(wanted.steps)])
    assert np.bincount(trace.call_step).tolist() == [calls] * wanted.steps
    assert np.diff(trace.busy).sum() == pytest.approx(drawn.sum())
    for step in range(wanted.steps):
        own = trace.call_step == step
        assert trace.taken[step] == max(trace.requested[step], trace.call_ended[own].max())
        assert trace.call_begun[own].min() >= trace.requested[max(step - wanted.lead, 0)]
    for now in np.linspace(0, trace.trained[-1], 50):  # produced = consumed + waiting
        waiting = np.sum(trace.call_ended <= now) - calls * np.sum(trace.taken <= now)
        assert 0 <= waiting <= calls * (wanted.lead + 1)


@pytest.mark.parametrize("wanted", RUNS, ids=lambda p: f"{p.in_flight}-{p.workers}-{p.lead}-{p.v}")
def test_no_more_workers_are_at_it_than_there_are(wanted):
    trace = simulate(wanted, random_service(4), lambda step: 1.5)
    spans = np.concatenate([trace.busy, trace.lost])
    moments = spans[:, 0]
    inside = (spans[:, 0] <= moments[:, None]) & (moments[:, None] < spans[:, 1])
    assert inside.sum(axis=1).max() <= wanted.workers
    for begun, ended in trace.pushes:  # nobody works during a push
        assert np.minimum(spans[:, 1], ended).clip(begun).sum() == pytest.approx(
            np.minimum(spans[:, 0], ended).clip(begun).sum()
        )


@pytest.mark.parametrize("wanted", RUNS, ids=lambda p: f"{p.in_flight}-{p.workers}-{p.lead}-{p.v}")
def test_staleness_is_what_the_order_of_the_queue_says(wanted):
    """Step t is asked for at step t - lead, after the push of the last multiple of v until then."""
    trace = simulate(wanted, random_service(4), lambda step: 1.5)
    asked = np.maximum(trace.call_step - wanted.lead, 0)
    expected = trace.call_step - wanted.v * (asked // wanted.v)
    if wanted.in_flight == "abort":  # begun again from newer weights, never from older ones
        assert (trace.staleness <= expected).all()
    else:
        assert trace.staleness.tolist() == expected.tolist()
        assert trace.staleness.max() == wanted.lead + wanted.v - 1
    assert trace.staleness.min() >= 0


# ------------------------------------------------------------------ service times, windows


def test_a_call_lasts_as_long_as_its_longest_completion():
    alike = Lengths(mean=50, spread=0.0, longest=200)
    service = drawn_service(
        alike, calls=3, groups_per_call=2, group_size=4, seconds_per_token=0.1, overhead=0.2, seed=0
    )
    np.testing.assert_allclose(service(0), [5.2] * 3)
    spread = Lengths(mean=50, spread=1.0, longest=200)
    rng = np.random.default_rng(0)
    drawn = spread.draw(rng, (20_000,))
    assert drawn.max() == 200
    assert drawn.min() >= 1
    # Median of a log-normal with mean m and spread c: m / sqrt(1 + c^2), whatever is cut above it.
    share = (drawn < 50 / np.sqrt(2)).mean()
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(20_000)


def test_the_window_holds_whole_periods():
    assert window(24, 0, 1) == (1, 24)
    assert window(24, 2, 5) == (5, 20)
    assert window(24, 5, 5) == (10, 15)
    with pytest.raises(ValueError, match=r"12 steps hold no whole period of v = 8.*at least 18"):
        window(12, 2, 8)
