"""The literature's methods, each whole: loss, advantage, reduction, and its published settings."""

from functools import partial
from typing import Any

from ogrpo.core import aggregate, objectives, returns
from ogrpo.core.algorithms.base import (
    ADVANTAGE,
    BEHAVIOR,
    CRITIC,
    KEY,
    LENGTHS,
    PROXIMAL,
    REFERENCE,
    STEPS,
    VALUES,
    Algorithm,
    Knob,
    LooksAt,
)
from ogrpo.core.algorithms.parts import ADVANTAGES, PAIRS, REDUCTION_KNOBS, REDUCTIONS

PPO = "PPO, arXiv:1707.06347, section 6.1"
NO_KL = Knob(0.0, "no KL term in the paper")
CLIP = {"eps_low": Knob(0.2, PPO), "eps_high": Knob(0.2, PPO)}
REC = "arXiv:2509.24203"
REC_RUNS = "Trinity-RFT 0.6, rec_gsm8k, the authors' runs"
REC_CLIP = {"eps_low": Knob(0.2, REC_RUNS), "eps_high": Knob(0.2, REC_RUNS)}
REC_RING = {"outer_low": Knob(0.6, REC_RUNS), "outer_high": Knob(2.0, REC_RUNS)}


def _method(
    name: str,
    summary: str,
    source: str,
    loss: Any,
    advantage: str,
    reduction: str,
    *,
    beta: Knob = NO_KL,
    knobs: dict[str, Knob] | None = None,
    reads: frozenset[str] = frozenset({BEHAVIOR}),
    **rest: Any,
) -> Algorithm:
    return Algorithm(
        name,
        loss,
        ADVANTAGES[advantage],
        REDUCTIONS[reduction],
        reads=reads,
        knobs={**(knobs or {}), "beta": beta, **REDUCTION_KNOBS.get(reduction, {})},
        summary=summary,
        source=source,
        **rest,
    )


POLICY_GRADIENTS = [
    _method(
        "reinforce",
        "-A log pi with the group's mean as baseline, blind to who drew the samples",
        f"Williams (1992); the baseline of {REC}, eq. 2",
        objectives.reinforce,
        "centered",
        "sequence_sum",
    ),
    _method(
        "rloo",
        "REINFORCE with the mean of the other completions as baseline",
        "arXiv:2402.14740, eq. 6",
        objectives.reinforce,
        "leave_one_out",
        "sequence_sum",
        beta=Knob(0.0, "the paper takes the KL from the reward, not as a loss"),
    ),
    _method(
        "raft",
        "imitates completions of reward above a threshold, and nothing else",
        "arXiv:2504.11343, section 2 (after arXiv:2304.06767)",
        objectives.reinforce,
        "successes",
        "sequence_sum",
        knobs={"threshold": Knob(0.0, "arXiv:2504.11343: rewards 0 and 1", (ADVANTAGE,))},
    ),
    _method(
        "positives",
        "imitates successes by their lead over the group's mean (ours: docs/reuse.md)",
        "none; REINFORCE without its negative half",
        objectives.reinforce,
        "positive_part",
        "sequence",
    ),
    _method(
        "vtrace",
        "REINFORCE with V-trace's weights, the group's mean for the value function",
        "arXiv:1802.01561, eq. 1 and section 4.2",
        objectives.vtrace,
        "centered",
        "sequence_sum",
        knobs={
            "ratio_cap": Knob(1.0, "arXiv:1802.01561, appendix D"),
            "trace_cap": Knob(1.0, "arXiv:1802.01561, appendix D"),
            "decay": Knob(1.0, "arXiv:1802.01561, remark 2"),
        },
        one_credit=True,
    ),
]

BY_LENGTH = frozenset({BEHAVIOR, LENGTHS})
POLICY_GRADIENTS += [
    _method(
        "opo",
        "REINFORCE with the mean reward by token as baseline",
        "arXiv:2505.23585; verl 0.9, opo",
        objectives.reinforce,
        "length_weighted",
        "sequence_sum",
        reads=BY_LENGTH,
    ),
    _method(
        "maxrl",
        "REINFORCE towards the likelihood of a success: advantages over the group's mean",
        "arXiv:2602.02710",
        objectives.reinforce,
        "mean_normalized",
        "sequence_sum",
    ),
    _method(
        "maxpo",
        "REINFORCE towards the best of k completions",
        "arXiv:2606.06080",
        objectives.reinforce,
        "max_at_k",
        "sequence_sum",
        knobs={"k": PAIRS},
    ),
]

