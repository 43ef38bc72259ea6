"""Where false rewards go: the share of a method's advantages on completions judged wrongly."""

from math import comb

import jax
import jax.numpy as jnp
import numpy as np

from experiments.grid.tuned import brief, changed
from experiments.rec.methods import METHODS
from ogrpo.config.method import algorithm, knobs


def weights(name: str, size: int) -> np.ndarray:
    """Sum of |advantage| over failures and over successes as judged, [size + 1, 2].

    Row m is of a group that is judged to have m successes; which failures a method drops is drawn,
    and how many it drops is not.
    """
    config = changed(brief(), METHODS[name])
    judged = jnp.tril(jnp.ones((size + 1, size)), -1)
    found = algorithm(config).credit(judged, knobs(config), jax.random.key(0))
    sizes = np.abs(np.asarray(found, np.float64))
    success = np.asarray(judged) > 0
    return np.stack([(sizes * ~success).sum(1), (sizes * success).sum(1)], axis=1)


def false_share(name: str, success: float, flip: float, size: int = 8) -> float:
    """Expected |advantage| on wrongly judged completions, over that on all of them.

    Args:
      name: of the method.
      success: chance p that a completion is right.
      flip: chance f that it is judged the other way round.
      size: completions in a group; each judged success is false with chance (1 - p) f / q, each
        judged failure with p f / (1 - q), where q = p (1 - f) + (1 - p) f.
    """
    judged = success * (1 - flip) + (1 - success) * flip
    chance = [comb(size, m) * judged**m * (1 - judged) ** (size - m) for m in range(size + 1)]
    failures, successes = chance @ weights(name, size)
    false = failures * success * flip / (1 - judged) + successes * (1 - success) * flip / judged
    return float(false / (failures + successes))
