"""The collector's threads against an engine that is slow, fails and answers out of order."""

import logging
import random
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from ogrpo.rollout.collection import CollectionError, Rewarded
from tests.rollout.collection.scripted import (
    LONG,
    SAMPLING,
    Flaky,
    Scripted,
    collector,
    equal_rewards,
    group,
    request_at,
    run,
    told,
    turn,
)


def alive():
    return [t for t in threading.enumerate() if t.name.startswith("collector-")]


@pytest.fixture(autouse=True)
def _leaves_no_thread_behind():
    yield
    for thread in alive():
        thread.join(LONG)
    assert not alive()


def sleepy(seed):
    rng = random.Random(seed)
    return lambda *_: time.sleep(rng.random() / 500)


def wait(event):
    assert event.wait(LONG), "this should have happened by now"


# --- what the engine is asked ----------------------------------------------------------------


@pytest.mark.parametrize("v", [1, 3])
def test_without_a_lead_the_engine_sees_the_calls_of_a_loop_that_calls_it_itself(v):
    engine, direct = Scripted(), Scripted()
    batches = run(engine, 5, v=v)
    expected = []
    for step in range(5):
        if step % v == 0:
            direct.publish(f"weights {step}", step)
        asked = request_at(step)
        expected.append(direct.generate(asked.prompts, SAMPLING, asked.seed))
    assert engine.log == direct.log
    for taken, groups in zip(batches, expected, strict=True):
        assert [g.completions[0].token_ids.tolist() for g in taken.groups] == [
            g.completions[0].token_ids.tolist() for g in groups
        ]


def test_the_next_batch_is_drawn_while_the_trainer_has_the_first():
    drawing = threading.Event()
    engine = Scripted(lambda engine, prompts, seed: drawing.set() if seed == 1001 else None)
    with collector(engine, lead=1) as chosen:
        turn(chosen, 0)
        wait(drawing)
        assert told(turn(chosen, 1)) == [(10, 0, 1001), (11, 0, 1001), (12, 0, 1001)]


@pytest.mark.parametrize("lead", [0, 1, 3])
def test_nothing_is_asked_for_beyond_the_lead_or_the_end_of_the_run(lead):
    asked = []

    def ask(step):
        asked.append(step)
        return request_at(step)

    with collector(Scripted(), 6, ask=ask, lead=lead) as chosen:
        for step in range(6):
            turn(chosen, step)
            assert asked == list(range(min(step + lead, 5) + 1))


def drawn_calls(engine):
    """The log up to the last `generate`: pushes behind it may be cut off by the end of the run."""
    last = max(n for n, call in enumerate(engine.log) if call[0] == "generate")
    return engine.log[: last + 1]


def test_with_one_worker_what_the_engine_sees_does_not_depend_on_timing():
    logs, batches = [], []
    for seed in range(4):
        engine = Scripted(sleepy(seed))
        taken = run(engine, v=2, lead=2, max_staleness=2, pause=sleepy(seed + 10))
        logs.append(drawn_calls(engine))
        batches.append([told(t) for t in taken])
    assert len(logs[0]) > 8
    assert all(log == logs[0] for log in logs)
    assert all(batch == batches[0] for batch in batches)


def test_with_several_workers_the_groups_do_not_depend_on_timing_or_on_their_number():
    def batches(workers, seed):
        limits = {"lead": 2, "workers": workers, "prompts_per_call": 1}
        return [told(t) for t in run(Scripted(sleepy(seed)), v=2, **limits)]

    alone = batches(1, 0)
    assert len({seed for batch in alone for _, _, seed in batch}) == 24
    assert all(batches(workers, seed) == alone for workers in (2, 3) for seed in (1, 2))


def test_weights_need_not_wait_for_calls_under_way_when_unordered():
    # Only a push that overtakes the call of step 1 lets it end.
    engine = Scripted(lambda engine, prompts, seed: seed == 1001 and wait(engine.event(1)))
    batches = run(engine, 3, lead=1, workers=2, ordered=False, max_staleness=1)
    assert [{version for _, version, _ in told(t)} for t in batches] == [{0}, {0}, {1}]


# --- whole batches ---------------------------------------------------------------------------


