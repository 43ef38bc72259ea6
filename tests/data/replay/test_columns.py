from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.batching import pad_groups
from ogrpo.data.replay import Experience, Layout, pack
from ogrpo.data.replay.columns import join, keep, pad, to_mask, to_stretches
from ogrpo.protocol import Completion, Group
from tests.data.replay.make import LAYOUT, G, contents, expected, versioned

numbers = st.lists(st.integers(0, 40), min_size=1, max_size=5)
T = 3


@given(numbers, st.data())
def test_packing_keeping_some_and_joining_lose_nothing(numbers, data):
    mask = np.array([data.draw(st.booleans()) for _ in numbers])
    columns = pack(versioned(numbers), LAYOUT)
    assert contents(columns) == expected(numbers)
    assert columns.token_ids.dtype == columns.prompt_ids.dtype == np.uint16
    parts = [keep(columns, mask), keep(columns, ~mask)]
    order = [n for kept in (True, False) for n, m in zip(numbers, mask, strict=True) if m == kept]
    assert contents(join(parts)) == expected(order)


@given(numbers)
def test_padding_is_that_of_pad_groups(numbers):
    groups = versioned(numbers)
    rewards = np.stack([one.rewards for one in groups])
    batch = pad_groups([one.group for one in groups], 5, 6, rewards=rewards)
    padded = pad(pack(groups, LAYOUT), 5, 6)
    for name, array, other in zip(batch._fields, padded, batch, strict=True):
        np.testing.assert_array_equal(array, other, name, strict=True)


def one_token(token=1, log_prob=0.0, version=0) -> Completion:
    return Completion(
        np.array([token], np.int32), np.array([log_prob], np.float32), version, 1.0, "stop"
    )


def packed(completion=None, *, layout=LAYOUT, **changes):
    group = Group(np.ones(1, np.int32), (completion or one_token(),) * G)
    pack([replace(Experience(group, np.zeros(G, np.float32), 0), **changes)], layout)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: packed(one_token(version=-2)), "versions go down to -2; .* from -1"),
        (lambda: packed(one_token(token=300)), "vocab_size 300"),
        (lambda: packed(one_token(token=-1)), "go from -1"),
        (lambda: packed(one_token(log_prob=-np.inf)), "log_probs hold -inf as float32"),
        (lambda: packed(layout=replace(LAYOUT, group_size=3)), "2 completions, .* groups have 3"),
        (lambda: packed(rewards=np.zeros(G)), r"float64 \(2,\); give float32 \[2"),
        (lambda: packed(rewards=np.full(G, np.inf, np.float32)), "rewards hold inf"),
        (lambda: packed(problem=-2), "problems go down to -2"),
        (lambda: Layout(group_size=1, vocab_size=0), "vocab_size is 0"),
    ],
)
def test_bad_values_are_errors(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_every_loss_mask_comes_back_from_its_stretches():
    """Two groups of two completions of up to three tokens, empty ones among them."""
    for lengths in product(range(T + 1), repeat=4):
        sizes = np.array(lengths, np.int32).reshape(2, 2)
        tokens = np.arange(T) < sizes[..., None]
        for bits in product([False, True], repeat=min(sum(lengths), 8)):
            mask = np.resize(np.array([*bits, True]), sum(lengths))
            stretches = to_stretches(mask, sizes)
            assert (stretches.dtype, stretches.shape[1]) == (np.int32, 4)
            padded = to_mask(tokens, stretches)
            assert (padded[tokens] == mask).all()
            assert not padded[~tokens].any()
