"""Algorithm 1 with a real decoder: who holds which weights when, and that nothing depends on luck."""

from copy import copy
from dataclasses import replace

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.grid.train import sharing
from ogrpo.config.schedule import Reuse, ReuseLimits, Schedule
from ogrpo.config.train import (
    Certification,
    Checkpointing,
    Data,
    Evaluation,
    Replay,
    Rollout,
    WarmStart,
)
from ogrpo.config.update import Knobs
from ogrpo.data.replay import BufferLimits, ReplayBuffer, fifo
from ogrpo.learner.checkpoint import Checkpoints
from ogrpo.loop import advance, certify, first_arrays, make_collector, resume, start, train
from ogrpo.loop.collect import insert, take
from ogrpo.loop.learn import score
from ogrpo.loop.parts import Logged
from ogrpo.setup.build import make_parts
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from ogrpo.setup.presets import main_study
from tests.data.replay.make import LAYOUT, experience
from tests.run.rewards import VARIED
from tests.run.small_run import untimed

SMALL = main_study(
    rewards=(VARIED,),
    data=Data(train=64),
    warm_start=WarmStart(steps=2, batch=4, problems=8, cache=False),
    rollout=Rollout(group_size=4),
    schedule=Schedule(steps=6, prompts=4, evaluate_every=3),
    evaluation=Evaluation(prompts=6),
    checkpoint=Checkpointing(every=2),
    certificate=Certification(delta=0.05, completions=20),
)

SPARSE = Certification(delta=0.05, completions=60, pairs=True)


class Run:
    """Everything a loop needs."""

    def __init__(self, **changes):
        self.prepared = prepare(replace(SMALL, **changes))
        self.config = self.prepared.config
        self.decoder, self.params = make_model(self.prepared, Console(quiet=True))
        self.parts = make_parts(self.config, self.prepared, self.decoder)

    def like(self, experience=None, **changes):
        """The same programs with another schedule, buffer, seed or folder; nothing is compiled."""
        other = copy(self)
        other.config = replace(self.config, **changes)
        parts = make_parts(other.config, self.prepared, self.decoder, experience=experience)
        other.parts = sharing(parts, self.parts, embedded=True)
        return other

    def train_state(self):
        return self.parts.learner.init(jax.tree.map(lambda x: x.copy(), self.params))

    def start(self):
        return start(self.train_state(), self.parts)

    def turns(self, state=None):
        return list(train(state or self.start(), self.parts))

    def resumed(self, folder, step):
        """A run that goes on from a checkpoint of this step, and its state there."""
        *_, (_, state, _) = self.like(folder / "experience").steps(step)
        again = self.like(folder / "experience")
        with Checkpoints(folder / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(state.step, state.arrays(), state.progress())
            like = first_arrays(again.train_state(), again.parts.method.reads)
            return again, resume(*checkpoints.restore(step, like), again.parts)

    def batch(self, state):
        """The first batch as updates take it, and the state whose buffer holds it."""
        with make_collector(state, self.parts) as collector:
            state = insert(state, take(self.parts, collector, 0), self.parts)
        draw = state.buffer.sample(self.parts.schedule.prompts, seed=0)
        return state, score(state, draw, self.parts)[0]

    def steps(self, count):
        """The first steps one by one: the state before each, the state after, the record."""
        state = self.start()
        with make_collector(state, self.parts) as collector:
            for _ in range(count):
                copied = jax.tree.map(np.array, state.train.params)
                after, record = advance(state, self.parts, collector)
                yield copied, after, record
                state = after


def schedule(**changes):
    return replace(SMALL.schedule, **changes)


def equal(a, b):
    return jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), a, b))


@pytest.fixture(scope="module")
def off_policy():
    return Run(schedule=schedule(sync_interval=3))


@pytest.fixture(scope="module")
def whole(off_policy):
    return off_policy.turns()


def test_server_weights_are_renewed_every_v_steps(off_policy):
    staleness, versions = [], []
    for copied, state, record in off_policy.steps(6):
        staleness.append(record["staleness"])
        versions.append(state.server_version)
        if (state.step - 1) % 3 == 0:
            assert equal(state.server, copied)
    assert staleness == [0, 1, 2, 0, 1, 2]
    assert versions == [0, 0, 0, 3, 3, 3]


def test_behavior_log_probs_are_the_trainers_own_while_fresh(whole):
    _, *turns = whole
    fresh = [(state, r) for state, r in turns if r["staleness"] == 0]
    stale = [(state, r) for state, r in turns if r["staleness"] > 0]
    assert len(fresh) == 2
    assert all(r["mismatch"] < 1e-5 and r["ess"] > 1 - 1e-5 for _, r in fresh)
    assert all(r["mismatch"] > 1e-5 for _, r in stale)
    # Only a batch of the trainer's own weights says how far apart the log-probs are.
    assert all(state.mismatch == r["mismatch"] for state, r in fresh)
    assert all(state.mismatch == 0 for state, _ in stale)


