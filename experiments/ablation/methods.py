"""What `ablation` compares: settings of Algorithm 1, each one a change of the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from experiments.grid.verdicts import claim


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

CLAIMS = (
    claim("Table 1: v10-i1 does as well as v1-i1", "v10-i1", "not below", "v1-i1"),
    claim("Table 1: v10-i1 does better than v1-i1", "v10-i1", "above", "v1-i1"),
    claim("Table 1: masking helps at v = 1", "v1-i1 masked", "above", "v1-i1"),
    claim("Table 1: masking helps at v = 10", "v10-i1 masked", "above", "v10-i1"),
    claim("ten updates a batch gain", "v1-i10", "above", "v1-i1"),
    claim("5.1: swaps of the reference help", "v10-i1", "above", "v10-i1 without swaps"),
    claim("a fresh optimizer at each swap costs", "v10-i1 with resets", "below", "v10-i1"),
    claim("the KL term helps, beta .1 for 0", "v10-i1", "above", "v10-i1 beta 0"),
    claim("the KL term costs, beta 1 for .1", "v10-i1 beta 1", "below", "v10-i1"),
    claim(
        "eq. 6: the exact centre gains on stale samples, four updates a batch",
        *("v10-i4 exact", "above", "v10-i4"),
    ),
    claim("renewing the server every 5 steps costs nothing", "v5-i1", "not below", "v1-i1"),
    claim("renewing it every 20 steps costs nothing", "v20-i1", "not below", "v1-i1"),
)
"""What the rows decide of arXiv:2505.22257, and of the dials beside it."""
