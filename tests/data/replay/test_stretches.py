from itertools import product

import numpy as np
import pytest

from ogrpo.data.replay.stretches import no_stretches, stretches_by_completion, to_mask, to_stretches

T = 3


@pytest.mark.parametrize("lengths", list(product(range(T + 1), repeat=4)))
def test_every_mask_of_some_completions_comes_back(lengths):
    """Two groups of two completions of up to three tokens, empty ones among them."""
    sizes = np.array(lengths, np.int32).reshape(2, 2)
    tokens = np.arange(T) < sizes[..., None]
    for bits in product([False, True], repeat=min(sum(lengths), 8)):
        given = np.resize(np.array([*bits, True]), sum(lengths))
        stretches = to_stretches(given, sizes)
        assert (stretches.dtype, stretches.shape[1]) == (np.int32, 4)
        found = to_mask(tokens, stretches)
        np.testing.assert_array_equal(found[tokens], given)
        assert not found[~tokens].any()


def test_stretches_are_as_long_as_they_can_be():
    mask = np.array([1, 0, 0, 1, 0, 0, 0, 0, 1], bool)
    found = to_stretches(mask, np.array([[6, 0, 3]], np.int32))
    np.testing.assert_array_equal(found, [[0, 0, 1, 3], [0, 0, 4, 6], [0, 2, 0, 2]])
    by_completion = stretches_by_completion(found)
    assert {place: rows.tolist() for place, rows in by_completion.items()} == {
        (0, 0): [[1, 3], [4, 6]],
        (0, 2): [[0, 2]],
    }


def test_where_all_tokens_carry_loss_nothing_is_kept():
    assert to_stretches(np.ones(7, bool), np.array([[3, 4]], np.int32)).nbytes == 0
    assert no_stretches().shape == (0, 4)
