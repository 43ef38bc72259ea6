"""Each sampler against its specification: exactly where it is in order, by chi-square where not.

Seeds are fixed, so a test that passes once passes always; the levels say how unlikely a pass would
be to be luck were the specification broken.
"""

from collections import Counter
from functools import partial
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ogrpo.data import replay
from tests.data.replay.make import LAYOUT, SAMPLERS, experience

DRAWS = 2000
LEVEL = 0.01


def buffer_of(sampler, experiences):
    buffer = replay.ReplayBuffer(LAYOUT, replay.BufferLimits(), sampler)
    buffer.insert(experiences)
    return buffer


def tally(buffer, count):
    """Counts each ordered draw of `count` ids; a draw leaves no trace on the weights."""
    return Counter(tuple(buffer.sample(count, seed=s).ids.tolist()) for s in range(DRAWS))


def assert_drawn_as(outcomes, probabilities):
    """Chi-square of the counts against `probabilities` of the outcomes."""
    assert set(outcomes) <= {outcome for outcome, p in probabilities.items() if p > 0}
    possible = [outcome for outcome, p in probabilities.items() if p > 0]
    expected = np.array([probabilities[outcome] for outcome in possible]) * sum(outcomes.values())
    assert expected.min() > 5
    counts = [outcomes[outcome] for outcome in possible]
    assert stats.chisquare(counts, expected).pvalue > LEVEL


def successive(weights, count):
    """Probability of each ordered draw without replacement, by its definition."""
    outcomes = {}
    for order in permutations(range(len(weights)), count):
        p, left = 1.0, float(sum(weights))
        for k in order:
            p *= weights[k] / left
            left -= weights[k]
        outcomes[order] = p
    return outcomes


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=12), st.integers(1, 9))
def test_fifo_goes_round_from_where_it_was(turns, capacity):
    """Against a list that is walked by hand: the next ids above the last drawn, then the oldest."""
    buffer = replay.ReplayBuffer(LAYOUT, replay.BufferLimits(groups=capacity), replay.fifo)
    held, cursor, next_id = [], 0, 0
    for inserted, count in turns:
        buffer.insert([experience(n) for n in range(inserted)])
        held = [*held, *range(next_id, next_id + inserted)][-capacity:]
        next_id += inserted
        if count > len(held):
            continue
        expected = [*(i for i in held if i >= cursor), *(i for i in held if i < cursor)][:count]
        assert buffer.sample(count, seed=0).ids.tolist() == expected
        cursor = expected[-1] + 1


WEIGHTS = [1.0, 2.0, 3.0, 0.0, 5.0]


def by_problem(groups):
    return np.array(WEIGHTS)[groups.problem]


@pytest.mark.parametrize(
    ("sampler", "weights", "count"),
    [(replay.uniform, [1, 1, 1, 1], 2), (partial(replay.weighted, weight=by_problem), WEIGHTS, 3)],
)
def test_groups_are_drawn_one_after_another_by_weight(sampler, weights, count):
    buffer = buffer_of(sampler, [experience(n) for n in range(len(weights))])
    assert_drawn_as(tally(buffer, count), successive(weights, count))


def test_a_mix_has_its_share_of_the_log_and_draws_either_side_alike():
    groups = [experience(n, version=-1 if n < 2 else n) for n in range(5)]
    buffer = buffer_of(partial(replay.mixed, share=0.5), groups)
    pairs = [(n, m) for n in (0, 1) for m in (2, 3, 4)]
    drawn = tally(buffer, 2)
    assert_drawn_as(drawn, {order: 1 / 12 for pair in pairs for order in permutations(pair)})
    with pytest.raises(replay.TooFewGroups, match="3 groups asked for, 2 can be drawn"):
        buffer.sample(6, seed=0)