PPO_RUNS = "arXiv:1707.06347, table 3"
CLIPPED = [
    Algorithm(
        "ppo",
        objectives.grpo,
        returns.gae,
        aggregate.token_total,
        critic=returns.squared_error,
        reads=frozenset({BEHAVIOR, VALUES}),
        knobs={
            **CLIP,
            "discount": Knob(0.99, PPO_RUNS, (ADVANTAGE,)),
            "decay": Knob(0.95, PPO_RUNS, (ADVANTAGE,)),
            "value_coef": Knob(1.0, "arXiv:1707.06347, table 5", (CRITIC,)),
            "beta": NO_KL,
        },
        summary="PPO's clip, with a value head and generalised advantages (without entropy bonus)",
        source="arXiv:1707.06347, eq. 7 and 9; arXiv:1506.02438",
    ),
    _method(
        "grpo",
        "PPO's clip by token, standardised advantages, a KL term",
        "arXiv:2402.03300, eq. 3 and 4",
        objectives.grpo,
        "group_standardized",
        "sequence",
        beta=Knob(0.04, "arXiv:2402.03300, section 4.2"),
        knobs=CLIP,
    ),
    _method(
        "grpo_process",
        "GRPO with the standardised rewards of the steps to come, for tasks that judge steps",
        "arXiv:2402.03300, section 4.1.3",
        objectives.grpo,
        "process_standardized",
        "sequence",
        beta=Knob(0.04, "arXiv:2402.03300, section 4.2"),
        knobs=CLIP,
        reads=frozenset({BEHAVIOR, STEPS}),
    ),
    _method(
        "off_policy_grpo",
        "the clip of pi/mu in an interval about 1, as the paper runs it",
        "arXiv:2505.22257, eq. 6 to 8",
        partial(objectives.off_policy_grpo, center_fn=objectives.unit_center),
        "group_standardized",
        "sequence",
        beta=Knob(0.0, "arXiv:2505.22257, eq. 6; its runs have .1 (5.1) and .001 (5.2)"),
        knobs={
            "eps_low": Knob(0.2, "not in the paper; PPO, arXiv:1707.06347, section 6.1"),
            "eps_high": Knob(0.2, "not in the paper; PPO, arXiv:1707.06347, section 6.1"),
        },
    ),
    _method(
        "dr_grpo",
        "GRPO without division by the standard deviation and by the length",
        "arXiv:2503.20783, section 3.2",
        objectives.grpo,
        "centered",
        "fixed_length",
        beta=Knob(0.0, "arXiv:2503.20783, section 3.1"),
        knobs=CLIP,
    ),
    _method(
        "dapo",
        "GRPO with a higher clip, averaged over tokens; it resamples and shapes lengths by options",
        "arXiv:2503.14476, eq. 8",
        objectives.grpo,
        "group_standardized",
        "token",
        beta=Knob(0.0, "arXiv:2503.14476, section 2.3"),
        knobs={
            "eps_low": Knob(0.2, "arXiv:2503.14476, section 4.1"),
            "eps_high": Knob(0.28, "arXiv:2503.14476, section 4.1"),
        },
    ),
    _method(
        "dual_clip",
        "PPO's clip with a floor of dual A where A < 0 (verl's and Trinity's default)",
        "arXiv:1912.09729, eq. 5",
        objectives.dual_clip,
        "group_standardized_bessel",
        "token",
        knobs={**CLIP, "dual": Knob(3.0, "arXiv:1912.09729, section 4")},
    ),
    _method(
        "two_sided",
        "PPO's clip with the ratio capped for negative advantages too (without entropy bonus)",
        "arXiv:2505.07291, section 3.4",
        objectives.two_sided,
        "group_standardized",
        "token",
        beta=Knob(0.001, "arXiv:2505.07291, section 4"),
        knobs={**CLIP, "delta": Knob(4.0, "arXiv:2505.07291, section 4")},
    ),
    _method(
        "decoupled",
        "the clip of pi/pi_k, weighted by min(pi_k/mu, cap)",
        "arXiv:2110.00641, section 2.1; the cap of TIS (Yao et al. 2025)",
        objectives.decoupled,
        "group_standardized",
        "sequence",
        knobs={**CLIP, "cap": Knob(2.0, "TIS (Yao et al. 2025)")},
        reads=frozenset({BEHAVIOR, PROXIMAL}),
    ),
    _method(
        "sapo",
        "a sigmoid of the ratio in place of the clip",
        "arXiv:2511.20347",
        objectives.sapo,
        "group_standardized",
        "sequence",
        knobs={
            "temperature_pos": Knob(1.0, "arXiv:2511.20347"),
            "temperature_neg": Knob(1.05, "arXiv:2511.20347"),
        },
    ),
]

