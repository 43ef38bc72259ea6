import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogrpo.data.replay.sumtree import SumTree

SIZE = 16
weights = st.lists(st.integers(0, 1000), min_size=SIZE, max_size=SIZE)
places = st.lists(st.integers(0, SIZE - 1), min_size=1, unique=True)


def naive(values: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(values), targets, side="right")


@given(weights, st.lists(st.tuples(places, st.integers(0, 50)), max_size=5))
def test_finds_what_the_running_sum_finds(start, changes):
    """Integers add up exactly, so the two must agree on every target."""
    tree, values = SumTree(SIZE), np.array(start, np.float64)
    tree.set(np.arange(SIZE), values)
    for where, value in changes:
        values[where] = value
        tree.set(np.array(where), values[where])
    targets = np.arange(0, values.sum(), 0.5)
    np.testing.assert_array_equal(tree.find(targets), naive(values, targets))
    assert tree.total == values.sum()
    np.testing.assert_array_equal(tree.weights(np.arange(SIZE)), values)


@given(st.permutations(range(SIZE)), st.integers(0, 2**31))
def test_the_order_of_setting_leaves_no_trace(order, seed):
    values = np.random.default_rng(seed).exponential(size=SIZE)
    one, other = SumTree(SIZE), SumTree(SIZE)
    one.set(np.arange(SIZE), values)
    for place in order:
        other.set(np.array([place]), values[[place]])
    assert one.total == other.total
    targets = np.linspace(0, one.total, 99)
    np.testing.assert_array_equal(one.find(targets), other.find(targets))


def test_never_lands_on_weight_zero_even_where_rounding_overshoots():
    tree = SumTree(8)
    values = np.array([0, 0.1, 0, 0.2, 0.3, 0, 1e-30, 0])
    tree.set(np.arange(8), values)
    over = np.array([0, tree.total, np.nextafter(tree.total, 9), 2 * tree.total])
    assert (values[tree.find(over)] > 0).all()


def test_one_place_and_wrong_sizes():
    tree = SumTree(1)
    tree.set(np.array([0]), np.array([2.0]))
    assert tree.find(np.array([1.5])).tolist() == [0]
    for size in (0, 3):
        with pytest.raises(ValueError, match=f"size is {size}"):
            SumTree(size)
