"""Losses per token: the generic one, what it takes, and the literature's named ones.

    ratio -> surrogate -> weight -> + beta * KL

Every named loss is `f(log_probs, batch, *, knobs) -> [..., T]`, with the literature's values as
defaults: 0 with zero gradient where masked, and a ValueError for shapes that differ, a mask that is
not bool, or a negative knob. Nothing is reduced here, and no advantage is computed:
`ogrpo.core.algorithms` has the whole methods. A loss of whole sequences is spread over their tokens
so that the reduction of its paper restores it. A KL term to the reference is `token_loss`'s, or the
method's (`Algorithm.kl_loss`): the named losses have none.

Every ratio is over `behavior_log_probs`. For the trainer's own start of the update instead, use
`decoupled` or `batch._replace(behavior_log_probs=batch.proximal_log_probs)`.
"""

from collections.abc import Callable

import jax

from ogrpo.core.objectives import clipped, divergent, regression, score
from ogrpo.core.objectives.base import *  # noqa: F403
from ogrpo.core.objectives.clipped import *  # noqa: F403
from ogrpo.core.objectives.divergent import *  # noqa: F403
from ogrpo.core.objectives.regression import *  # noqa: F403
from ogrpo.core.objectives.regression import group_regression as group_regression
from ogrpo.core.objectives.score import *  # noqa: F403

OBJECTIVES: dict[str, Callable[..., jax.Array]] = {
    name: getattr(family, name)
    for family in (score, clipped, divergent, regression)
    for name in family.__all__
}
"""Name -> `f(log_probs, batch, *, knobs)`: the losses per token, as each family lists its own."""