def test_slow_prompts_are_handed_out_as_often_as_fast_ones():
    gates = {step: threading.Event() for step in range(6)}

    def script(engine, prompts, seed):
        step, place = divmod(int(prompts[0][0]), 10)
        if place == 0:  # the long prompt of each batch ends after all others of it
            wait(gates[step])
        elif engine.calls[(10 * step + 1,)] and engine.calls[(10 * step + 2,)]:
            gates[step].set()

    limits = {"workers": 2, "prompts_per_call": 1, "lead": 1}
    batches = run(Scripted(script), 6, **limits)
    handed = [problem for t in batches for problem, _, _ in told(t)]
    assert handed == [problem for step in range(6) for problem in request_at(step).problems]
    assert [int(g.prompt_ids[0]) for t in batches for g in t.groups] == handed


# --- failures --------------------------------------------------------------------------------


def flaky(every):
    """Each call fails the first `every` times."""

    def script(engine, prompts, seed):
        if engine.calls[tuple(int(p[0]) for p in prompts)] <= every:
            raise Flaky("the server is gone")

    return script


@pytest.mark.parametrize("workers", [1, 3])
def test_failures_that_pass_change_no_group_and_are_counted(workers):
    limits = {"lead": 2, "workers": workers, "prompts_per_call": 2}
    with collector(Scripted(flaky(2)), 4, **limits) as chosen:
        batches = [told(turn(chosen, step, v=2)) for step in range(4)]
        assert chosen.metrics()["collect/retried/failed"] == 2 * 4 * 3
    assert batches == [told(t) for t in run(Scripted(), 4, v=2, **limits)]


def raising(error):
    def script(engine, prompts, seed):
        raise error

    return Scripted(script)


LASTING = {
    r"3 of 3 groups.*after 3 attempts": (Scripted(flaky(99)), equal_rewards, Flaky, 3),
    "a mistake": (raising(KeyError("a mistake")), equal_rewards, KeyError, 1),
    "place 0 answers another prompt": (
        Scripted(answer=lambda _, groups: groups[::-1]), equal_rewards, ValueError, 1,
    ),
    "2 groups for 3 prompts": (
        Scripted(answer=lambda _, groups: groups[1:]), equal_rewards, ValueError, 1,
    ),
    "step 0: division by zero": (Scripted(), lambda *_: 1 / 0, ZeroDivisionError, 1),
    r"step 0: groups of \[2, 2, 2\] .* \[\] rewards": (Scripted(), lambda *_: [], ValueError, 1),
}  # fmt: skip


@pytest.mark.parametrize("message", LASTING)
def test_what_does_not_pass_reaches_the_trainer_with_its_cause(message):
    engine, reward_fn, cause, calls = LASTING[message]
    with collector(engine, attempts=3, reward_fn=reward_fn) as chosen:
        with pytest.raises(CollectionError, match=message) as caught:
            turn(chosen, 0)
        assert isinstance(caught.value.__cause__, cause)
        with pytest.raises(CollectionError, match=message):
            chosen.take(0)
    assert engine.calls == {(0, 1, 2): calls}


def test_batches_drawn_before_a_failure_are_still_handed_out():
    def script(engine, prompts, seed):
        if seed == 1002:
            raise ValueError("a prompt that does not fit")

    with collector(Scripted(script), lead=2) as chosen:
        for step in range(2):
            turn(chosen, step)
        with pytest.raises(CollectionError, match="does not fit") as caught:
            turn(chosen, 2)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_push_that_fails_reaches_the_trainer_at_the_batch_that_needs_it():
    class Refusing(Scripted):
        def publish(self, params, version):
            if version == 1:
                raise Flaky("weights are not finite")
            super().publish(params, version)

    with collector(Refusing(), lead=1) as chosen:
        for step in range(2):  # the batch of step 1 was asked for before the push
            assert told(turn(chosen, step))[0][1] == 0
        with pytest.raises(CollectionError, match=r"version 1 was not published.*not finite"):
            turn(chosen, 2)


def test_a_group_that_is_short_of_completions_is_drawn_again_alone_and_with_another_seed():
    def answer(engine, groups):
        if len(groups) == 3:
            prompt = groups[1].prompt_ids
            return [groups[0], group(prompt, 0, size=1), groups[2]]
        return groups

    engine = Scripted(answer=answer)
    with collector(engine) as chosen:
        (first, middle, last) = told(turn(chosen, 0))
        assert (first, last) == ((0, 0, 1000), (2, 0, 1000))
        assert middle[:2] == (1, 0)
        assert middle[2] != 1000
        assert chosen.metrics()["collect/retried/incomplete"] == 1
    assert engine.calls == {(0, 1, 2): 1, (1,): 1}


