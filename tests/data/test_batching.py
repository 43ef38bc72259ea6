from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.batching import PromptStream, pad_groups
from ogrpo.protocol import Completion, Group
from tests.data.replay.make import versioned

P, T = 5, 6


def group(prompt: int = 3, size: int = 2, length: int = 2) -> Group:
    tokens, log_probs = np.arange(length, dtype=np.int32), np.zeros(length, np.float32)
    done = Completion(tokens, log_probs, 0, 1.0, "stop")
    return Group(np.arange(prompt, dtype=np.int32), (done,) * size)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.integers(1, 3))
def test_padding_loses_nothing_and_pads_to_the_right(numbers, size):
    groups = [one.group for one in versioned(numbers)]
    groups = [replace(one, completions=(one.completions * 2)[:size]) for one in groups]
    rewards = np.arange(len(groups) * size, dtype=np.float32).reshape(-1, size)
    batch = pad_groups(groups, P, T, rewards=rewards)
    for n, group in enumerate(groups):
        assert_row(batch.prompt_ids[n], batch.prompt_mask[n], group.prompt_ids)
        for g, done in enumerate(group.completions):
            mask = batch.completion_mask[n, g]
            assert_row(batch.completion_ids[n, g], mask, done.token_ids)
            assert_row(batch.behavior_log_probs[n, g], mask, done.log_probs)
            assert batch.policy_versions[n, g] == done.policy_version
            assert_row(batch.loss_mask[n, g], mask, done.carries_loss)
    np.testing.assert_array_equal(batch.rewards, rewards)
    n, g = rewards.shape
    assert [(x.shape, x.dtype) for x in batch if x is not None] == [
        ((n, P), np.int32),
        ((n, P), np.bool_),
        *(((n, g, T), dtype) for dtype in (np.int32, np.bool_, np.bool_, np.float32)),
        ((n, g), np.float32),
        ((n, g), np.int32),
    ]


def assert_row(row, mask, expected) -> None:
    np.testing.assert_array_equal(row[: len(expected)], expected)
    np.testing.assert_array_equal(row[len(expected) :], 0)
    np.testing.assert_array_equal(mask, np.arange(len(row)) < len(expected))


@pytest.mark.parametrize(
    ("groups", "rewards", "message"),
    [
        ([group(prompt=6)], (1, 2), "prompt of 6 tokens does not fit in prompt_length 5"),
        ([group(length=7)], (1, 2), r"completion of 7 tokens .* completion_length 6"),
        ([group()], (2,), r"rewards are \(2,\); give \(1, 2\)"),
        ([], (2, 2), r"group sizes are \[\]"),
        ([group(size=2), group(size=3)], (2, 2), r"group sizes are \[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_both_numbers(groups, rewards, message):
    with pytest.raises(ValueError, match=message):
        pad_groups(groups, P, T, rewards=np.zeros(rewards, np.float32))


@given(n_problems=st.integers(1, 20), batch_size=st.integers(1, 45), seed=st.integers(0, 2**32 - 1))
def test_every_epoch_visits_every_problem_once(n_problems, batch_size, seed):
    stream = PromptStream(n_problems, batch_size, seed)
    n_steps = -(-3 * n_problems // batch_size)
    visited = np.concatenate([stream.indices(step) for step in range(n_steps)])
    for epoch in visited[: 3 * n_problems].reshape(3, n_problems):
        np.testing.assert_array_equal(np.sort(epoch), np.arange(n_problems))
