"""Batches cut by tokens: no row too long, every completion in one part, few shapes and parts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogrpo.data.cutting import cut_by_tokens, pack_cut
from ogrpo.data.packing import real_tokens
from tests.data.test_packing import left_in, lengths, make, prompts


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
def test_little_padding_in_few_shapes(most, padding):
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
