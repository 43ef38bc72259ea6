"""The generic loss and its named presets: `f(log_probs, batch, *, knobs) -> loss per token`.

    ratio -> surrogate -> weight -> + beta * KL

Presets bind the functions and carry the literature's defaults. Nothing is reduced here, and no
advantage is computed: `ogrpo.core.algorithms` has the whole methods. A loss of whole sequences is
spread over their tokens so that the reduction of its paper restores it.

Every ratio is over `behavior_log_probs`. For the trainer's own start of the update instead, use
`decoupled` or `batch._replace(behavior_log_probs=batch.proximal_log_probs)`.
"""

from collections.abc import Callable

import jax

from ogrpo.core.objectives.base import (
    LogRatioFn,
    TokenBatch,
    WeightFn,
    drift,
    exact_center,
    from_proximal,
    gated,
    masked_batch,
    own_weights,
    per_sequence,
    scored,
    token_loss,
    unit_center,
)
from ogrpo.core.objectives.clipped import (
    ctpo,
    decoupled,
    dual_clip,
    gmpo,
    grpo,
    gspo,
    off_policy_grpo,
    sapo,
    two_sided,
)
from ogrpo.core.objectives.divergence import (
    distill,
    dppo_kl,
    dppo_tv,
    kl_cov,
    m2po,
    m2po_released,
    prime_rl,
)
from ogrpo.core.objectives.preference import dpo, preference_loss
from ogrpo.core.objectives.regression import (
    group_regression,
    oapl,
    opmd_kimi,
    opmd_kimi_sequence,
    opmd_min,
    opmd_pairwise,
)
from ogrpo.core.objectives.score import (
    cispo,
    rec_one_side,
    rec_one_side_is,
    rec_ring,
    rec_ring_is,
    rec_two_side,
    rec_two_side_is,
    reinforce,
    sppo,
    topr,
    topr_token,
    vespo,
    vtrace,
)
from ogrpo.core.surrogates import Scalar

OBJECTIVES: dict[str, Callable[..., jax.Array]] = {
    fn.__name__: fn
    for fn in (
        reinforce,
        grpo,
        off_policy_grpo,
        decoupled,
        dual_clip,
        two_sided,
        gspo,
        cispo,
        sapo,
        topr,
        topr_token,
        sppo,
        gmpo,
        m2po,
        dppo_tv,
        dppo_kl,
        rec_one_side,
        rec_one_side_is,
        rec_two_side,
        rec_two_side_is,
        rec_ring,
        rec_ring_is,
        opmd_kimi,
        opmd_kimi_sequence,
        opmd_min,
        opmd_pairwise,
        oapl,
        dpo,
        vespo,
        vtrace,
        ctpo,
        prime_rl,
        distill,
        kl_cov,
        m2po_released,
    )
}
"""Name -> `f(log_probs, batch, *, knobs)`: the losses per token."""
