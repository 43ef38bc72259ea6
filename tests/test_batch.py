import numpy as np
import pytest

from ogrpo.batch import Batch, Packing, take, tokens_only
from ogrpo.data.packing import arrange, pack

N, G, P, T = 3, 2, 4, 5


def make_batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        prompt_ids=rng.integers(1, 9, (N, P)).astype(np.int32),
        prompt_mask=np.arange(P) < rng.integers(1, P + 1, N)[:, None],
        completion_ids=rng.integers(1, 9, (N, G, T)).astype(np.int32),
        completion_mask=np.arange(T) < rng.integers(0, T + 1, (N, G, 1)),
        loss_mask=rng.random((N, G, T)) < 0.5,
        behavior_log_probs=rng.normal(size=(N, G, T)).astype(np.float32),
        rewards=rng.random((N, G)).astype(np.float32),
        policy_versions=rng.integers(0, 9, (N, G)).astype(np.int32),
        ref_log_probs=rng.normal(size=(N, G, T)).astype(np.float32),
    )


def test_groups_are_taken_from_every_array_and_what_is_none_stays_so():
    batch, order = make_batch(), np.array([2, 0])
    taken = take(batch, order)
    absent = {"proximal_log_probs", "step_rewards", "step_ends", "values", "packing"}
    assert all(getattr(taken, name) is None for name in absent)
    for name in set(Batch._fields) - absent:
        np.testing.assert_array_equal(getattr(taken, name), getattr(batch, name)[order])


def test_no_groups_are_taken_from_a_packed_batch():
    batch, wanted = make_batch(), np.ones(N, bool)
    order, shape = arrange(batch, wanted, microbatches=1)
    packing = pack(take(batch, order), wanted, shape)
    assert isinstance(packing, Packing)
    with pytest.raises(ValueError, match="take them, then pack them"):
        take(batch._replace(packing=packing), order)


def test_tokens_that_are_active_are_both_there_and_to_be_learned_from():
    batch = make_batch()
    for at in np.ndindex(N, G, T):
        assert batch.active_mask[at] == (batch.completion_mask[at] and batch.loss_mask[at])
    assert 0 < batch.active_mask.sum() < batch.completion_mask.sum()


def test_a_batch_of_tokens_alone_learns_from_all_of_them():
    batch = make_batch()
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    bare = tokens_only(**{name: getattr(batch, name) for name in names})
    np.testing.assert_array_equal(bare.active_mask, batch.completion_mask)
    for name in Batch._fields[:8]:
        found, like = getattr(bare, name), getattr(batch, name)
        assert (found.shape, found.dtype) == (like.shape, like.dtype), name
    assert not bare.rewards.any()
    assert not bare.behavior_log_probs.any()
