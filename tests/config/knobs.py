"""A setting for each knob in which it acts, and a value that shows it."""

from tests.loop.walk import Setting

TAUGHT = {
    "warm_start.steps": 200,
    "warm_start.problems": 512,
    "warm_start.batch": 32,
}
"""Enough for a decoder to get a line right now and then."""
KNOBS: dict[str, tuple[Setting, float]] = {
    "beta": ({}, 0.5),
    "eps_low": ({}, 0.9),
    "eps_high": ({}, 5.0),
    "outer_low": ({"algorithm": "rec_ring"}, 0.3),
    "outer_high": ({"algorithm": "rec_ring"}, 0.3),
    "low": ({"algorithm": "cispo"}, 0.9),
    "high": ({"algorithm": "cispo"}, 1.0),
    "cap": ({"algorithm": "dppo_tv"}, 0.5),
    "dual": ({"algorithm": "dual_clip"}, 1.05),
    "delta": ({"algorithm": "two_sided"}, 1.3),
    "temperature_pos": ({"algorithm": "sapo"}, 3.0),
    "temperature_neg": ({"algorithm": "sapo"}, 3.0),
    "threshold": ({"algorithm": "m2po"}, 1e-4),
    "power_pos": ({"algorithm": "vespo"}, 1.0),
    "power_neg": ({"algorithm": "vespo"}, 1.0),
    "rate_pos": ({"algorithm": "vespo"}, 1.0),
    "rate_neg": ({"algorithm": "vespo"}, 1.0),
    "ratio_cap": ({"algorithm": "vtrace"}, 5.0),
    "trace_cap": ({"algorithm": "vtrace"}, 5.0),
    "discount": ({"algorithm": "ppo"}, 0.5),
    "value_coef": ({"algorithm": "ppo"}, 0.0),
    "decay": ({"algorithm": "vtrace"}, 0.5),
    "tau": ({"algorithm": "red_weight"}, 0.2),
    "coef": ({"algorithm": "opmd_kimi"}, 5.0),
    "step_weight": ({"override.advantage": "step_returns", **TAUGHT}, 100.0),
    "slope": ({"algorithm": "oapl"}, 5.0),
    "shift": ({"algorithm": "asymre"}, 1.0),
    "k": ({"algorithm": "maxpo"}, 3.0),
    "overlong": ({"override.advantage": "overlong_standardized"}, 1.0),
    "share": ({"algorithm": "kl_cov"}, 0.9),
    "token_low": ({"override.gate": ("token",)}, 0.99),
    "token_high": ({"override.gate": ("token",)}, 1.01),
    "sequence_low": ({"override.gate": ("sequence",)}, 0.99),
    "sequence_high": ({"override.gate": ("sequence",)}, 0.99),
    "geometric_low": ({"override.gate": ("geometric",)}, 0.1),
    "geometric_high": ({"override.gate": ("geometric",), "knobs.geometric_low": 0.0}, 0.1),
    "negatives_delta": ({"override.gate": ("negatives",)}, 100.0),
    "weight_cap": ({"override.weight": "truncated"}, 0.5),
    "weight_floor": ({"override.weight": "truncated"}, 1.5),
    "weight_decay": ({"override.weight": "trace"}, 0.5),
}
"""Knob -> (setting, value), all on stale data."""
