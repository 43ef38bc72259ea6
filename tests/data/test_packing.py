"""Packing puts every token in one place, cut by tokens too, with little padding and few shapes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogrpo.batch import Batch, take
from ogrpo.data.cutting import cut_by_tokens, pack_cut
from ogrpo.data.packing import LEAST_BLOCK, arrange, balanced, bucket, pack, real_tokens


def make(prompts, lengths, p, t, seed=0, vocab=99) -> Batch:
    rng = np.random.default_rng(seed)
    prompts, lengths = np.asarray(prompts), np.asarray(lengths)
    n, g = lengths.shape
    mask = np.arange(t) < lengths[..., None]
    return Batch(
        prompt_ids=rng.integers(1, vocab, (n, p)).astype(np.int32),
        prompt_mask=np.arange(p) < prompts[:, None],
        completion_ids=rng.integers(1, vocab, (n, g, t)).astype(np.int32),
        completion_mask=mask,
        loss_mask=mask,
        behavior_log_probs=np.zeros((n, g, t), np.float32),
        rewards=np.zeros((n, g), np.float32),
        policy_versions=np.zeros((n, g), np.int32),
    )


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.sampled_from([1, 2, 4, 8]))
def test_a_bucket_is_the_next_above_and_not_far(size, more, per_octave):
    full = size + more
    up = bucket(size, per_octave, full)
    assert size <= up <= min(full, max(size, full / 4) * (1 / per_octave) + size)
    assert bucket(up, per_octave, full) == up
    if up < full:
        assert bucket(size + 1, per_octave, full) in {up, bucket(up + 1, per_octave, full)}


@given(st.lists(st.integers(0, 1000), min_size=12, max_size=12), st.sampled_from([1, 2, 3, 4, 6]))
def test_balanced_parts_hold_each_group_once(tokens, parts):
    tokens = np.array(tokens)
    order = balanced(tokens, parts)
    assert sorted(order) == list(range(12))
    loads = tokens[order].reshape(parts, -1).sum(axis=1)
    assert loads.max() <= tokens.sum() / parts + tokens.max()


def lengths(members):
    size = 6 * members
    each = st.lists(st.integers(0, 40), min_size=size, max_size=size)
    return each.map(lambda x: np.reshape(x, (6, members)))


prompts = st.lists(st.integers(1, 5), min_size=6, max_size=6)
left_in = st.lists(st.booleans(), min_size=6, max_size=6).map(np.array)


@settings(max_examples=60)
@given(prompts, lengths(2), left_in, st.sampled_from([1, 2, 3, 6]))
def test_every_token_has_one_place_and_every_place_its_token(
    prompts, lengths, included, microbatches
):
    groups = make(prompts, lengths, 5, 40)
    order, shape = arrange(groups, included, microbatches=microbatches)
    groups, included = take(groups, order), included[order]
    packed = pack(groups, included, shape)
    size = 6 // shape.parts
    for part in range(shape.parts):
        rows = range(part * size, part * size + size)
        kept = [row for row in rows if included[row]]
        ids, at = packed.token_ids[part], packed.positions[part]
        slots = packed.completion_slots[part].reshape(shape.groups, 2, -1)
        seen = []
        for a, row in enumerate(kept):
            start = groups.prompt_mask[row].sum()
            places = packed.prompt_slots[part, a][:start]
            np.testing.assert_array_equal(ids[places], groups.prompt_ids[row, :start])
            np.testing.assert_array_equal(at[places], np.arange(start))
            assert packed.last[part, a] == places[-1]
            seen.extend(places)
            for member in range(2):
                length = groups.completion_mask[row, member].sum()
                tokens = groups.completion_ids[row, member, :length]
                places = slots[a, member, :length]
                np.testing.assert_array_equal(ids[places], tokens)
                np.testing.assert_array_equal(at[places], start + np.arange(length))
                np.testing.assert_array_equal(packed.targets[part, places[:-1]], tokens[1:])
                seen.extend(places)
                answers = packed.answers[part, row - rows[0], member]
                firsts = shape.groups * 2
                expected = [a * 2 + member, *(firsts + places[:-1])][:length]
                np.testing.assert_array_equal(answers[:length], expected)
                assert np.all(answers[length:] == firsts + shape.predictors)
        real = groups.prompt_mask[kept].sum() + groups.completion_mask[kept].sum()
        assert len(set(seen)) == len(seen) == real
        assert np.all(packed.prompt_slots[part, len(kept) :] == shape.row)
        check_blocks(packed, part, shape)
        for row in set(rows) - set(kept):
            nowhere = shape.groups * 2 + shape.predictors
            assert np.all(packed.answers[part, row - rows[0]] == nowhere)


def check_blocks(packed, part, shape):
    """Blocks hold the completions' places again, and the way back leads where they came from."""
    for slots, back in (
        (packed.completion_slots[part], packed.key_slots[part]),
        (packed.block_slots[part], packed.query_slots[part]),
    ):
        flat = np.concatenate([packed.prompt_slots[part].ravel(), slots.ravel()])
        real = np.flatnonzero(flat < shape.row)
        np.testing.assert_array_equal(back[flat[real]], real)
        assert np.sum(back < flat.size) == len(real)
    for block, owner, start in zip(
        packed.block_slots[part], packed.block_owners[part], packed.block_starts[part], strict=True
    ):
        there = block < shape.row
        places = packed.completion_slots[part, owner, start : start + len(block)]
        np.testing.assert_array_equal(block[there], places[places < shape.row][: there.sum()])