CLIPPED += [
    _method(
        "reinforce_pp",
        "PPO's clip by token, rewards whitened over the tokens of the batch",
        "arXiv:2501.03262; verl 0.9, reinforce_plus_plus",
        objectives.grpo,
        "whitened",
        "token",
        beta=Knob(0.0, "verl 0.9; the paper takes a KL from the reward of each token"),
        knobs=CLIP,
        reads=BY_LENGTH,
    ),
    _method(
        "reinforce_pp_baseline",
        "the same, above the group's mean before it is whitened",
        "arXiv:2501.03262; verl 0.9, reinforce_plus_plus_baseline",
        objectives.grpo,
        "group_whitened",
        "token",
        beta=Knob(0.0, "verl 0.9"),
        knobs=CLIP,
        reads=BY_LENGTH,
    ),
    _method(
        "pass_at_k",
        "PPO's clip by token, advantages of the sets of k that a completion is in",
        "arXiv:2508.10751, analytical derivation",
        objectives.grpo,
        "pass_at_k",
        "token",
        knobs={**CLIP, "k": PAIRS},
    ),
    _method(
        "ctpo",
        "the clip of the prefix's ratio in an interval that grows as the root of the position",
        "arXiv:2605.07331",
        objectives.ctpo,
        "group_standardized",
        "token",
        knobs={
            "eps_low": Knob(0.2, "PPO's; that of arXiv:2605.07331 could not be had"),
            "eps_high": Knob(0.2, "PPO's; that of arXiv:2605.07331 could not be had"),
        },
    ),
]

SEQUENCES = [
    _method(
        "gspo",
        "the clip of the length-normalised sequence ratio",
        "arXiv:2507.18071, eq. 5 and 7",
        objectives.gspo,
        "group_standardized",
        "sequence",
        knobs={
            "eps_low": Knob(3e-4, "arXiv:2507.18071, section 5.1"),
            "eps_high": Knob(4e-4, "arXiv:2507.18071, section 5.1"),
        },
    ),
    _method(
        "gmpo",
        "the geometric mean of token ratios clipped in log space",
        "arXiv:2507.20673, eq. 3",
        objectives.gmpo,
        "group_standardized",
        "sequence",
        knobs={
            "eps_low": Knob(0.4, "arXiv:2507.20673, section 4.1"),
            "eps_high": Knob(0.4, "arXiv:2507.20673, section 4.1"),
        },
    ),
    _method(
        "topr",
        "successes imitated, failures weighted by min(rho, 1); rewards as they are: give -1 and 1",
        "arXiv:2503.14286, section 3",
        objectives.topr,
        "raw",
        "sequence_sum",
    ),
    _method(
        "vespo",
        "REINFORCE weighted by W^k exp(lambda (1 - W)), W the ratio of the completion",
        "arXiv:2602.10693, section 3.4",
        objectives.vespo,
        "group_standardized_bessel",
        "token",
        knobs={
            "power_pos": Knob(2.0, "arXiv:2602.10693, section 3.4"),
            "rate_pos": Knob(3.0, "arXiv:2602.10693, section 3.4"),
            "power_neg": Knob(3.0, "arXiv:2602.10693, section 3.4"),
            "rate_neg": Knob(2.0, "arXiv:2602.10693, section 3.4"),
        },
    ),
]

