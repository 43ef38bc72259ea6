"""The buffer against a plain list: content, versions, uses, evictions and counters, exactly."""

import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ogrpo.data import replay
from tests.data.replay.make import (
    LAYOUT,
    SAMPLERS,
    G,
    contents,
    experience,
    facts,
    opened,
    versioned,
)


@dataclass
class Held:
    """One group of the list model."""

    id: int
    experience: replay.Experience
    uses: int = 0

    @property
    def oldest(self) -> int:
        return min(c.policy_version for c in self.experience.group.completions)

    @cached_property
    def n_bytes(self) -> int:
        total = len(self.experience.group.prompt_ids) * 2 + 4 + 8  # and its length, the problem
        for done in self.experience.group.completions:
            stretches = [carries for carries, _ in groupby(done.carries_loss.tolist())]
            total += len(done.token_ids) * (2 + 4) + len(done.version_spans) * 20
            total += stretches.count(False) * 16
            total += 4 + 4 + 8 + 1 + 4  # length, version, temperature, finish reason, reward
        return total


class AgainstAList(RuleBasedStateMachine):
    """Every rule is done to the buffer and to a list of groups; the two must tell the same."""

    @initialize(
        name=st.sampled_from(sorted(SAMPLERS)),
        groups=st.none() | st.integers(1, 12),
        staleness=st.none() | st.integers(0, 3),
        uses=st.none() | st.integers(1, 3),
        segment_groups=st.integers(1, 6),
        refuse=st.booleans(),
    )
    def start(self, name, groups, staleness, uses, segment_groups, refuse):
        self.limits = replay.BufferLimits(groups=groups, staleness=staleness, uses=uses)
        self.sampler, self.refuse = SAMPLERS[name], refuse
        self.segment_groups = segment_groups
        self.folder = Path(tempfile.mkdtemp())
        self.buffer = self.opened()
        self.held: list[Held] = []
        self.next_id = self.version = self.number = self.seed = 0
        self.counts: Counter[str] = Counter()

    def opened(self, state=None):
        options = {"segment_groups": self.segment_groups, "refuse_zero_variance": self.refuse}
        return replay.ReplayBuffer(
            LAYOUT, self.limits, self.sampler, folder=self.folder, state=state, **options
        )

    def teardown(self):
        shutil.rmtree(self.folder)

    def evict(self, reason, doomed):
        gone = {one.id for one in doomed}
        self.held = [one for one in self.held if one.id not in gone]
        self.counts[f"evicted/{reason}"] += len(gone)

    def move_to(self, version):
        self.version = max(self.version, version)
        if (limit := self.limits.staleness) is not None:
            stale = [one for one in self.held if self.version - one.oldest > limit]
            self.evict("staleness", stale)

    def refusal(self, one: Held) -> str | None:
        limit, rewards = self.limits.staleness, one.experience.rewards
        if limit is not None and self.version - one.oldest > limit:
            return "stale"
        return "zero_variance" if self.refuse and (rewards == rewards[0]).all() else None

    @rule(
        behind=st.lists(st.integers(0, 3), max_size=5),
        problems=st.integers(1, 4),
        flat=st.booleans(),
    )
    def insert(self, behind, problems, flat):
        fresh = []
        for lag in behind:
            rewards = (1.0, 1.0) if flat and self.number % 2 else None
            version = max(self.version - lag, 0)
            problem = self.number % problems
            fresh.append(experience(self.number, version=version, problem=problem, rewards=rewards))
            self.number += 1
        actual = self.buffer.insert(fresh)
        versions = [c.policy_version for one in fresh for c in one.group.completions]
        self.move_to(max(versions, default=0))
        ids = []
        for one in (Held(self.next_id, each) for each in fresh):
            if (reason := self.refusal(one)) is not None:
                self.counts[f"refused/{reason}"] += 1
                ids.append(-1)
                continue
            ids.append(self.next_id)
            self.held.append(one)
            self.next_id += 1
        self.counts["inserted"] += sum(id_ >= 0 for id_ in ids)
        assert actual.tolist() == ids
        if self.limits.groups is not None:
            self.evict("groups", self.held[: max(len(self.held) - self.limits.groups, 0)])

    @rule(by=st.integers(0, 2))
    def expire(self, by):
        self.buffer.expire(self.version + by)
        self.move_to(self.version + by)

    @rule(count=st.integers(1, 8))
    def sample(self, count):
        self.seed += 1
        if len(self.held) < count:
            with pytest.raises(replay.TooFewGroups, match=f"{count} groups asked for"):
                self.buffer.sample(count, seed=self.seed)
            return
        draw = self.buffer.sample(count, seed=self.seed)
        by_id = {one.id: one for one in self.held}
        drawn = [by_id[id_] for id_ in draw.ids.tolist()]
        assert contents(draw.columns) == [facts(one.experience) for one in drawn]
        assert draw.uses.tolist() == [one.uses for one in drawn]
        assert draw.staleness.tolist() == [self.version - one.oldest for one in drawn]
        assert draw.problems.tolist() == [one.experience.problem for one in drawn]
        assert len(set(draw.ids.tolist())) == count
        for one in drawn:
            one.uses += 1
        self.counts["drawn"] += count
        if (limit := self.limits.uses) is not None:
            self.evict("uses", [one for one in self.held if one.uses >= limit])

    @rule(prune=st.booleans())
    def flush(self, prune):
        self.buffer.flush()
        assert self.buffer.acknowledged == self.next_id
        if prune:
            self.buffer.prune()

    @precondition(lambda self: self.next_id > 0)
    @rule()
    def reopen(self):
        """A new process with the saved state goes on as the old one would have."""
        state = json.loads(json.dumps(self.buffer.state()))
        other = self.opened(state)
        if self.held:
            before, after = (b.sample(1, seed=9) for b in (self.buffer, other))
            assert before.ids == after.ids
            assert before.uses == after.uses
        self.buffer = self.opened(state)

    @invariant()
    def agree(self):
        if not hasattr(self, "held"):
            return
        statistics = self.buffer.statistics()
        assert len(self.buffer) == statistics["groups"] == len(self.held)
        assert statistics["bytes"] == sum(one.n_bytes for one in self.held)
        assert self.buffer.version == self.version
        counted = {name: n for name, n in statistics.items() if n and name.split("/")[0] in COUNTED}
        assert counted == {name: n for name, n in self.counts.items() if n}
        uses = [one.uses for one in self.held] or [0]
        staleness = [self.version - one.oldest for one in self.held] or [0]
        for name, values in (("uses", uses), ("staleness", staleness)):
            assert statistics[f"{name}/max"] == max(values)
            assert statistics[f"{name}/mean"] == pytest.approx(np.mean(values))


