"""What `ogrpo diagnose` and a run's page say that gates of ratios leave of completions."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from ogrpo.core.survival import sequence_survival, spread_of_kl
from ogrpo.run import ending
from ogrpo.run.diagnose import survivors
from ogrpo.setup.presets import main_study
from tests.loop.walk import grouped, with_options


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
    assert len(gates) == 5
    wide = [*survivors(findings(np.log(3) / 300), {"sequence_high": 30.0})]
    assert "sequence_high 30) would leave 99.6%" in wide[2]


def test_a_page_predicts_what_the_runs_gates_keep():
    stack = {"override.gate": ("sequence", "top_entropy"), "knobs.sequence_high": 1.2}
    config = with_options(main_study(), grouped(stack))
    record = {"length": 300.0, "kl/mu_pi": 0.001, "mismatch": 0.01}
    ((label, share),) = ending.survivors(config, record)
    assert "gate sequence (sequence_low 0, sequence_high 1.2), predicted for 300 tokens" in label
    cap = {"low": 0.0, "high": 1.2}
    expected = sequence_survival(jnp.array([300.0]), spread_of_kl(0.001), **cap)[0]
    assert share == f"{expected:.1%}"
    weighed = with_options(main_study(), grouped({**stack, "override.weight": "truncated"}))
    ((label, before),) = ending.survivors(weighed, record)
    assert "at 7.9e-05 nats" in label
    assert before != share
    assert ending.survivors(main_study(), record) == []
    assert ending.survivors(config, {**record, "kl/mu_pi": float("nan")}) == []