def test_parts_that_are_computed_together_come_in_multiples():
    long, short = (make([4] * 8, np.full((8, 2), size), 4, 64) for size in (64, 20))
    everything = np.ones(8, bool)
    for groups, parts in ((long, 8), (short, 4)):
        assert arrange(groups, everything, microbatches=8, together=2)[1].parts == parts
        assert arrange(groups, everything, microbatches=8, together=8)[1].parts == 8
    assert arrange(short, everything, microbatches=2, together=2)[1].parts == 2
    with pytest.raises(ValueError, match="8 microbatches cannot be computed 3 at a time"):
        arrange(long, everything, microbatches=8, together=3)


@pytest.mark.parametrize("n", [8, 32])
def test_little_padding_in_few_shapes_on_log_normal_lengths(n):
    """Of the moments of GSM8K's questions and answers under a BPE of 8,192 tokens."""
    rng = np.random.default_rng(n)
    questions, answers = (
        np.exp(rng.normal(mean, deviation, 5000)).astype(int) + 1
        for mean, deviation in ((3.97, 0.37), (4.46, 0.43))
    )
    shares, shapes = [], set()
    for _ in range(200):  # 8 completions each, about as long as the question's answer
        rows = rng.integers(0, len(questions), n)
        noise = np.exp(0.25 * rng.normal(size=(n, 8)))
        lengths = np.clip(np.ceil(answers[rows][:, None] * noise), 1, 256).astype(int)
        groups = make(np.minimum(questions[rows], 256), lengths, 256, 256)
        included = np.ones(n, bool)
        shape = arrange(groups, included, microbatches=1)[1]
        assert shape.row <= n * (256 + 8 * 256)
        shares.append(1 - real_tokens(groups, included) / shape.tokens)
        shapes.add(shape)
    assert np.mean(shares) <= 0.10
    assert len(shapes) <= 40
    assert all(shape.block >= LEAST_BLOCK for shape in shapes)


@settings(max_examples=60)
@given(prompts, lengths(3), left_in, st.integers(45, 400), st.sampled_from([1, 2, 3]))
def test_every_completion_has_one_part_and_no_row_is_too_long(
    prompts, lengths, included, most, together
):
    groups = make(prompts, lengths, 5, 40)
    cut = cut_by_tokens(groups, included, most=most, together=together)
    assert cut.shape.row <= most
    assert cut.shape.parts % together == 0
    counted = np.zeros((7, 3), int)
    np.add.at(counted, cut.groups, cut.here)
    np.testing.assert_array_equal(counted[:6], (lengths > 0) & included[:, None])
    assert not counted[6].any()
    packing = pack_cut(groups, cut)
    for part, places in enumerate(cut.groups):
        kept = places[places < 6]
        assert len(set(kept)) == len(kept)  # a prompt is in a part once
        for place, group in enumerate(kept):
            for member in np.flatnonzero(cut.here[part, place]):
                slots = packing.completion_slots[part, place * 3 + member][: lengths[group, member]]
                tokens = groups.completion_ids[group, member, : lengths[group, member]]
                np.testing.assert_array_equal(packing.token_ids[part, slots], tokens)
                at = prompts[group] + np.arange(len(tokens))
                np.testing.assert_array_equal(packing.positions[part, slots], at)


@pytest.mark.parametrize(("most", "padding"), [(2048, 0.26), (4096, 0.17), (16384, 0.07)])
def test_rows_cut_by_tokens_have_little_padding_in_few_shapes(most, padding):
    """Log-normal lengths of up to 1,024 tokens, of mean 400."""
    shares, shapes = [], set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = np.clip(np.exp(rng.normal(5.8, 0.6, (16, 8))), 1, 1024).astype(int)
        groups, included = make(rng.integers(60, 200, 16), lengths, 256, 1024), np.ones(16, bool)
        shape = cut_by_tokens(groups, included, most=most).shape
        shares.append(1 - real_tokens(groups, included) / shape.tokens)
        shapes.add(shape)
    assert np.mean(shares) <= padding  # repeated prompts included
    assert len(shapes) <= 20


def test_a_completion_that_fits_nowhere_is_named_with_the_remedy():
    groups = make([4, 2], [[9, 3], [30, 0]], 4, 32)
    with pytest.raises(ValueError, match=r"completion 0 of group 1 has 30 tokens.*at least 34"):
        cut_by_tokens(groups, np.ones(2, bool), most=33)
    cut_by_tokens(groups, np.ones(2, bool), most=34)
    cut_by_tokens(make([2, 2, 2], [[8], [0], [1]], 2, 8), np.ones(3, bool), most=10)
    single = make([4, 2], [[1, 1], [1, 0]], 4, 32)
    with pytest.raises(ValueError, match="at least 6"):
        cut_by_tokens(single, np.ones(2, bool), most=5)
    cut_by_tokens(single, np.ones(2, bool), most=6)