def test_records_count_what_was_collected(whole):
    records = [record for _, record in whole]
    assert [r["step"] for r in records] == list(range(7))
    assert [r["completions"] for r in records] == [16 * n for n in range(7)]
    assert [r["updates"] for r in records] == list(range(7))
    evaluated = [r["step"] for r in records if r["pass@1/sampled"] is not None]
    assert evaluated == [0, 3, 6]
    always = {key for key in records[0] if not key.startswith("heldout/reward/varied/")}
    assert all({*r} >= always for r in records)
    lengths = [r["length"] * 16 for r in records[1:]]
    np.testing.assert_allclose(np.cumsum(lengths), [r["tokens"] for r in records[1:]])
    assert all(0 < r["grad_norm/head"] < r["grad_norm"] for r in records[1:])


def test_a_resumed_run_ends_where_an_uninterrupted_one_does(off_policy, whole, tmp_path):
    again, state = off_policy.resumed(tmp_path, 2)  # in the middle of a server period
    turns = again.turns(state)
    assert [r["step"] for _, r in turns] == [3, 4, 5, 6]
    assert [untimed(r) for _, r in turns] == [untimed(r) for _, r in whole[3:]]
    assert equal(turns[-1][0].train.params, whole[-1][0].train.params)


def test_i_updates_a_batch_leave_the_first_centre(off_policy):
    run = off_policy.like(schedule=schedule(updates_per_batch=3, steps=2))
    records = [record for _, record in run.turns()]
    assert [r["updates"] for r in records] == [0, 3, 6]
    assert records[1]["staleness"] == 0
    assert records[1]["kl/mu_pi"] > 0  # the third update sees a policy that two updates moved
    assert records[1]["mismatch"] < 1e-5  # pi_k is still the one that sampled
    assert [r["replay/ratio"] for r in records[1:]] == [3, 3]
    assert [r["replay/uses/mean"] for r in records[1:]] == [1, 1]  # draws


def test_reference_is_swapped_at_the_start_of_each_stage():
    staged = schedule(steps=4, stages=2, sync_interval=4)
    run = Run(schedule=staged, knobs=Knobs(beta=0.1))
    initial = jax.tree.map(np.array, run.start().reference)
    seen = []
    for copied, state, record in run.steps(4):
        seen.append((equal(state.reference, initial), equal(state.reference, copied)))
        if equal(state.reference, copied):
            assert record["kl/pi_ref"] < 1e-9
    assert seen == [(True, True), (True, False), (False, True), (False, False)]
    *_, (anew, _) = run.like(schedule=replace(staged, reset_optimizer=True)).turns()
    assert not equal(anew.train.params, state.train.params)  # its moments began again


def test_each_period_is_certified_from_samples_it_never_saw(whole):
    records = [r for _, r in whole if r["certificate/bound"] is not None]
    # A round of three batches of 16 completions, for this alone.
    assert {r["step"]: r["certificate/completions"] for r in records} == {3: 48, 6: 48}
    record = whole[-1][1]
    assert record["certificate/price"] == 48 / 48
    assert -1.0 < record["certificate/bound"] < record["certificate/mean"] < 1.0


def test_pairs_certify_without_a_log_prob_and_leave_training_as_it_is(
    off_policy, whole, monkeypatch
):
    """Rounds of 16 pairs, of values below 0 where the old weights alone are right."""
    monkeypatch.setattr(certify, "_gains_of", None)
    turns = off_policy.like(certificate=SPARSE).turns()
    assert equal(turns[-1][0].train.params, whole[-1][0].train.params)
    records = [r for _, r in turns if r["certificate/bound"] is not None]
    assert [r["step"] for r in records] == [3, 6]
    for record in records:
        assert record["certificate/completions"] % 32 == 0
        assert record["certificate/price"] == record["certificate/completions"] / 48
        assert -1.0 < record["certificate/bound"] < record["certificate/mean"] < 1.0
        assert record["certificate/unit_center"] is None
    assert turns[-1][0].certificate is None


def test_pairs_of_the_same_weights_are_the_same_completions(off_policy):
    """The random numbers are common: a run that learns nothing has differences of zero alone."""
    state = replace(off_policy.start(), step=3)
    with make_collector(state, off_policy.parts) as collector:
        parts = replace(off_policy.parts, certificate=SPARSE)
        (old, *_), (new, *_) = certify._draw(state, parts, collector, prompts=4, drawn=0)
    assert old.rewards.size == 16
    assert np.array_equal(old.completion_ids, new.completion_ids)
    assert np.array_equal(old.rewards, new.rewards)
    assert np.array_equal(np.unique(old.prompt_ids, axis=0), np.unique(new.prompt_ids, axis=0))


def test_a_reward_that_no_certificate_is_for_ends_the_run_in_its_first_step(off_policy):
    run = off_policy.like()
    collection = run.parts.collection

    def lowered(*call):
        return [replace(each, rewards=each.rewards - 2) for each in collection.reward_fn(*call)]

    run.parts = replace(run.parts, collection=replace(collection, reward_fn=lowered))
    with pytest.raises(ValueError, match=r"rewards span \[-2.*rescale them"):
        next(run.steps(1))