GATED = [
    _method(
        "cispo",
        "REINFORCE weighted by the token ratio, clipped and detached",
        "arXiv:2506.13585, eq. 4 and 5",
        objectives.cispo,
        "group_standardized",
        "token",
        knobs={
            "low": Knob(0.0, "arXiv:2506.13585, section 3.1: no lower bound"),
            "high": Knob(5.0, "ScaleRL, arXiv:2510.13786; not in arXiv:2506.13585"),
        },
    ),
    _method(
        "topr_token",
        "TOPR with the ratio of each token, as Trinity-RFT has it",
        "Trinity-RFT 0.6, topr",
        objectives.topr_token,
        "raw",
        "token",
    ),
    _method(
        "sppo",
        "the log-ratio times the advantage, inside a band of ratios",
        "Vaswani et al. (2022); Trinity-RFT 0.6, sppo",
        objectives.sppo,
        "centered",
        "token",
        knobs={
            "low": Knob(1 / 1.3, "Trinity-RFT 0.6, sppo"),
            "high": Knob(1.3, "Trinity-RFT 0.6, sppo"),
        },
    ),
    _method(
        "m2po",
        "the importance-weighted gain without the tokens of largest squared log-ratio",
        "arXiv:2510.01161, algorithm 1",
        objectives.m2po,
        "group_standardized",
        "token",
        knobs={"threshold": Knob(0.04, "arXiv:2510.01161, section 4")},
        looks_at=LooksAt.BATCH,
    ),
    _method(
        "dppo_tv",
        "no push outward where |pi - mu| of the token is beyond a threshold",
        "arXiv:2602.04879, binary TV",
        objectives.dppo_tv,
        "centered",
        "token",
        knobs={
            "low": Knob(0.15, "the authors' verl script"),
            "high": Knob(0.15, "the authors' verl script"),
            "cap": Knob(10.0, "the authors' Stable-RL; verl has 3 in effect"),
        },
    ),
    _method(
        "dppo_kl",
        "no push outward where KL(mu||pi) of the token is beyond a threshold",
        "arXiv:2602.04879, binary KL",
        objectives.dppo_kl,
        "centered",
        "token",
        knobs={
            "low": Knob(0.05, "the authors' verl script"),
            "high": Knob(0.05, "the authors' verl script"),
            "cap": Knob(10.0, "the authors' Stable-RL; verl has 3 in effect"),
        },
    ),
]


PRIME_RL = "prime-rl, August 2026"
GATED += [
    _method(
        "prime_rl",
        "the ratio times the advantage behind DPPO-TV's mask, and a squared log-ratio",
        f"{PRIME_RL}, its default loss; arXiv:2602.04879, arXiv:2602.02276",
        objectives.prime_rl,
        "centered",
        "token",
        knobs={
            "low": Knob(0.2, f"{PRIME_RL}: dppo_mask_low"),
            "high": Knob(0.2, f"{PRIME_RL}: dppo_mask_high"),
            "coef": Knob(1e-3, f"{PRIME_RL}: kl_tau"),
        },
        silent=False,
    ),
    _method(
        "m2po_released",
        "PPO's clip, as wide as the squared log-ratios of the batch allow",
        "the released code of arXiv:2510.01161",
        objectives.m2po_released,
        "group_standardized",
        "token",
        knobs={
            "threshold": Knob(0.04, "arXiv:2510.01161, section 4"),
            "eps_low": Knob(0.3, "the released code"),
            "eps_high": Knob(0.5, "the released code"),
        },
        looks_at=LooksAt.BATCH,
    ),
    _method(
        "kl_cov",
        "the ratio times the advantage, and a pull on the tokens that cost the most entropy",
        "arXiv:2505.22617; verl 0.9, kl_cov",
        objectives.kl_cov,
        "group_standardized_bessel",
        "token",
        knobs={
            "share": Knob(2e-4, "verl 0.9: kl_cov_ratio"),
            "coef": Knob(1.0, "verl 0.9: ppo_kl_coef"),
        },
        looks_at=LooksAt.BATCH,
        silent=False,
    ),
    _method(
        "distill",
        "the reverse KL to the reference, a teacher; rewards are not read",
        f"on-policy distillation (Lu et al. 2025); {PRIME_RL}, ref_kl",
        objectives.distill,
        "raw",
        "token",
        knobs={
            "low": Knob(0.2, f"{PRIME_RL}, ref_kl"),
            "coef": Knob(1e-3, f"{PRIME_RL}, ref_kl"),
        },
        reads=frozenset({BEHAVIOR, REFERENCE}),
        silent=False,
    ),
]


def _rec(name: str, summary: str, loss: Any, **knobs: Knob) -> Algorithm:
    return _method(name, summary, REC, loss, "centered", "token", knobs={**REC_CLIP, **knobs})


