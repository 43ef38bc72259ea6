"""The collector's threads against an engine that is slow, fails and answers out of order."""

import logging
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ogrpo.rollout.collection import CollectionError
from tests.rollout.collection.scripted import (
    LONG,
    SAMPLING,
    Scripted,
    collector,
    equal_rewards,
    group,
    origins,
    request_at,
    run,
    turn,
)


@pytest.fixture(autouse=True)
def _leaves_no_thread_behind():
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("collector-"):
            thread.join(LONG)
            assert not thread.is_alive()


def sleepy(seed):
    rng = random.Random(seed)
    return lambda *_: time.sleep(rng.random() / 500)


def wait(event):
    assert event.wait(LONG), "this should have happened by now"


@pytest.mark.parametrize("v", [1, 3])
def test_without_a_lead_the_engine_sees_the_calls_of_a_loop_that_calls_it_itself(v):
    engine, direct = Scripted(), Scripted()
    batches = run(engine, 5, v=v)
    expected = []
    for step in range(5):
        if step % v == 0:
            direct.publish(f"weights {step}", step)
        request = request_at(step)
        expected.append(direct.generate(request.prompts, SAMPLING, request.seed))
    assert engine.log == direct.log
    assert [taken.groups for taken in batches] == expected


def test_what_is_drawn_depends_neither_on_timing_nor_on_the_number_of_workers():
    limits = {"lead": 2, "prompts_per_call": 1}
    logs, batches = [], []
    for workers, seed in ((1, 0), (1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (3, 2)):
        engine = Scripted(sleepy(seed))
        taken = run(engine, v=2, workers=workers, pause=sleepy(seed + 10), **limits)
        batches.append([origins(t) for t in taken])
        if workers == 1:  # the very calls; pushes behind the last draw may be cut off by the end
            last = max(n for n, call in enumerate(engine.log) if call[0] == "generate")
            logs.append(engine.log[: last + 1])
    assert len({seed for batch in batches[0] for _, _, seed in batch}) == 24
    assert all(batch == batches[0] for batch in batches)
    assert all(log == logs[0] for log in logs)


def short(engine, groups):
    """Lacks a completion of each group."""
    return [replace(g, completions=g.completions[1:]) for g in groups]


def short_twice(engine, groups):
    """Lacks them where its prompts are drawn for the first and the second time."""
    drawn = engine.calls[tuple(int(g.prompt_ids[0]) for g in groups)]
    return short(engine, groups) if drawn <= 2 else groups


def test_refused_groups_are_drawn_again_alike_by_any_number_of_workers_and_are_counted():
    batches = []
    for workers in (1, 3):
        limits = {"lead": 2, "workers": workers, "prompts_per_call": 2}
        with collector(Scripted(answer=short_twice), 4, **limits) as source:
            batches.append([origins(turn(source, step, v=2)) for step in range(4)])
            metrics = source.metrics()
        assert metrics["collect/retried"] == metrics["rollout/refused/count"] == 2 * 4 * 3
    assert batches[0] == batches[1]


LASTING = {
    r"3 of 3 groups.*after 3 attempts.*\(count\)": (Scripted(answer=short), None, type(None), 3),
    "a mistake": (Scripted(lambda *_: {}["a mistake"]), None, KeyError, 1),
    "place 0 answers another prompt": (Scripted(answer=lambda _, x: x[::-1]), None, ValueError, 1),
    "2 groups for 3 prompts": (Scripted(answer=lambda _, x: x[1:]), None, ValueError, 1),
    "step 0: division by zero": (Scripted(), lambda *_: 1 / 0, ZeroDivisionError, 1),
    r"step 0: groups of \[2, 2, 2\] .* \[\] rewards": (Scripted(), lambda *_: [], ValueError, 1),
}


@pytest.mark.parametrize("message", LASTING)
def test_what_does_not_pass_reaches_the_trainer_with_its_cause(message):
    engine, reward_fn, cause, calls = LASTING[message]
    with collector(engine, attempts=3, reward_fn=reward_fn or equal_rewards) as source:
        with pytest.raises(CollectionError, match=message) as caught:
            turn(source, 0)
        assert isinstance(caught.value.__cause__, cause)
        with pytest.raises(CollectionError, match=message):
            source.take(0)
    assert engine.calls == {(0, 1, 2): calls}


def test_a_push_that_fails_reaches_the_trainer_at_the_batch_that_needs_it():
    class Refusing(Scripted):
        def publish(self, params, version):
            if version == 1:
                raise ValueError("weights are not finite")
            super().publish(params, version)

    with collector(Refusing(), lead=1) as source:
        for step in range(2):  # the batch of step 1 was asked for before the push
            assert origins(turn(source, step))[0][1] == 0
        with pytest.raises(CollectionError, match=r"version 1 was not published.*not finite"):
            turn(source, 2)


@pytest.mark.parametrize(("at_once", "calls"), [(None, 2), (1, 4)])
def test_a_group_short_of_completions_is_drawn_again_alone_by_another_seed(at_once, calls):
    def answer(engine, groups):
        prompts = [int(g.prompt_ids[0]) for g in groups]
        if 1 not in prompts or shortened:
            return groups
        shortened.append(prompts)
        return [group(g.prompt_ids, 0, size=1 if g.prompt_ids[0] == 1 else 2) for g in groups]

    engine, shortened = Scripted(answer=answer), []
    with collector(engine, prompts_per_call=at_once) as source:
        turn(source, 0)
        metrics = source.metrics()
    assert metrics["collect/retried"] == metrics["rollout/refused/count"] == 1
    drawn = [call[1:3] for call in engine.log if call[0] == "generate"]
    assert len(drawn) == calls
    (_, first), (prompts, second) = [each for each in drawn if 1 in each[0]]
    assert prompts == (1,)
    assert first != second


def blocked():
    """A call that lasts until a test lets it go, and what tells of both."""
    begun, released = threading.Event(), threading.Event()

    def last(*_):
        begun.set()
        wait(released)

    return last, begun, released


def test_closing_while_the_trainer_waits_wakes_it():
    last, begun, released = blocked()
    source = collector(Scripted(last), grace=0.0)
    with ThreadPoolExecutor() as pool:
        taken = pool.submit(turn, source, 0)
        wait(begun)
        source.close()
        with pytest.raises(RuntimeError, match="closed"):
            taken.result(LONG)
    source.close()
    released.set()
    for use in (lambda: source.publish("more", 9), lambda: source.take(0)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


@pytest.mark.parametrize("what", ["call", "reward"])
def test_what_never_ends_does_not_keep_the_run_from_ending(caplog, what):
    last, begun, released = blocked()
    engine, reward_fn = Scripted(last), equal_rewards
    if what == "reward":
        engine, reward_fn = Scripted(), lambda *batch: last() or equal_rewards(*batch)
    running = collector(engine, grace=0.0, reward_fn=reward_fn)
    with caplog.at_level(logging.WARNING), running as source:
        source.publish("weights", 0)
        source.request(0)
        wait(begun)
    assert "1 calls of engine or rewards did not end in 0 s" in caplog.text
    released.set()


def test_nothing_is_taken_out_of_turn_or_before_there_are_weights():
    with collector(Scripted()) as source:
        with pytest.raises(RuntimeError, match=r"before publish\(\): there are no weights yet"):
            source.take(0)
        source.publish("weights", 0)
        with pytest.raises(ValueError, match=r"take\(1\), but the next step is 0"):
            source.take(1)


def test_groups_are_judged_while_others_are_sampled():
    judging, sampling = threading.Event(), threading.Event()

    def script(engine, prompts, seed):
        if prompts[0][0] != 0:  # not before the first call's groups are with their judge
            wait(judging)
            sampling.set()

    def reward_fn(request, places, groups):
        judging.set()
        wait(sampling)
        return equal_rewards(request, places, groups)

    with collector(Scripted(script), reward_fn=reward_fn, prompts_per_call=1) as source:
        assert origins(turn(source, 0)) == origins(run(Scripted(), 1, prompts_per_call=1)[0])


def test_calls_that_were_requested_before_a_push_come_before_whoever_takes_the_engine():
    engine = Scripted(lambda *_: time.sleep(0.02))
    with collector(engine, lead=3) as source:
        turn(source, 0)
        source.publish("weights 1", 1)
        with source.alone() as inner:
            assert inner.version == 1
        assert [origins(source.take(step))[0][1] for step in (1, 2, 3)] == [0, 0, 0]


def test_the_engine_is_the_callers_alone_while_it_asks_for_it():
    engine = Scripted()
    with collector(engine, lead=3) as source:
        turn(source, 0)
        with source.alone() as inner:
            assert inner is engine
            before = len(engine.log)
            source.publish("weights 1", 1)
            source.request(4)
            time.sleep(0.05)
            assert len(engine.log) == before
        assert origins(source.take(1))[0][1] == 0  # asked for ahead, before the newer weights
