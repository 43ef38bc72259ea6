"""What `ablation` compares: settings of Algorithm 1, each one a change of the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dials:
    """Algorithm 1's dials as the paper's section 5.1 has them, but for what is given."""

    v: int = 1
    i: int = 1
    beta: float = 0.1
    swaps: int = 3
    """S: how often the reference is replaced, at equal distances."""
    masked: bool = False
    exact: bool = False
    """Clip around pi_k/mu, as equation 6 is written, and not around 1."""
    resets: bool = False
    """Begin each stage with a fresh optimizer."""

    def changes(self) -> Mapping[str, Any]:
        """The options that say so."""
        stages = {"stages": self.swaps + 1, "reset_optimizer": self.resets}
        return {
            "schedule": {"sync_interval": self.v, "updates_per_batch": self.i, **stages},
            "knobs": {"beta": self.beta},
            "override": {
                "mask_zero_variance": self.masked,
                "center": "exact" if self.exact else "unit",
            },
        }


METHODS: dict[str, Dials] = {
    "v1-i1": Dials(),
    "v1-i1 masked": Dials(masked=True),
    "v10-i1": Dials(v=10),
    "v1-i10": Dials(i=10, swaps=0),
    "v10-i1 masked": Dials(v=10, masked=True),
    "v10-i1 without swaps": Dials(v=10, swaps=0),
    "v10-i1 with resets": Dials(v=10, resets=True),
    "v10-i1 beta 0": Dials(v=10, beta=0.0, swaps=0),
    "v10-i1 beta .01": Dials(v=10, beta=0.01),
    "v10-i1 beta 1": Dials(v=10, beta=1.0),
    "v1-i4": Dials(i=4),
    "v1-i4 exact": Dials(i=4, exact=True),
    "v10-i4": Dials(v=10, i=4),
    "v10-i4 exact": Dials(v=10, i=4, exact=True),
    "v5-i1": Dials(v=5),
    "v20-i1": Dials(v=20),
}

PAPER = ("v1-i1", "v1-i1 masked", "v10-i1", "v1-i10")
"""Table 1."""
STAGES = ("v10-i1", "v10-i1 without swaps", "v10-i1 with resets", "v10-i1 masked")
PENALTIES = ("v10-i1 beta 0", "v10-i1 beta .01", "v10-i1", "v10-i1 beta 1")
CENTERS = ("v1-i4", "v1-i4 exact", "v10-i4", "v10-i4 exact")
INTERVALS = ("v1-i1", "v5-i1", "v10-i1", "v20-i1")
