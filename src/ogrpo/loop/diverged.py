"""Updates that were skipped as they would not have been finite, and the end of a run of them."""

from typing import NamedTuple

import jax

from ogrpo.batch import Batch
from ogrpo.learner.state import Hypers


class DivergedError(RuntimeError):
    """More updates in a row were skipped than may be; the weights are those before them."""


class Skipped(NamedTuple):
    """An update that was not taken."""

    step: int
    draw: int
    iteration: int
    batch: Batch[jax.Array]
    hypers: Hypers
    metrics: dict[str, float]
