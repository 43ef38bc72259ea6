import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.batching import pad_groups
from ogrpo.data.replay import Experience, Layout, pack, pack_batch
from ogrpo.data.replay.columns import join, keep, pad, unpack
from ogrpo.protocol import Completion, Group
from tests.data.replay.make import LAYOUT, G, check_same, experience, facts

numbers = st.lists(st.integers(0, 40), min_size=1, max_size=5)


def all_facts(experiences):
    return [facts(one) for one in experiences]


@given(numbers)
def test_packing_loses_nothing(chosen):
    given_ = [experience(n, version=n) for n in chosen]
    columns = pack(given_, LAYOUT)
    assert all_facts(unpack(columns)) == all_facts(given_)
    assert columns.token_ids.dtype == columns.prompt_ids.dtype == np.uint16


@given(numbers, st.data())
def test_keeping_some_and_joining(chosen, data):
    given_ = [experience(n) for n in chosen]
    mask = np.array([data.draw(st.booleans()) for _ in chosen])
    columns = pack(given_, LAYOUT)
    parts = [keep(columns, mask), keep(columns, ~mask)]
    some = [one for one, kept in zip(given_, mask, strict=True) if kept]
    rest = [one for one, kept in zip(given_, mask, strict=True) if not kept]
    assert all_facts(unpack(join(parts))) == all_facts(some + rest)


@given(numbers, st.integers(0, 9))
def test_padding_is_that_of_pad_groups(chosen, pad_id):
    given_ = [experience(n, version=n) for n in chosen]
    rewards = np.stack([one.rewards for one in given_])
    expected = pad_groups([one.group for one in given_], 5, 6, rewards=rewards, pad_id=pad_id)
    padded = pad(pack(given_, LAYOUT), 5, 6, pad_id=pad_id)
    check_same(padded, expected)


def batch_arguments(given_):
    done = [one.group.completions for one in given_]
    return {
        "problems": np.array([one.problem for one in given_]),
        "temperatures": np.array([[c.temperature for c in group] for group in done]),
        "finish_reasons": pack(given_, LAYOUT).finish_reasons,
    }


def test_a_padded_batch_packs_to_the_same_columns():
    given_ = [experience(n) for n in (1, 2, 4, 5)]  # without version spans, which a batch lacks
    rewards = np.stack([one.rewards for one in given_])
    batch = pad_groups([one.group for one in given_], 5, 6, rewards=rewards)
    found = pack_batch(batch, LAYOUT, **batch_arguments(given_))
    assert all_facts(unpack(found)) == all_facts(given_)
    wrong = batch_arguments(given_) | {"problems": np.zeros(3, np.int64)}
    with pytest.raises(ValueError, match=r"problems is \(3,\); give \(4,\)"):
        pack_batch(batch, LAYOUT, **wrong)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32)],
)
def test_ids_are_kept_in_the_narrowest_integer(vocab_size, dtype):
    assert Layout(group_size=1, vocab_size=vocab_size).id_dtype == dtype


def test_float16_rounds_by_at_most_half_a_unit_in_the_last_place():
    layout = dataclasses.replace(LAYOUT, log_prob_dtype=np.float16)
    given_ = [experience(n) for n in range(30)]
    exact = pack(given_, LAYOUT).log_probs.astype(np.float64)
    rounded = pack(given_, layout).log_probs
    assert rounded.dtype == np.float16
    error = np.abs(rounded.astype(np.float64) - exact)
    assert (error <= 2.0**-11 * np.abs(exact) + 2.0**-25).all()
    assert error.max() > 0


def changed(**fields) -> Experience:
    one = experience(2)
    completion = dataclasses.replace(one.group.completions[0], **fields)
    return dataclasses.replace(
        one, group=Group(one.group.prompt_ids, (completion, one.group.completions[1]))
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy_version": -1}, "policy_versions go down to -1"),
        (
            {"token_ids": np.array([300], np.int32), "log_probs": np.zeros(1, np.float32)},
            "vocab_size 300",
        ),
        (
            {"token_ids": np.array([-1], np.int32), "log_probs": np.zeros(1, np.float32)},
            "go from -1",
        ),
        (
            {"token_ids": np.array([1], np.int32), "log_probs": np.full(1, -np.inf, np.float32)},
            "log_probs hold -inf",
        ),
    ],
)
def test_bad_completions_are_errors(wrong, message):
    with pytest.raises(ValueError, match=message):
        pack([changed(**wrong)], LAYOUT)


def test_other_bad_input():
    one = experience(1)
    with pytest.raises(ValueError, match=r"rewards are float64 \(2,\); give float32 \[2\]"):
        dataclasses.replace(one, rewards=np.zeros(G))
    with pytest.raises(ValueError, match="rewards hold inf"):
        pack([dataclasses.replace(one, rewards=np.full(G, np.inf, np.float32))], LAYOUT)
    with pytest.raises(ValueError, match="problems go down to -2"):
        pack([dataclasses.replace(one, problem=-2)], LAYOUT)
    with pytest.raises(ValueError, match="2 completions, the buffer's groups have 3"):
        pack([one], dataclasses.replace(LAYOUT, group_size=3))
    far = Completion(np.zeros(1, np.int32), np.full(1, -1e6, np.float32), 0, 1.0, "stop")
    half = Layout(group_size=1, vocab_size=9, log_prob_dtype=np.float16)
    alone = Experience(Group(np.zeros(1, np.int32), (far,)), np.zeros(1, np.float32), 0)
    with pytest.raises(ValueError, match="log_probs hold -inf as float16"):
        pack([alone], half)
    with pytest.raises(ValueError, match="vocab_size is 0"):
        Layout(group_size=1, vocab_size=0)
    with pytest.raises(ValueError, match="log_prob_dtype is"):
        Layout(group_size=1, vocab_size=9, log_prob_dtype=np.float64)  # pyright: ignore[reportArgumentType]
