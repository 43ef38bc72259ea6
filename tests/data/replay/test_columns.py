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
from tests.data.replay.make import (
    LAYOUT,
    G,
    check_same,
    contents,
    expected,
    experience,
    versioned,
)

numbers = st.lists(st.integers(0, 40), min_size=1, max_size=5)
T = 3


@given(numbers)
def test_packing_loses_nothing(numbers):
    columns = pack(versioned(numbers), LAYOUT)
    assert contents(columns) == expected(numbers)
    assert columns.token_ids.dtype == columns.prompt_ids.dtype == np.uint16


@given(numbers, st.data())
def test_keeping_some_and_joining(numbers, data):
    mask = np.array([data.draw(st.booleans()) for _ in numbers])
    columns = pack(versioned(numbers), LAYOUT)
    parts = [keep(columns, mask), keep(columns, ~mask)]
    order = [n for kept in (True, False) for n, m in zip(numbers, mask, strict=True) if m == kept]
    assert contents(join(parts)) == expected(order)


@given(numbers, st.integers(0, 9))
def test_padding_is_that_of_pad_groups(numbers, pad_id):
    groups = versioned(numbers)
    rewards = np.stack([one.rewards for one in groups])
    batch = pad_groups([one.group for one in groups], 5, 6, rewards=rewards, pad_id=pad_id)
    check_same(pad(pack(groups, LAYOUT), 5, 6, pad_id=pad_id), batch)


def one_token(token=1, log_prob=0.0, version=0) -> Completion:
    return Completion(
        np.array([token], np.int32), np.array([log_prob], np.float32), version, 1.0, "stop"
    )


@pytest.mark.parametrize(
    ("completion", "changes", "message"),
    [
        (one_token(version=-2), {}, "policy_versions go down to -2; they count from -1"),
        (one_token(token=300), {}, "vocab_size 300"),
        (one_token(token=-1), {}, "go from -1"),
        (one_token(log_prob=-np.inf), {}, "log_probs hold -inf as float32"),
        (one_token(), {"group_size": 3}, "2 completions, the buffer's groups have 3"),
    ],
)
def test_bad_completions_are_errors(completion, changes, message):
    group = Group(np.ones(1, np.int32), (completion,) * G)
    groups = [Experience(group, np.zeros(G, np.float32), 0)]
    with pytest.raises(ValueError, match=message):
        pack(groups, replace(LAYOUT, **changes))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: replace(experience(1), rewards=np.zeros(G)), r"float64 \(2,\); give float32 \[2"),
        (
            lambda: pack([replace(experience(1), rewards=np.full(G, np.inf, np.float32))], LAYOUT),
            "rewards hold inf",
        ),
        (lambda: pack([replace(experience(1), problem=-2)], LAYOUT), "problems go down to -2"),
        (lambda: Layout(group_size=1, vocab_size=0), "vocab_size is 0"),
    ],
)
def test_other_bad_values_are_errors(act, message):
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
