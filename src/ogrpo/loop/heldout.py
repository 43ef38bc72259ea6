"""What held-out completions earned, as it goes from their judge to the evaluation."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class HeldoutVerdicts(NamedTuple):
    """What held-out completions `[N, G]` earned; NaN where a reward left no verdict."""

    rewards: NDArray[np.float32]
    """The weighted sums; NaN where a reward that counts failed."""
    values: Mapping[str, NDArray[np.float32]]
    """By reward."""
    success: str | None
    """The reward that the task marks as saying right (1) or wrong (0)."""
    unparsable: float | None
    """Share of the answers in which a judge found nothing to compare; None where no reward says."""
    truncated: float
    """Share of the answers that did not end themselves."""
