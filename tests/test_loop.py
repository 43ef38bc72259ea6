"""Algorithm 1 with a real decoder: who holds which weights when, and that nothing depends on luck."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.config import (
    Certificate,
    Checkpointing,
    Data,
    Evaluation,
    Gsm8k,
    Objective,
    Rollout,
    WarmStart,
)
from experiments.models import make_model
from experiments.parts import make_optimizer, make_parts
from experiments.tasks import prepare
from ogrpo.loop import Schedule, advance, start, stream_seed, train
from ogrpo.training.checkpoint import Checkpoints
from ogrpo.training.state import init_state

SMALL = Gsm8k(
    data=Data(train=64),
    warm_start=WarmStart(steps=2, batch=4, problems=8, cache=False),
    rollout=Rollout(group_size=4),
    schedule=Schedule(steps=6, prompts=4, evaluate_every=3),
    evaluation=Evaluation(prompts=6),
    checkpoint=Checkpointing(every=2),
)


class Run:
    """Everything a loop needs; programs compile once a config shape."""

    def __init__(self, **changes):
        self.config = replace(SMALL, **changes)
        prepared, problems = prepare(self.config)
        decoder, self.params = make_model(
            self.config, prepared.tokenizer, problems, Console(quiet=True)
        )
        # An untrained decoder is never right: a reward that varies lets it learn something.
        task = replace(prepared.task, reward=lambda text, finish, gold: float(len(text) % 2))
        self.parts = make_parts(self.config, replace(prepared, task=task), decoder)

    def start(self):
        params = jax.tree.map(lambda x: x.copy(), self.params)
        state = init_state(params, make_optimizer(self.config))
        return start(state, self.parts)

    def turns(self, state=None):
        return list(train(state or self.start(), self.parts, self.config.schedule))


def schedule(**changes):
    return replace(SMALL.schedule, **changes)


def deterministic(record):
    return {k: v for k, v in record.items() if not k.startswith("seconds/") and k != "tokens/s"}


def equal(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


@pytest.fixture(scope="module")
def off_policy():
    return Run(schedule=schedule(v=3))


def test_server_weights_are_renewed_every_v_steps(off_policy):
    staleness, versions = [], []
    state = off_policy.start()
    for _ in range(6):
        before = state.train.params
        copied = jax.tree.map(np.array, before)
        state, record = advance(state, off_policy.parts, off_policy.config.schedule)
        staleness.append(record["staleness"])
        versions.append(state.server_version)
        if (state.step - 1) % 3 == 0:
            assert equal(state.server, copied)
    assert staleness == [0, 1, 2, 0, 1, 2]
    assert versions == [0, 0, 0, 3, 3, 3]


def test_behavior_log_probs_are_the_trainers_own_while_fresh(off_policy):
    _, *records = [record for _, record in off_policy.turns()]
    fresh = [r for r in records if r["staleness"] == 0]
    stale = [r for r in records if r["staleness"] > 0]
    assert len(fresh) == 2
    assert all(r["mismatch"] < 1e-5 and r["ess"] > 1 - 1e-5 for r in fresh)
    assert all(r["mismatch"] > 1e-5 for r in stale)


def test_the_same_run_twice_gives_the_same_numbers(off_policy):
    first, second = off_policy.turns(), off_policy.turns()
    assert [deterministic(r) for _, r in first] == [deterministic(r) for _, r in second]
    assert equal(first[-1][0].train.params, second[-1][0].train.params)


def test_another_seed_gives_other_numbers(off_policy):
    other = Run(schedule=schedule(v=3), seed=1)
    ours, theirs = off_policy.turns(), other.turns()
    assert [r["tokens"] for _, r in ours] != [r["tokens"] for _, r in theirs]


def test_records_count_what_was_bought(off_policy):
    records = [record for _, record in off_policy.turns()]
    assert [r["step"] for r in records] == list(range(7))
    assert [r["completions"] for r in records] == [16 * n for n in range(7)]
    assert [r["updates"] for r in records] == list(range(7))
    evaluated = [r["step"] for r in records if r["pass@1/sampled"] is not None]
    assert evaluated == [0, 3, 6]
    assert all({*r} >= {*records[0]} for r in records)


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(off_policy, tmp_path):
    whole = off_policy.turns()
    state = off_policy.start()
    for _ in range(2):  # step 2 is in the middle of a server period
        state, _ = advance(state, off_policy.parts, off_policy.config.schedule)
    with Checkpoints(tmp_path, keep=1) as checkpoints:
        checkpoints.save(state.step, state.arrays(), state.progress())
        fresh = Run(schedule=schedule(v=3))
        resumed = fresh.start().restored(*checkpoints.restore(2, fresh.start().arrays()))
    turns = fresh.turns(resumed)
    assert [r["step"] for _, r in turns] == [3, 4, 5, 6]
    assert [deterministic(r) for _, r in turns] == [deterministic(r) for _, r in whole[3:]]
    assert equal(turns[-1][0].train.params, whole[-1][0].train.params)


def test_i_updates_a_batch_leave_the_first_centre():
    run = Run(schedule=schedule(i=3, steps=2))
    records = [record for _, record in run.turns()]
    assert [r["updates"] for r in records] == [0, 3, 6]
    assert records[1]["staleness"] == 0
    assert records[1]["kl"] > 0  # the third update sees a policy that two updates moved
    assert records[1]["mismatch"] < 1e-5  # pi_k is still the one that sampled


def test_reference_is_swapped_at_the_start_of_each_stage():
    run = Run(schedule=schedule(steps=4, stages=2, v=4), objective=Objective(beta=0.1))
    state = run.start()
    initial = jax.tree.map(np.array, state.reference)
    seen = []
    for _ in range(4):
        copied = jax.tree.map(np.array, state.train.params)
        state, record = advance(state, run.parts, run.config.schedule)
        seen.append((equal(state.reference, initial), equal(state.reference, copied)))
        if equal(state.reference, copied):
            assert record["kl/ref"] < 1e-9
    assert seen == [(True, True), (True, False), (False, True), (False, False)]


def test_without_beta_there_is_no_reference(off_policy):
    state, _ = off_policy.turns()[-1]
    assert state.reference is None
    assert set(state.arrays()) == {"train", "server", "previous"}


def test_each_period_is_certified_from_samples_it_never_saw(off_policy):
    turns = off_policy.turns()
    certified = [
        (r["step"], r["certificate/completions"])
        for _, r in turns
        if r["certificate/bound"] is not None
    ]
    assert certified == [(6, 48)]  # the first period has none before it; the second ends at step 6
    record = turns[-1][1]
    assert -1.0 < record["certificate/bound"] < record["certificate/mean"] < 1.0


def test_certificates_can_be_left_out_and_change_nothing_else(off_policy):
    run = Run(schedule=schedule(v=3), certificate=Certificate(delta=None))
    ours, theirs = off_policy.turns(), run.turns()
    assert theirs[-1][0].previous is None
    assert all(r["certificate/bound"] is None for _, r in theirs)

    def others(turns):
        kept = [deterministic(r) for _, r in turns]
        return [{k: v for k, v in r.items() if not k.startswith("certificate/")} for r in kept]

    assert others(ours) == others(theirs)


@pytest.mark.parametrize("field", ["steps", "i", "v", "stages", "prompts", "evaluate_every"])
def test_a_dial_below_one_is_refused_by_name(field):
    with pytest.raises(ValueError, match=rf"schedule\.{field} is 0"):
        schedule(**{field: 0})


def test_more_stages_than_steps_is_refused():
    with pytest.raises(ValueError, match=r"schedule\.stages is 7.*schedule\.steps = 6"):
        schedule(stages=7)


def test_stages_are_spread_evenly():
    ten = Schedule(steps=10, stages=3)
    assert [step for step in range(10) if ten.starts_stage(step)] == [0, 3, 6]


def test_streams_of_seeds_do_not_meet():
    seeds = {
        stream_seed(seed, stream, step)
        for seed in range(3)
        for stream in ("rollout", "evaluation")
        for step in range(200)
    }
    assert len(seeds) == 3 * 2 * 200
