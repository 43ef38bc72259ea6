"""What `ogrpo diagnose` says that gates of ratios would leave of an update."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from ogrpo.run.diagnose import survivors


def findings(far):
    mask = np.ones((2, 2, 300), bool)
    mask[1, 1] = False
    behavior = np.full(mask.shape, -1.0)
    log_probs = behavior + far + np.where(np.arange(300) % 2, 0.05, -0.05)
    batch = SimpleNamespace(behavior_log_probs=jnp.asarray(behavior, jnp.float32))
    return SimpleNamespace(
        batch=batch, mask=jnp.asarray(mask), log_probs=jnp.asarray(log_probs, jnp.float32)
    )


def test_a_mean_log_ratio_of_log_3_over_the_length_halves_what_a_cap_of_3_leaves():
    spread, *gates = survivors(findings(np.log(3) / 300), {})
    assert spread == "log-ratios of tokens: mean 0.003662, standard deviation 0.05"
    assert gates[0] == "gate token (token_low 0.5, token_high 5) would leave 100.0%"
    assert gates[1].startswith("gate sequence (sequence_low 0, sequence_high 3) would leave 50.0%")
    assert len(gates) == 4
    wide = [*survivors(findings(np.log(3) / 300), {"sequence_high": 30.0})]
    assert "sequence_high 30) would leave 99.6%" in wide[2]


def test_nothing_is_said_of_log_ratios_that_are_not_finite():
    assert [*survivors(findings(np.nan), {})] == []
