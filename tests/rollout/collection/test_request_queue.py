"""Every order in which things can happen, on small runs; random orders on larger ones.

The board is driven by a chooser that stands for the clock: which worker is done next, with groups
that are refused or not, and when the trainer moves on.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.rollout.check import Flaw
from ogrpo.rollout.collection.request_queue import CollectionLimits, Publish, RequestQueue
from tests.rollout.collection.scripted import (
    SAMPLING,
    equal_rewards,
    group,
    make_limits,
    request_at,
)


@dataclass
class World:
    """One run of a trainer, its workers and an engine whose groups may be refused."""

    choose: object
    limits: CollectionLimits
    steps: int = 3
    v: int = 1
    size: int = 2
    faults: int = 0
    """Calls of which a group is refused, in the whole run."""

    def __post_init__(self):
        self.queue = RequestQueue(
            lambda step: request_at(step, self.size),
            steps=range(self.steps),
            sampling=SAMPLING,
            limits=self.limits,
        )
        self.running, self.served, self.step, self.requested = {}, -1, 0, False
        self.handed = []

    def play(self):
        """The batches, in order."""
        while self.step < self.steps:
            moves = [self.train] if not self.requested or self.queue.complete(self.step) else []
            if len(self.running) < self.limits.workers and self.work():
                moves.append(self.begin)
            for command in self.running:
                moves += self.endings(command)
            if self.queue.unjudged:
                moves.append(self.judge)
            assert moves, "everybody waits for somebody else"
            moves[self.choose(len(moves))]()
            self.check()
        return self.handed

    def train(self):
        if self.requested:
            taken = self.queue.hand_out(self.step)
            assert [int(g.prompt_ids[0]) for g in taken.groups] == list(taken.request.problems)
            drawn_by = [c.policy_version for g in taken.groups for c in g.completions]
            assert len(drawn_by) == 2 * self.size
            assert max(drawn_by) <= self.step
            self.handed.append(taken)
            self.step, self.requested = self.step + 1, False
            return
        if self.step % self.v == 0:
            self.queue.publish("weights", self.step)
        self.queue.request(self.step + self.limits.lead)
        self.queue.check_turn(self.step)
        self.requested = True

    def work(self):
        """Returns whether there is something to begin, which the queue's state alone decides."""
        if (command := self.queue.begin()) is None:
            return False
        self.queue.under_way.remove(command)
        self.queue._queue.appendleft(command)
        return True

    def begin(self):
        self.running[self.queue.begin()] = self.served

    def endings(self, command):
        if isinstance(command, Publish):
            return [lambda: self.push(command)]
        answer = [lambda: self.answer(command, self.running[command])]
        return [*answer, lambda: self.spoil(command)] if self.faults else answer

    def push(self, command):
        del self.running[command]
        self.served = command.version
        self.queue.under_way.remove(command)

    def answer(self, command, version, flaws=None):
        del self.running[command]
        groups = [group(p, version, command.seed) for p in command.prompts]
        self.queue.drawn(command, groups, flaws or {})

    def judge(self):
        call = self.queue.unjudged.popleft()
        self.queue.judged(call, equal_rewards(call.request, call.places, call.groups))

    def spoil(self, command):
        self.faults -= 1
        place = self.choose(len(command.places))
        self.answer(command, self.running[command], {place: Flaw("tokens", "a token is 99")})

    def check(self):
        assert self.queue.error is None
        pushing = [c for c in self.running if isinstance(c, Publish)]
        assert len(pushing) <= 1
        if pushing and self.limits.ordered:
            assert len(self.running) == 1
        outstanding = self.queue._requested - self.step
        assert outstanding <= self.limits.lead + 1


def planned_versions(limits, steps, v):
    """The version that draws each step's batch, said without a queue."""
    requested = [max(step - limits.lead, 0) for step in range(steps)]
    return [step - step % v for step in requested]


def versions(handed):
    return [{c.policy_version for g in t.groups for c in g.completions} for t in handed]


def every(play):
    """Yields the value of `play(choose)` for every sequence of choices."""
    path = []
    while True:
        made = []

        def choose(n, made=made, path=path):
            made.append((path[len(made)] if len(made) < len(path) else 0, n))
            return made[-1][0]

        yield play(choose)
        while made and made[-1][0] + 1 == made[-1][1]:
            made.pop()
        if not made:
            return
        path = [choice for choice, _ in made]
        path[-1] += 1


# Three steps of the first and of the last have ten thousand orders.
EXHAUSTIVE = {
    "one worker": (make_limits(lead=2), 2),
    "two workers": (make_limits(lead=1, workers=2), 3),
    "two workers, no lead": (make_limits(lead=0, workers=2, prompts_per_call=1), 3),
    "two workers, unordered": (make_limits(lead=1, workers=2, ordered=False), 2),
}


@pytest.mark.parametrize("name", EXHAUSTIVE)
def test_versions_do_not_depend_on_the_order_of_events(name):
    limits, steps = EXHAUSTIVE[name]
    size = 1 if limits.prompts_per_call is None else 2
    planned = [{version} for version in planned_versions(limits, steps, 1)]
    seen = [versions(h) for h in every(lambda choose: World(choose, limits, steps, 1, size).play())]
    assert len(seen) > 1
    if limits.ordered:
        assert all(drawn_by == planned for drawn_by in seen)
    else:
        pairs = [zip(drawn_by, planned, strict=True) for drawn_by in seen]
        assert all(min(a) >= min(b) for pair in pairs for a, b in pair)


@given(st.data())
def test_every_prompt_is_handed_out_once_whatever_happens_when(data):
    v = data.draw(st.integers(1, 3))
    limits = make_limits(
        lead=data.draw(st.integers(0, 4)),
        workers=data.draw(st.integers(1, 4)),
        prompts_per_call=data.draw(st.none() | st.integers(1, 3)),
        ordered=data.draw(st.booleans()),
        attempts=5,
    )
    # One random number drives all choices: they are far too many to draw one by one.
    random = data.draw(st.randoms(use_true_random=False))
    world = World(random.randrange, limits, steps=8, v=v, size=3, faults=4)
    handed = world.play()
    expected = [problem for step in range(8) for problem in request_at(step, 3).problems]
    assert [int(g.prompt_ids[0]) for t in handed for g in t.groups] == expected
    assert sum(world.queue.staleness.values()) == 2 * len(expected)
    if limits.ordered:  # What is refused is drawn again before any newer weights.
        assert versions(handed) == [{n} for n in planned_versions(limits, 8, v)]
