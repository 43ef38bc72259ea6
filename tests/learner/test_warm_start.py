import jax.numpy as jnp
import numpy as np
import optax

from ogrpo.setup.imitation import make_imitate, warm_start
from tests.learner.toy import GRADIENT, V, make_batch, make_params, make_state, policy_fn


def test_loss_is_the_mean_negative_log_likelihood():
    batch = make_batch()
    log_probs = policy_fn(make_params(), batch, jnp.float32(1)).log_probs
    expected = -np.asarray(log_probs, np.float64)[np.asarray(batch.completion_mask)].mean()
    _, loss = make_imitate(GRADIENT, policy_fn)(make_state(), batch, jnp.float32(0.1))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


def test_imitation_reaches_the_demonstrations_own_frequencies():
    batch = make_batch(n=1, g=64, t=8)
    imitate = make_imitate(optax.scale_by_adam(), policy_fn)
    first = make_state(optax.scale_by_adam())
    *_, (state, _) = warm_start(first, [batch] * 300, imitate, optax.constant_schedule(0.05))
    ids = np.asarray(batch.completion_ids)[np.asarray(batch.completion_mask)]
    frequencies = np.bincount(ids, minlength=V) / ids.size
    row = np.asarray(state.params["table"][int(batch.prompt_ids[0, -1])], np.float64)
    np.testing.assert_allclose(np.exp(row) / np.exp(row).sum(), frequencies, atol=2e-3)
