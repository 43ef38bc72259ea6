"""RED-Drop as an objective: it draws lots, so it is held to the advantages it draws."""

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.core import advantages, objectives
from tests.core.cases import SHAPE, arrays, batch_of


def test_it_is_reinforce_on_the_kept():
    a = arrays()
    a.mask[1, 2, 0] = True
    batch, log_probs, key = batch_of(a), jnp.asarray(a.lp, float), jax.random.key(5)
    rewards = jnp.asarray(a.A[..., 0], float)
    dropped = advantages.red_drop(rewards, key)
    expected = np.where(a.mask, -np.asarray(dropped.advantages)[..., None] * a.lp, 0)
    loss = objectives.red_drop(log_probs, batch, key=key)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    assert 0 < (~dropped.kept).sum() < np.prod(SHAPE[:2])


def test_masked_tokens_have_no_gradient_and_the_key_matters():
    a = arrays()
    a.A[:, 1:] -= 3 * abs(a.A).max()  # one positive each, three negatives
    a.A[:, 0] += 3 * abs(a.A).max()
    batch, log_probs = batch_of(a), jnp.asarray(np.where(a.mask, a.lp, np.nan), float)
    seen = set()
    for seed in range(6):
        gradient = jax.grad(
            lambda x, s=seed: objectives.red_drop(x, batch, key=jax.random.key(s)).sum()
        )(log_probs)
        assert not np.any(np.asarray(gradient)[~a.mask])
        seen.add(np.asarray(gradient).tobytes())
    assert len(seen) > 1