def test_one_completion_that_is_too_old_is_enough_to_discard_its_group():
    def answer(engine, groups):
        if engine.calls[(10, 11, 12)] != 1 or len(groups) != 3:
            return groups
        fresh = groups[1].completions[0]
        return [
            groups[0],
            replace(groups[1], completions=(fresh, replace(fresh, policy_version=0))),
            *groups[2:],
        ]

    engine = Scripted(answer=answer)
    with collector(engine, 2, max_staleness=0) as chosen:
        for step in range(2):
            turn(chosen, step)
        metrics = chosen.metrics()
    assert metrics["collect/retried/stale"] == 1
    assert metrics["collect/staleness/count/0"] == 2 * 3 * 2
    assert engine.calls[(11,)] == 1


# --- ends ------------------------------------------------------------------------------------


def blocked():
    """An engine whose `generate` lasts until a test lets it go, and what tells of both."""
    begun, released = threading.Event(), threading.Event()

    def script(engine, prompts, seed):
        begun.set()
        wait(released)

    return Scripted(script), begun, released


def test_closing_while_the_trainer_waits_wakes_it():
    engine, begun, released = blocked()
    chosen, raised = collector(engine, grace=0.0), []

    def trainer():
        with pytest.raises(RuntimeError, match="closed") as caught:
            turn(chosen, 0)
        raised.append(caught.value)

    thread = threading.Thread(target=trainer)
    thread.start()
    wait(begun)
    chosen.close()
    thread.join(LONG)
    assert len(raised) == 1
    chosen.close()
    released.set()
    for use in (lambda: chosen.publish("more", 9), lambda: chosen.take(0)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_closing_waits_for_a_call_under_way_and_begins_no_other():
    engine, begun, released = blocked()
    with collector(engine, lead=3) as chosen:
        chosen.publish("weights", 0)
        chosen.request(3)
        wait(begun)
        threading.Timer(0.01, released.set).start()
    assert not alive()
    assert len(engine.calls) == 1


def test_a_call_that_never_ends_does_not_keep_the_run_from_ending(caplog):
    engine, begun, released = blocked()
    with caplog.at_level(logging.WARNING), collector(engine, grace=0.0) as chosen:
        chosen.publish("weights", 0)
        chosen.request(0)
        wait(begun)
    assert "1 calls of the engine did not end within 0 s" in caplog.text
    released.set()


@pytest.fixture
def interruptible():
    """Ctrl-C as a terminal has it: a suite started in the background inherits a deaf one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_the_trainer_waits_ends_the_run():
    released = threading.Event()

    def script(engine, prompts, seed):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        wait(released)

    chosen = collector(Scripted(script), grace=0.0)
    with pytest.raises(KeyboardInterrupt), chosen:
        turn(chosen, 0)
    released.set()


def test_an_error_of_the_trainer_ends_the_threads():
    chosen = collector(Scripted(), lead=3)
    with pytest.raises(ZeroDivisionError), chosen:
        turn(chosen, 0) and 1 / 0
    assert not alive()


# --- misuse ----------------------------------------------------------------------------------


def test_misuse_is_refused():
    with collector(Scripted(), range(2, 4), max_staleness=1) as chosen:
        with pytest.raises(RuntimeError, match="before publish"):
            chosen.take(2)
        chosen.publish("weights", 0)
        with pytest.raises(ValueError, match=r"step 2 is 0, older than max_staleness 1"):
            chosen.take(2)
        chosen.publish("weights", 2)
        with pytest.raises(ValueError, match="version 1 after version 2"):
            chosen.publish("weights", 1)
        for wrong in (0, 3):
            with pytest.raises(ValueError, match="next step is 2"):
                chosen.take(wrong)
        for step in (2, 3):
            chosen.take(step)
        with pytest.raises(ValueError, match="next step is 4"):
            chosen.take(4)


def test_a_request_needs_one_prompt_a_problem():
    with pytest.raises(ValueError, match="2 problems with 1 prompts"):
        type(request_at(0))(0, [1, 2], [np.array([1], np.int32)], 0)


# --- statistics and resuming -----------------------------------------------------------------


def test_the_time_of_each_side_adds_up():
    now = [0.0]

    def script(engine, prompts, seed):
        now[0] += 2.0

    with collector(Scripted(script), clock=lambda: now[0]) as chosen:
        for step in range(4):
            turn(chosen, step)
            now[0] += 3.0
        found = chosen.metrics()
    expected = {
        "seconds/trainer/waiting": 8,
        "seconds/workers/waiting": 12,
        "seconds/workers/generating": 8,
        "seconds/workers/publishing": 0,
        "seconds/workers/judging": 0,
        "idle/trainer": 0.4,
        "idle/workers": 0.6,
        "tokens/s": 4 * 3 * 2 * 3 / 20,
        "tokens/busy_s": 4 * 3 * 2 * 3 / 8,
        "staleness/count/0": 24,
        "staleness/mean": 0,
        "staleness/max": 0,
        "retried/failed": 0,
        "retried/incomplete": 0,
        "retried/refused": 0,
        "retried/stale": 0,
        "ahead": 0,
    }
    named = {f"collect/{name}": value for name, value in expected.items()}
    assert found == pytest.approx({**named, "rollout/refused": 0})


def test_staleness_is_counted_by_completion():
    with collector(Scripted(), 4, lead=1) as chosen:
        for step in range(4):
            turn(chosen, step, v=2)
        found = chosen.metrics()
    # Batches 0 to 3 were asked for under versions 0, 0, 0, 2.
    counts = {name: n for name, n in found.items() if "staleness/" in name}
    assert counts == {
        "collect/staleness/count/0": 6,
        "collect/staleness/count/1": 12,
        "collect/staleness/count/2": 6,
        "collect/staleness/mean": 1.0,
        "collect/staleness/max": 2,
    }


@pytest.mark.parametrize("bound", [None, 2])
@pytest.mark.parametrize(("lead", "v"), [(0, 2), (1, 1), (1, 3), (2, 1), (3, 2)])
def test_a_resumed_run_asks_again_for_what_was_on_its_way_under_the_versions_it_had(lead, v, bound):
    limits = {"lead": lead, "max_staleness": bound}
    whole = [told(t) for t in run(Scripted(), v=v, **limits)]
    for stop in range(1, 8):
        with collector(Scripted(), range(stop, 8), **limits) as chosen:
            # The server's weights at the steps whose requests were still on their way.
            for step in range(max(0, stop - lead), stop):
                version = step - step % v
                if chosen.version != version:
                    chosen.publish(f"weights {version}", version)
                chosen.request(step + lead)
            if chosen.version is None and stop % v:
                chosen.publish(f"weights {stop - stop % v}", stop - stop % v)
            resumed = [told(turn(chosen, step, v)) for step in range(stop, 8)]
        assert resumed == whole[stop:]


# --- rewards ---------------------------------------------------------------------------------


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

    with collector(Scripted(script), reward_fn=reward_fn, prompts_per_call=1) as chosen:
        assert told(turn(chosen, 0)) == told(run(Scripted(), 1, prompts_per_call=1)[0])


def test_several_judges_work_at_once_and_each_group_gets_its_own_rewards():
    together = threading.Barrier(3)

    def reward_fn(request, places, groups):
        together.wait(LONG)
        (place,) = places
        return [Rewarded(g, np.full(len(g.completions), place, np.float32)) for g in groups]

    with collector(Scripted(), reward_fn=reward_fn, prompts_per_call=1, judges=3) as chosen:
        taken = turn(chosen, 0)
    assert [each.rewards.tolist() for each in taken.rewarded] == [[0, 0], [1, 1], [2, 2]]


def test_the_engine_is_the_callers_alone_while_it_asks_for_it():
    engine = Scripted()
    with collector(engine, lead=3) as chosen:
        turn(chosen, 0)
        with chosen.alone() as own:
            assert own is engine
            before = len(engine.log)
            chosen.publish("weights 1", 1)
            chosen.request(4)
            time.sleep(0.05)
            assert len(engine.log) == before
        assert told(chosen.take(1))[0][1] == 0  # asked for ahead, before the newer weights