RECS = [
    _rec("rec_one_side", "REINFORCE, silent where PPO's clip binds", objectives.rec_one_side),
    _rec("rec_one_side_is", "the same, weighted by the ratio", objectives.rec_one_side_is),
    _rec("rec_two_side", "REINFORCE on ratios near 1 alone", objectives.rec_two_side),
    _rec("rec_two_side_is", "the same, weighted by the ratio", objectives.rec_two_side_is),
    _rec("rec_ring", "two-side, open again far outside", objectives.rec_ring, **REC_RING),
    _rec("rec_ring_is", "the same, weighted by the ratio", objectives.rec_ring_is, **REC_RING),
    _method(
        "red_drop",
        "REINFORCE without as many random failures as outnumber the successes",
        f"{REC}, RED-Drop",
        objectives.reinforce,
        "drop_negatives",
        "token",
        reads=frozenset({BEHAVIOR, KEY}),
    ),
    _method(
        "red_weight",
        "REINFORCE weighted by exp(A / tau)",
        f"{REC}, RED-Weight",
        objectives.reinforce,
        "exponentially_weighted",
        "token",
        knobs={"tau": Knob(1.0, REC_RUNS, (ADVANTAGE,))},
    ),
    _method(
        "asymre",
        "REINFORCE with the baseline lowered",
        "arXiv:2506.20520; the shift of arXiv:2509.24203",
        objectives.reinforce,
        "lowered_baseline",
        "token",
        knobs={"shift": Knob(0.1, REC_RUNS, (ADVANTAGE,))},
    ),
]

REGRESSIONS = [
    _method(
        "opmd_kimi",
        "REINFORCE with a squared log-ratio by token",
        "arXiv:2501.12599, section 2.3.2, by token as in arXiv:2509.24203",
        objectives.opmd_kimi,
        "centered",
        "token",
        knobs={"coef": Knob(0.1, REC_RUNS)},
        silent=False,
    ),
    _method(
        "opmd_kimi_sequence",
        "REINFORCE with the squared log-ratio of the completion",
        "arXiv:2501.12599, section 2.3.2",
        objectives.opmd_kimi_sequence,
        "centered",
        "sequence_sum",
        knobs={"tau": Knob(0.1, REC_RUNS)},
        silent=False,
    ),
    _method(
        "opmd_min",
        "REINFORCE scaled by 1 / (1 + tau)",
        "Trinity-RFT 0.6, opmd",
        objectives.opmd_min,
        "centered",
        "token",
        knobs={"tau": Knob(1.0, "Trinity-RFT 0.6, opmd")},
    ),
    _method(
        "opmd_pairwise",
        "rewards regressed on log-ratios, pair by pair",
        f"{REC}, eq. 4",
        objectives.opmd_pairwise,
        "centered",
        "sequence_sum",
        looks_at=LooksAt.GROUP,
        knobs={"tau": Knob(1.0, f"{REC}; no value is given")},
        reads=frozenset(),
        one_credit=True,
    ),
    _method(
        "oapl",
        "rewards above the soft value regressed on the log-ratio of the completion",
        "arXiv:2602.19362, eq. 2 and 3",
        objectives.oapl,
        "soft_value",
        "sequence_sum",
        knobs={
            "tau": Knob(1.0, "arXiv:2602.19362: beta_1", (ADVANTAGE,)),
            "slope": Knob(1e-3, "arXiv:2602.19362: beta_2"),
        },
        silent=False,
        one_credit=True,
    ),
]

PREFERENCES = [
    _method(
        "dpo",
        "which of two completions is better, by log-ratios to a reference; all pairs of a group",
        "arXiv:2305.18290, eq. 7; on pairs of one's own samples, arXiv:2402.04792",
        objectives.dpo,
        "centered",
        "sequence_sum",
        looks_at=LooksAt.GROUP,
        beta=Knob(0.0, "its own log-ratio holds it to the reference"),
        knobs={"tau": Knob(0.1, "arXiv:2305.18290, appendix B: beta")},
        reads=frozenset({REFERENCE}),
        one_credit=True,
    ),
]

GROUPS: dict[str, list[Algorithm]] = {
    "policy gradients and imitation": POLICY_GRADIENTS,
    "clipped token ratios": CLIPPED,
    "ratios of whole completions": SEQUENCES,
    "detached ratios and gates": GATED,
    "group-relative REINFORCE off policy (arXiv:2509.24203)": RECS,
    "regression on log-ratios": REGRESSIONS,
    "preference": PREFERENCES,
}
"""Kind -> methods, for a list that people read."""

ALGORITHMS: dict[str, Algorithm] = {a.name: a for group in GROUPS.values() for a in group}
"""Name -> method."""
