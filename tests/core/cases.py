"""One batch, small and asymmetric, and what several tests compute of one."""

from itertools import combinations
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core.objectives import TokenBatch

SHAPE = (2, 4, 5)  # N, G, T


def arrays(seed: int = 0, spread: float = 0.4) -> SimpleNamespace:
    """NumPy float64: lp, old, prox, ref, A, mask, H, uniforms, the log-ratios about `spread`."""
    rng = np.random.default_rng(seed)
    old = -rng.uniform(0.3, 2.5, SHAPE)
    near = [np.minimum(old + rng.normal(0, spread, SHAPE), -0.05) for _ in range(3)]
    advantages = np.repeat(rng.normal(0, 1, (*SHAPE[:2], 1)), SHAPE[2], axis=2)
    mask = np.arange(SHAPE[2]) < rng.integers(1, SHAPE[2] + 1, (*SHAPE[:2], 1))
    mask[0, 0], mask[1, 2] = True, False
    entropy, uniforms = rng.uniform(0, 2, SHAPE), rng.uniform(size=SHAPE)
    others = {"A": advantages, "mask": mask, "H": entropy, "uniforms": uniforms}
    return SimpleNamespace(lp=near[0], old=old, prox=near[1], ref=near[2], **others)


def poisoned() -> SimpleNamespace:
    """`arrays()` with NaN, infinity and a huge number where the mask is False."""
    a = arrays()
    for i, field in enumerate((a.lp, a.old, a.prox, a.ref, a.A)):
        field[~a.mask] = (np.nan, -np.inf, 1e30)[i % 3]
    return a


def batch_of(a: SimpleNamespace, dtype: jax.typing.DTypeLike = float) -> TokenBatch:
    fields = [jnp.asarray(x, dtype) for x in (a.A, a.old, a.prox, a.ref, a.H, a.uniforms)]
    batch = TokenBatch(fields[0], jnp.asarray(a.mask), *fields[1:4])
    return batch._replace(entropy=fields[4], uniforms=fields[5])


def problem():
    """`arrays()` as a loss reads them: log-probs, the rest of the batch, and the arrays themselves."""
    a = arrays()
    return jnp.asarray(a.lp, float), batch_of(a), a


def of_each_prompt(fn, *trees):
    """Returns what a function makes of each prompt's own part of the trees."""
    return [fn(*jax.tree.map(lambda x, n=n: x[n : n + 1], trees)) for n in range(len(trees[0]))]


def of_sets(rewards, k):
    """The mean best of the sets of k that hold a completion, of those that do not, and all bests."""
    sets = list(combinations(range(len(rewards)), k))
    best = np.array([rewards[list(members)].max() for members in sets])
    held = np.array([[i in members for members in sets] for i in range(len(rewards))])
    having, lacking = (np.array([best[x].mean() for x in rows]) for rows in (held, ~held))
    return having, lacking, best


def slopes(loss, at, where=True):
    """The gradient of a function of an array, by central differences; 0 outside of `where`."""
    gradient = np.zeros(at.shape)
    for i in map(tuple, np.argwhere(np.broadcast_to(where, at.shape))):
        move = np.zeros(at.shape)
        move[i] = 1e-6
        gradient[i] = (loss(at + move) - loss(at - move)) / 2e-6
    return gradient
