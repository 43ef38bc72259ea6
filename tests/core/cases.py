"""One batch, small and asymmetric, and the knobs that make each objective's edges bind in it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core.objectives import OBJECTIVES, TokenBatch

SHAPE = (2, 4, 5)  # N, G, T

_CLIP = {"eps_low": 0.15, "eps_high": 0.3}
_RING = {**_CLIP, "outer_low": 0.3, "outer_high": 0.6}
KNOBS: dict[str, dict[str, float]] = {
    "reinforce": {"beta": 0.2},
    "grpo": {**_CLIP, "beta": 0.2},
    "off_policy_grpo": {**_CLIP, "beta": 0.2},
    "decoupled": {**_CLIP, "cap": 1.1, "beta": 0.2},
    "dual_clip": {**_CLIP, "dual": 1.4, "beta": 0.2},
    "two_sided": {**_CLIP, "delta": 1.2, "beta": 0.2},
    "gspo": {"eps_low": 0.05, "eps_high": 0.1, "beta": 0.2},
    "cispo": {"low": 0.8, "high": 1.4, "beta": 0.2},
    "sapo": {"temperature_pos": 1.0, "temperature_neg": 1.3, "beta": 0.2},
    "topr": {},
    "topr_token": {},
    "sppo": {"low": 1 / 1.3, "high": 1.3},
    "gmpo": {"eps_low": 0.2, "eps_high": 0.3, "beta": 0.2},
    "m2po": {"threshold": 0.1, "beta": 0.2},
    "dppo_tv": {"low": 0.06, "high": 0.04, "cap": 1.3, "beta": 0.2},
    "dppo_kl": {"low": 0.02, "high": 0.01, "cap": 1.3, "beta": 0.2},
    "rec_one_side": _CLIP,
    "rec_one_side_is": _CLIP,
    "rec_two_side": _CLIP,
    "rec_two_side_is": _CLIP,
    "rec_ring": _RING,
    "rec_ring_is": _RING,
    "opmd_kimi": {"coef": 0.1},
    "opmd_kimi_sequence": {"tau": 0.1},
    "opmd_min": {"tau": 1.0},
    "opmd_pairwise": {"tau": 0.7},
    "oapl": {"slope": 0.7},
    "dpo": {"tau": 0.7},
    "vespo": {"power_pos": 2.0, "rate_pos": 3.0, "power_neg": 3.0, "rate_neg": 2.0},
    "ctpo": {"eps_low": 0.15, "eps_high": 0.2, "beta": 0.2},
    "prime_rl": {"low": 0.06, "high": 0.04, "coef": 0.3},
    "distill": {"low": 0.05, "coef": 0.3},
    "kl_cov": {"share": 0.2, "coef": 0.7},
    "m2po_released": {"threshold": 0.1, "eps_low": 0.05, "eps_high": 0.1},
    "vtrace": {"decay": 0.9, "ratio_cap": 1.2, "trace_cap": 1.1},
}
NAMES = sorted(KNOBS)


def arrays(seed: int = 0) -> SimpleNamespace:
    """NumPy float64: lp, old, prox, ref, A and mask, the log-ratios up to about one."""
    rng = np.random.default_rng(seed)
    old = -rng.uniform(0.3, 2.5, SHAPE)
    near = [np.minimum(old + rng.normal(0, 0.4, SHAPE), -0.05) for _ in range(3)]
    advantages = np.repeat(rng.normal(0, 1, (*SHAPE[:2], 1)), SHAPE[2], axis=2)
    mask = np.arange(SHAPE[2]) < rng.integers(1, SHAPE[2] + 1, (*SHAPE[:2], 1))
    mask[0, 0], mask[1, 2] = True, False
    return SimpleNamespace(lp=near[0], old=old, prox=near[1], ref=near[2], A=advantages, mask=mask)


def batch_of(a: SimpleNamespace, dtype: jax.typing.DTypeLike = float) -> TokenBatch:
    fields = [jnp.asarray(x, dtype) for x in (a.A, a.old, a.prox, a.ref)]
    return TokenBatch(fields[0], jnp.asarray(a.mask), *fields[1:])


@jax.jit
def _cotangent(seed: jax.Array) -> jax.Array:
    return jax.random.uniform(jax.random.key(seed), SHAPE, float, 0.5, 1.5)


def value_and_grad(name: str):
    """Jitted `(log_probs, batch, knobs, cotangent) -> (values, gradient)`, compiled once."""
    if name not in _COMPILED:

        def run(log_probs, batch, knobs, cotangent):
            values, back = jax.vjp(lambda x: OBJECTIVES[name](x, batch, **knobs), log_probs)
            return values, back(cotangent)[0]

        _COMPILED[name] = jax.jit(run)
    return _COMPILED[name]


_COMPILED: dict = {}
