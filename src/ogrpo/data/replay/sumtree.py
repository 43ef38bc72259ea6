"""Weighted draws in O(log n): a binary tree whose nodes hold the sum of their two children."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]


class SumTree:
    """Non-negative float64 weights at places `0 .. size - 1`; `size` is a power of two.

    Node 1 is the root, node `k` has the children `2k` and `2k + 1`, place `p` is node `size + p`.
    Each inner node is the rounded sum of its children and nothing else, so that the tree is a
    function of its weights, whatever the order in which they were set.
    """

    def __init__(self, size: int) -> None:
        if size < 1 or size & (size - 1):
            raise ValueError(f"size is {size}; give a power of two.")
        self.size = size
        self._nodes = np.zeros(2 * size, np.float64)

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return float(self._nodes[1])

    def weights(self, places: Places) -> FloatArray:
        """Return the weights at `places`."""
        return self._nodes[self.size + places]

    def set(self, places: Places, weights: FloatArray) -> None:
        """Set the weights at distinct `places`: O(k log n) for few of them, O(n) for many."""
        self._nodes[self.size + places] = weights
        if len(places) * self.size.bit_length() > self.size:
            self._sum_all()
        else:
            self._sum_above(self.size + places)

    def find(self, targets: FloatArray) -> Places:
        """Return, for targets in [0, total), the place at which the running sum first exceeds each.

        A place of weight 0 is never returned, whatever the rounding.
        """
        nodes, targets = np.ones(len(targets), np.int64), targets.copy()
        for _ in range(self.size.bit_length() - 1):
            left = self._nodes[2 * nodes]
            right = (targets >= left) & (self._nodes[2 * nodes + 1] > 0)
            targets -= np.where(right, left, 0)
            nodes = 2 * nodes + right
        return nodes - self.size

    def _sum_above(self, nodes: Places) -> None:
        for _ in range(self.size.bit_length() - 1):
            nodes = nodes >> 1
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def _sum_all(self) -> None:
        width = self.size
        while width > 1:
            level = self._nodes[width : 2 * width]
            width //= 2
            self._nodes[width : 2 * width] = level[::2] + level[1::2]