def test_a_log_that_the_buffer_refuses_is_told_of_with_the_reason(off_policy):
    """Logged groups are older by one than the first weights."""
    log = [experience(n, version=-1) for n in range(3)]
    buffer = ReplayBuffer(LAYOUT, BufferLimits(staleness=0), fifo)
    logged = Logged(lambda: log, lambda *_: pytest.fail("its log-probs are there"), least=2)
    parts = replace(off_policy.parts, make_buffer=lambda _: buffer, logged=logged)
    with pytest.raises(ValueError, match=r"took in 0 of the log's 3 .* refused 3 as stale: leave"):
        start(off_policy.train_state(), parts)


@pytest.mark.slow
def test_replay_draws_every_held_group_before_it_comes_round_again(off_policy):
    run = off_policy.like(schedule=schedule(steps=3, replay=3))
    records = [record for _, record in run.turns()][1:]
    assert [r["updates"] for r in records] == [3, 6, 9]
    assert [r["reuse/draws"] for r in records] == [3, 3, 3]
    assert [r["replay/ratio"] for r in records] == [3, 3, 3]
    assert [r["replay/uses/mean"] for r in records] == [3, 3, 3]  # one batch held, drawn thrice


@pytest.mark.slow
def test_offline_training_collects_in_the_warm_up_alone_and_never_renews_the_server(off_policy):
    run = off_policy.like(schedule=schedule(warmup=2, offline=True, sync_interval=1))
    turns = run.turns()[1:]
    assert [r["completions"] for _, r in turns] == [16, 32, 32, 32, 32, 32]
    assert [r["updates"] for _, r in turns] == [0, 0, 1, 2, 3, 4]
    assert [state.server_version for state, _ in turns] == [0] * 6
    assert [r["reward"] is None for _, r in turns] == [False] * 2 + [True] * 4


@pytest.mark.parametrize("limit", [0, 2])
def test_groups_older_than_the_limit_are_never_drawn_and_those_at_it_are(off_policy, limit):
    run = off_policy.like(
        schedule=schedule(sync_interval=6, replay=2), replay=Replay(groups=8, max_staleness=limit)
    )
    records = [record for _, record in run.turns()][1:]
    drawn = [r["staleness/max"] for r in records]
    assert drawn == [step if step <= limit else None for step in range(6)]
    assert [r["reuse/starved"] for r in records] == [step > limit for step in range(6)]


def test_what_arrives_too_old_is_refused_and_takes_nobodys_place(off_policy):
    run = off_policy.like(schedule=schedule(sync_offset=2), replay=Replay(max_staleness=1))
    last = run.turns()[-1][1]
    # With two batches ahead those for steps 0 and 1 are fresh enough, and no others.
    assert (last["replay/inserted"], last["replay/refused/stale"]) == (8, 16)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [1, 2])
def test_collecting_ahead_makes_samples_older_by_the_lead_and_stays_deterministic(off_policy, lead):
    run = off_policy.like(schedule=schedule(sync_offset=lead))
    first, second = run.turns(), run.turns()
    staleness = [r["staleness"] for _, r in first[1:]]
    assert staleness == [min(step, lead) for step in range(6)]
    assert [untimed(r) for _, r in first] == [untimed(r) for _, r in second]
    ahead = 16 if lead == 1 else None  # of the weights just before the renewal
    assert first[-1][1]["certificate/completions"] == ahead


@pytest.mark.slow
def test_signals_end_the_draws_of_a_step_and_renew_the_server(off_policy):
    tight = Reuse(adaptive=True, limits=ReuseLimits(kl=1e-9))
    reused = schedule(replay=4, sync_interval=6)
    run = off_policy.like(schedule=reused, reuse=tight)
    turns = run.turns()[1:]
    # Of fresh data the second draw is one too many; of the next step's the first, as the policy
    # has moved on, and so the server is renewed.
    assert [r["reuse/draws"] for _, r in turns] == [2, 1, 2, 1, 2, 1]
    assert [state.server_version for state, _ in turns] == [0, 0, 2, 2, 4, 4]
    assert {r["reuse/signal"] for _, r in turns} == {"kl"}
    loose = Reuse(adaptive=True, limits=ReuseLimits(kl=1e3, ess=1e3, tail=1e3, staleness=False))
    free = off_policy.like(schedule=reused, reuse=loose)
    assert [r["reuse/draws"] for _, r in free.turns()[1:]] == [4] * 6


@pytest.mark.slow
def test_packed_batches_change_what_is_computed_and_nothing_else(off_policy, whole):
    optimizer = replace(SMALL.optimizer, batching="packed", microbatches=2)
    run = off_policy.like(optimizer=optimizer)
    learner = make_parts(run.config, run.prepared, run.decoder).learner
    run.parts = replace(run.parts, learner=learner)
    for _, state, packed in run.steps(3):
        padded = whole[state.step][1]
        assert packed.keys() == padded.keys()
        for name in ("reward", "loss", "kl/mu_pi", "grad_norm", "ess", "certificate/bound"):
            ours, theirs = packed[name], padded[name]
            assert ours == theirs or ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert packed["padding"] < padded["padding"]
        assert 1 <= packed["shapes"] <= state.step
        assert padded["shapes"] == 1
