"""Adapters on their way to a server: what a release of them says beside its tensors."""

from typing import Any, NamedTuple

from ogrpo.rollout.weights.tensors import Tensors


class AdapterTensors(NamedTuple):
    """Low-rank adapters as PEFT names them.

    Attributes:
        tensors: A `[rank, in]` and B `[out, rank]` of each projection of each layer.
        rank: r.
        alpha: a projection is W + alpha / rank B A.
        targets: the projections' names.
    """

    tensors: Tensors
    rank: int
    alpha: float
    targets: tuple[str, ...]

    @property
    def about(self) -> dict[str, Any]:
        """What the manifest says."""
        return {"rank": self.rank, "alpha": self.alpha, "targets": [*self.targets]}