def test_weights_follow_evictions_uses_and_versions():
    """Every change that a weight depends on, then the distribution that follows from the formula."""
    buffer = replay.ReplayBuffer(LAYOUT, replay.BufferLimits(groups=5), SAMPLERS["weighted"])
    buffer.insert([experience(n, version=0) for n in range(4)])
    buffer.sample(4, seed=0)
    buffer.insert([experience(n, version=1) for n in range(4, 7)])
    buffer.expire(3)
    # Left: 2 and 3 of version 0, used once; 4, 5, 6 of version 1, fresh.
    weights = np.array([2.0**-3 / 2] * 2 + [2.0**-2] * 3)
    expected = dict(zip(range(2, 7), weights / weights.sum(), strict=True))
    # As `sample` would draw one, without using the group up.
    generators = map(np.random.default_rng, range(DRAWS))
    drawn = Counter(int(SAMPLERS["weighted"](buffer._table, 1, rng)[0]) for rng in generators)
    assert_drawn_as(drawn, expected)


def test_stratified_spreads_over_prompts():
    """Prompts 0, 1, 2 hold 1, 2 and 3 groups: 2 draws visit two prompts, 4 draws all of them."""
    problems = [0, 1, 1, 2, 2, 2]
    sizes = Counter(problems)
    groups = [experience(n, problem=p) for n, p in enumerate(problems)]
    buffer = buffer_of(replay.stratified, groups)
    pairs = {
        (a, b): 1 / (6 * sizes[problems[a]] * sizes[problems[b]])
        for a, b in permutations(range(6), 2)
        if problems[a] != problems[b]
    }
    assert_drawn_as(tally(buffer, 2), pairs)
    drawn = tally(buffer, 4)
    # The fourth comes from one of the two prompts that have a group left, each half of the time.
    shares = {0: 1.0, **dict.fromkeys((1, 2), 1.5 / 2), **dict.fromkeys((3, 4, 5), 1.5 / 3)}
    counts = Counter(id_ for outcome in drawn.elements() for id_ in outcome)
    assert counts[0] == DRAWS
    for id_ in range(1, 6):
        spread = np.sqrt(DRAWS * shares[id_] * (1 - shares[id_]))
        assert abs(counts[id_] - DRAWS * shares[id_]) < 4 * spread
    for outcome in drawn:
        assert sorted({problems[i] for i in outcome[:3]}) == [0, 1, 2]
        assert len(set(outcome)) == 4
    everything = buffer.sample(6, seed=0).ids.tolist()
    assert sorted(everything) == list(range(6))


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (replay.equal, [1, 1, 1]),
        (partial(replay.recency, half_life=2.0), [2**-1.5, 2**-1.0, 2**-0.5]),
        (partial(replay.novelty, exponent=2.0), [1 / 4, 1, 1]),
        (partial(replay.advantage, exponent=2.0, floor=0.5), [0.25, 1.0, 1.0]),
        (replay.positives, [0, 0.5, 0.5]),
    ],
)
def test_weights_are_their_formulas(weight, expected):
    rewards = enumerate([(1, 1), (0, 1), (1, 0)])
    buffer = buffer_of(replay.fifo, [experience(n, version=n, rewards=each) for n, each in rewards])
    buffer.sample(1, seed=0)
    assert buffer.version == 3  # the newest completion of the last group
    table = buffer._table
    np.testing.assert_allclose(weight(table.features(table.ids)), expected)


def test_weight_zero_is_never_drawn_and_said():
    """What was not judged counts neither as a difference nor as a success."""
    rewards = ((1.0, 0.0), (1.0, np.nan), (np.nan, np.nan), (1.0, 1.0))
    groups = [experience(n, rewards=one) for n, one in enumerate(rewards)]
    for weight in (partial(replay.advantage, exponent=1.0, floor=0.0), replay.positives):
        buffer = buffer_of(partial(replay.weighted, weight=weight), groups)
        for count in (2, 4):
            with pytest.raises(
                replay.TooFewGroups, match=r"1 can be drawn \(groups of weight 0 cannot\)"
            ):
                buffer.sample(count, seed=0)
        for seed in range(20):
            assert buffer.sample(1, seed=seed).ids.tolist() == [0]
    buffer = replay.ReplayBuffer(
        LAYOUT, replay.BufferLimits(), replay.fifo, refuse_zero_variance=True
    )
    buffer.insert(groups)
    assert len(buffer) == 1
