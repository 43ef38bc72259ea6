"""V-trace against its definition as a double sum."""

import jax.numpy as jnp
import numpy as np

from ogrpo.core.traces import vtrace


def by_the_sum(rho, c, r, v, bootstrap, discount):
    """v_t = V_t + sum_s discount^{s-t} (prod c) rho_s (r_s + discount V_{s+1} - V_s)."""
    after = np.append(v[1:], bootstrap)
    out = []
    for t in range(len(r)):
        steps = [
            discount ** (s - t) * np.prod(c[t:s]) * rho[s] * (r[s] + discount * after[s] - v[s])
            for s in range(t, len(r))
        ]
        out.append(v[t] + sum(steps))
    return np.array(out)


def test_vtrace_is_its_definition_under_padding():
    rng = np.random.default_rng(3)
    log_ratio, r, v = rng.normal(0, 1, (3, 2, 5)).astype(np.float32)
    mask = np.arange(5) < np.array([[5], [3]])
    bootstrap = np.array([0.3, -0.7], np.float32)
    knobs = {"discount": 0.9, "decay": 0.8, "ratio_cap": 1.5, "trace_cap": 1.1}
    targets = vtrace(*map(jnp.asarray, (log_ratio, r, v, bootstrap, mask)), **knobs)
    for i, length in enumerate((5, 3)):
        ratio = np.exp(log_ratio[i, :length])
        rho, c = np.minimum(ratio, 1.5), 0.8 * np.minimum(ratio, 1.1)
        args = (rho, c, r[i, :length], v[i, :length], bootstrap[i], 0.9)
        expected = by_the_sum(*args)
        np.testing.assert_allclose(targets.values[i, :length], expected, rtol=2e-5, atol=1e-6)
        after = np.append(expected[1:], bootstrap[i])
        advantages = rho * (r[i, :length] + 0.9 * after - v[i, :length])
        np.testing.assert_allclose(targets.advantages[i, :length], advantages, rtol=2e-5, atol=1e-6)
    assert not np.any(targets.values[1, 3:])