COUNTED = ("inserted", "refused", "evicted", "drawn")
AgainstAList.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, derandomize=True
)


@pytest.mark.parametrize("size", [1, 3])
def test_groups_without_a_success_are_refused_at_any_size(size):
    layout = replace(LAYOUT, group_size=size)
    buffer = replay.ReplayBuffer(layout, replay.BufferLimits(), replay.fifo, refuse_failures=True)

    def judged(number, *rewards):
        group = experience(number).group
        group = replace(group, completions=(group.completions * size)[:size])
        return replay.Experience(group, np.array(rewards, np.float32), number)

    nothing, nan = [0.0] * (size - 1), float("nan")
    firsts = (0.0, 1.0, -2.0, nan, 0.5)
    ids = buffer.insert([judged(n, first, *nothing) for n, first in enumerate(firsts)])
    assert ids.tolist() == [-1, 0, -1, -1, 1]
    assert buffer.statistics()["refused/failures"] == 3


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: replay.BufferLimits(groups=0), "limit on groups is 0"),
        (lambda: replay.BufferLimits(staleness=-1), "limit on staleness is -1"),
        (lambda: opened(None, segment_groups=0), "segment_groups is 0"),
        (lambda: opened(None).sample(0, seed=0), "count is 0"),
        (lambda: opened(None).sample(1, seed=0), "0 can be drawn"),
        (lambda: opened(None).expire(-1), "version is -1, 0 was"),
    ],
)
def test_wrong_use_is_an_error(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_memory_only_saves_its_state_only_while_empty():
    buffer = opened(None, range(2), replay.BufferLimits(uses=1))
    with pytest.raises(ValueError, match="2 groups are held in memory only"):
        buffer.state()
    buffer.sample(2, seed=0)
    again = opened(None, (), replay.BufferLimits(uses=1), state=buffer.state())
    assert again.insert([experience(2)]).tolist() == [2]
    assert again.statistics()["inserted"] == 3


def test_a_logs_groups_are_counted_as_such_when_they_are_read_again(tmp_path):
    one = experience(0)
    logged = tuple(replace(c, policy_version=-1) for c in one.group.completions)
    buffer = opened(tmp_path, [1])
    buffer.insert([replace(one, group=replace(one.group, completions=logged))])
    buffer.flush()
    for each in (buffer, opened(tmp_path)):
        counts = each.statistics()
        assert (counts["inserted"], counts["logged"]) == (2, 1)


GROUPS, BATCH = 20_000 // G, 250
WIDE = replay.Layout(group_size=G, vocab_size=60_000)
KINDS = replay.pack(versioned(range(BATCH)), WIDE)


def batch(number):
    """Groups of all kinds, other ones for each number, with token ids from the whole vocabulary."""
    return KINDS._replace(
        prompt_ids=KINDS.prompt_ids * 200 + number,
        token_ids=KINDS.token_ids * 200 + number,
        log_probs=KINDS.log_probs - number,
        policy_versions=KINDS.policy_versions + number,
        rewards=KINDS.rewards + number,
        problems=KINDS.problems + number * BATCH,
    )


def test_twenty_thousand_completions_come_back_from_memory_and_from_disk(tmp_path):
    """Half of what came was evicted, and the others are the same bit for bit."""
    batches = [batch(number) for number in range(2 * GROUPS // BATCH)]
    limits = replay.BufferLimits(groups=GROUPS)
    buffer = replay.ReplayBuffer(WIDE, limits, replay.fifo, folder=tmp_path)
    for columns in batches:
        buffer.insert_columns(columns)
    reopened = replay.ReplayBuffer(WIDE, limits, replay.fifo, folder=tmp_path, state=buffer.state())
    for one in (buffer, reopened):
        assert len(one) == GROUPS
        for seed, columns in enumerate(batches[len(batches) // 2 :]):
            drawn = one.sample(BATCH, seed=seed).columns
            for name, values in columns._asdict().items():
                assert np.array_equal(getattr(drawn, name), values), (seed, name)
