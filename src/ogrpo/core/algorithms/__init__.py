"""Whole methods: loss, advantage, reduction, what they read, and their published settings.

    advantage(rewards) -> loss(log_probs, batch) + beta KL -> reduction -> (total, count)

What a trainer scores, copies or skips follows from `Algorithm.inputs`. `ALGORITHMS` names those of
the literature; `with_parts` exchanges a part, and `Algorithm.title` says so. One of your own needs
no registration:

    Algorithm("mine", loss=my_loss, advantage=centered, reduction=token_total)
"""

from ogrpo.core.algorithms.base import (
    ADVANTAGE,
    BEHAVIOR,
    CRITIC,
    ENTROPY,
    KEY,
    LENGTHS,
    LOSS,
    PROXIMAL,
    REDUCTION,
    REFERENCE,
    STEPS,
    UNIFORMS,
    VALUES,
    Advantage,
    Algorithm,
    Knob,
    LooksAt,
    at_tokens,
)
from ogrpo.core.algorithms.catalogue import ALGORITHMS, GROUPS
from ogrpo.core.algorithms.parts import (
    ADVANTAGES,
    CENTERS,
    GATES,
    KLS,
    REDUCTION_KNOBS,
    REDUCTIONS,
    WEIGHTS,
    with_parts,
)
