"""The literature's methods, each whole: loss, advantage, reduction, and its published settings."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from ogrpo.core import aggregate, objectives, returns
from ogrpo.core.algorithms.base import (
    ADVANTAGE,
    BEHAVIOR,
    CRITIC,
    PROXIMAL,
    REFERENCE,
    UNIFORMS,
    VALUES,
    Algorithm,
    Knob,
    LooksAt,
    LossFn,
    away_from_one,
    published,
)
from ogrpo.core.algorithms.parts import (
    ADVANTAGES,
    REDUCTION_KNOBS,
    REDUCTIONS,
)

NO_KL = Knob(0.0, "no KL term in its source")
CLIP = away_from_one("PPO, arXiv:1707.06347, section 6.1", eps_low=0.2, eps_high=0.2)
PRIME_RL = "prime-rl, August 2026"
AT_UNIT_CENTER = partial(objectives.off_policy_grpo, center_fn=objectives.unit_center)
REC = "arXiv:2509.24203"
REC_RUNS = "Trinity-RFT 0.6, rec_gsm8k, the authors' runs"
REC_CLIP = away_from_one(REC_RUNS, eps_low=0.2, eps_high=0.2)
REC_RING = REC_CLIP | away_from_one(REC_RUNS, outer_low=0.6, outer_high=2.0)


def _method(
    name: str,
    summary: str,
    source: str,
    parts: tuple[LossFn, str, str],
    knobs: Mapping[str, Knob] = MappingProxyType({}),
    *,
    beta: Knob = NO_KL,
    reads: frozenset[str] = frozenset({BEHAVIOR}),
    looks_at: LooksAt = LooksAt.COMPLETION,
    ignores_zero_advantage: bool = True,
    one_credit: bool = False,
    token_ratio_only: bool = False,
) -> Algorithm:
    """Returns the method of a loss, a key of `ADVANTAGES` and one of `REDUCTIONS`.

    These two bring their knobs and what they read; `knobs` are the loss's, and whatever number of
    the advantage's is not the usual one. `reads` is what the loss reads.
    """
    loss, advantage, reduction = parts[0], ADVANTAGES[parts[1]], parts[2]
    of_advantage = {**advantage.knobs, **knobs}
    return Algorithm(
        name,
        loss,
        advantage,
        REDUCTIONS[reduction],
        reads=reads | advantage.reads,
        knobs={**knobs, **of_advantage, "beta": beta, **REDUCTION_KNOBS.get(reduction, {})},
        looks_at=looks_at,
        ignores_zero_advantage=ignores_zero_advantage,
        one_credit=one_credit,
        token_ratio_only=token_ratio_only,
        summary=summary,
        source=source,
    )


_without_ratio = partial(_method, reads=frozenset())

POLICY_GRADIENTS = [
    _without_ratio(
        "reinforce",
        "-A log pi with the group's mean as baseline, blind to who drew the samples",
        f"Williams (1992); the baseline of {REC}, eq. 2",
        (objectives.reinforce, "centered", "sequence_sum"),
        token_ratio_only=True,
    ),
    _without_ratio(
        "rloo",
        "REINFORCE with the mean of the other completions as baseline",
        "arXiv:2402.14740, eq. 6",
        (objectives.reinforce, "leave_one_out", "sequence_sum"),
        beta=Knob(0.0, "the paper takes the KL from the reward, not as a loss"),
        token_ratio_only=True,
    ),
    _without_ratio(
        "raft",
        "imitates completions of reward above a threshold, and nothing else",
        "arXiv:2504.11343, section 2 (after arXiv:2304.06767)",
        (objectives.reinforce, "successes", "sequence_sum"),
    ),
    _without_ratio(
        "positives",
        "imitates successes by their lead over the group's mean (ours: docs/reuse.md)",
        "none; REINFORCE without its negative half",
        (objectives.reinforce, "positive_part", "sequence"),
    ),
    _method(
        "vtrace",
        "REINFORCE with V-trace's weights, the group's mean for the value function",
        "arXiv:1802.01561, eq. 1 and section 4.2",
        (objectives.vtrace, "centered", "sequence_sum"),
        published("arXiv:1802.01561, appendix D", ratio_cap=1.0, trace_cap=1.0)
        | published("arXiv:1802.01561, remark 2", decay=1.0),
        one_credit=True,
    ),
    _without_ratio(
        "opo",
        "REINFORCE with the mean reward by token as baseline",
        "arXiv:2505.23585; verl 0.9, opo",
        (objectives.reinforce, "length_weighted", "sequence_sum"),
        token_ratio_only=True,
    ),
    _without_ratio(
        "maxrl",
        "REINFORCE towards the likelihood of a success: advantages over the group's mean",
        "arXiv:2602.02710",
        (objectives.reinforce, "mean_normalized", "sequence_sum"),
        token_ratio_only=True,
    ),
    _without_ratio(
        "maxpo",
        "REINFORCE towards the best of k completions",
        "arXiv:2606.06080",
        (objectives.reinforce, "max_at_k", "sequence_sum"),
    ),
]

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
            **published("arXiv:1707.06347, table 3", ADVANTAGE, discount=0.99, decay=0.95),
            **published("arXiv:1707.06347, table 5", CRITIC, value_coef=1.0),
            "beta": NO_KL,
        },
        summary="PPO's clip, with a value head and generalised advantages; entropy is a bonus",
        source="arXiv:1707.06347, eq. 7 and 9; arXiv:1506.02438",
    ),
    _method(
        "grpo",
        "PPO's clip by token, standardised advantages, a KL term",
        "arXiv:2402.03300, eq. 3 and 4",
        (objectives.grpo, "group_standardized", "sequence"),
        CLIP,
        beta=Knob(0.04, "arXiv:2402.03300, section 4.2"),
        token_ratio_only=True,
    ),
    _method(
        "grpo_process",
        "GRPO with the standardised rewards of the steps to come, for tasks that judge steps",
        "arXiv:2402.03300, section 4.1.3",
        (objectives.grpo, "process_standardized", "sequence"),
        CLIP,
        beta=Knob(0.04, "arXiv:2402.03300, section 4.2"),
    ),
    _method(
        "off_policy_grpo",
        "the clip of pi/mu in an interval about 1, as the paper runs it",
        "arXiv:2505.22257, eq. 6 to 8",
        (AT_UNIT_CENTER, "group_standardized", "sequence"),
        away_from_one(
            "not in the paper; PPO, arXiv:1707.06347, section 6.1", eps_low=0.2, eps_high=0.2
        ),
        beta=Knob(0.0, "arXiv:2505.22257, eq. 6; its runs have .1 (5.1) and .001 (5.2)"),
        token_ratio_only=True,
    ),
    _method(
        "dr_grpo",
        "GRPO without division by the standard deviation and by the length",
        "arXiv:2503.20783, section 3.2",
        (objectives.grpo, "centered", "fixed_length"),
        CLIP,
        beta=Knob(0.0, "arXiv:2503.20783, section 3.1"),
        token_ratio_only=True,
    ),
    _method(
        "dapo",
        "GRPO with a higher clip, averaged over tokens; it resamples and shapes lengths by options",
        "arXiv:2503.14476, eq. 8",
        (objectives.grpo, "group_standardized", "token"),
        away_from_one("arXiv:2503.14476, section 4.1", eps_low=0.2, eps_high=0.28),
        beta=Knob(0.0, "arXiv:2503.14476, section 2.3"),
        token_ratio_only=True,
    ),
    _method(
        "dual_clip",
        "PPO's clip with a floor of dual A where A < 0 (verl's and Trinity's default)",
        "arXiv:1912.09729, eq. 5",
        (objectives.dual_clip, "group_standardized_bessel", "token"),
        CLIP | away_from_one("arXiv:1912.09729, section 4", dual=3.0),
        token_ratio_only=True,
    ),
    _method(
        "two_sided",
        "PPO's clip with the ratio capped for negative advantages too; entropy is a bonus",
        "arXiv:2505.07291, section 3.4",
        (objectives.two_sided, "group_standardized", "token"),
        CLIP | published("arXiv:2505.07291, section 4", delta=4.0),
        beta=Knob(0.001, "arXiv:2505.07291, section 4"),
        token_ratio_only=True,
    ),
    _method(
        "decoupled",
        "the clip of pi/pi_k, weighted by min(pi_k/mu, cap)",
        "arXiv:2110.00641, section 2.1; the cap of TIS (Yao et al. 2025)",
        (objectives.decoupled, "group_standardized", "sequence"),
        CLIP | published("TIS (Yao et al. 2025)", cap=2.0),
        reads=frozenset({BEHAVIOR, PROXIMAL}),
    ),
    _method(
        "sapo",
        "a sigmoid of the ratio in place of the clip",
        "arXiv:2511.20347",
        (objectives.sapo, "group_standardized", "sequence"),
        away_from_one("arXiv:2511.20347", temperature_pos=1.0, temperature_neg=1.05),
        token_ratio_only=True,
    ),
    _method(
        "reinforce_pp",
        "PPO's clip by token, rewards whitened over the tokens of the batch",
        "arXiv:2501.03262; verl 0.9, reinforce_plus_plus",
        (objectives.grpo, "whitened", "token"),
        CLIP,
        beta=Knob(0.0, "verl 0.9; the paper takes a KL from the reward of each token"),
    ),
    _method(
        "reinforce_pp_baseline",
        "the same, above the group's mean before it is whitened",
        "arXiv:2501.03262; verl 0.9, reinforce_plus_plus_baseline",
        (objectives.grpo, "group_whitened", "token"),
        CLIP,
        beta=Knob(0.0, "verl 0.9"),
    ),
    _method(
        "pass_at_k",
        "PPO's clip by token, advantages of the sets of k that a completion is in",
        "arXiv:2508.10751, analytical derivation",
        (objectives.grpo, "pass_at_k", "token"),
        CLIP,
    ),
    _method(
        "ctpo",
        "the clip of the prefix's ratio in an interval that grows as the root of the position",
        "arXiv:2605.07331",
        (objectives.ctpo, "group_standardized", "token"),
        away_from_one(
            "PPO's; that of arXiv:2605.07331 could not be had", eps_low=0.2, eps_high=0.2
        ),
    ),
]

SEQUENCES = [
    _method(
        "gspo",
        "the clip of the length-normalised sequence ratio",
        "arXiv:2507.18071, eq. 5 and 7",
        (objectives.gspo, "group_standardized", "sequence"),
        away_from_one("arXiv:2507.18071, section 5.1", eps_low=3e-4, eps_high=4e-4),
    ),
    _method(
        "gmpo",
        "the geometric mean of token ratios clipped in log space",
        "arXiv:2507.20673, eq. 3",
        (objectives.gmpo, "group_standardized", "sequence"),
        away_from_one("arXiv:2507.20673, section 4.1", eps_low=0.4, eps_high=0.4),
    ),
    _method(
        "sequence_tis",
        "REINFORCE weighted by the ratio of the completion, cut off and detached",
        "Ionides (2008), by trajectory; verl 0.9, bypass_pg_is",
        (objectives.sequence_tis, "group_standardized_bessel", "token"),
        published("verl 0.9, bypass_pg_is", high=2.0),
    ),
    _method(
        "topr",
        "successes imitated, failures weighted by min(rho, 1); rewards as they are: give -1 and 1",
        "arXiv:2503.14286, section 3",
        (objectives.topr, "raw", "sequence_sum"),
    ),
    _method(
        "vespo",
        "REINFORCE weighted by W^k exp(lambda (1 - W)), W the ratio of the completion",
        "arXiv:2602.10693, section 3.4",
        (objectives.vespo, "group_standardized_bessel", "token"),
        away_from_one(
            "arXiv:2602.10693, section 3.4",
            power_pos=2.0,
            rate_pos=3.0,
            power_neg=3.0,
            rate_neg=2.0,
        ),
    ),
]

GATED = [
    _method(
        "cispo",
        "REINFORCE weighted by the token ratio, clipped and detached",
        "arXiv:2506.13585, eq. 4 and 5",
        (objectives.cispo, "group_standardized", "token"),
        away_from_one("arXiv:2506.13585, section 3.1: no lower bound", low=0.0)
        | published("ScaleRL, arXiv:2510.13786; not in arXiv:2506.13585", high=5.0),
        token_ratio_only=True,
    ),
    _method(
        "topr_token",
        "TOPR with the ratio of each token, as Trinity-RFT has it",
        "Trinity-RFT 0.6, topr",
        (objectives.topr_token, "raw", "token"),
    ),
    _method(
        "sppo",
        "the log-ratio times the advantage, inside a band of ratios",
        "Vaswani et al. (2022); Trinity-RFT 0.6, sppo",
        (objectives.sppo, "centered", "token"),
        published("Trinity-RFT 0.6, sppo", low=1 / 1.3, high=1.3),
    ),
    _method(
        "m2po",
        "the importance-weighted gain without the tokens of largest squared log-ratio",
        "arXiv:2510.01161, algorithm 1",
        (objectives.m2po, "group_standardized", "token"),
        away_from_one("arXiv:2510.01161, section 4", threshold=0.04),
        looks_at=LooksAt.BATCH,
    ),
    _method(
        "dppo_tv",
        "no push outward where |pi - mu| of the token is beyond a threshold",
        "arXiv:2602.04879, binary TV",
        (objectives.dppo_tv, "centered", "token"),
        away_from_one("the authors' verl script", low=0.15, high=0.15)
        | away_from_one("the authors' Stable-RL; verl has 3 in effect", cap=10.0),
    ),
    _method(
        "dppo_kl",
        "no push outward where KL(mu||pi) of the token is beyond a threshold",
        "arXiv:2602.04879, binary KL",
        (objectives.dppo_kl, "centered", "token"),
        away_from_one("the authors' verl script", low=0.05, high=0.05)
        | away_from_one("the authors' Stable-RL; verl has 3 in effect", cap=10.0),
    ),
    _method(
        "prime_rl",
        "the ratio times the advantage behind DPPO-TV's mask, and a squared log-ratio",
        f"{PRIME_RL}, its default loss; arXiv:2602.04879, arXiv:2602.02276",
        (objectives.prime_rl, "centered", "token"),
        away_from_one(f"{PRIME_RL}: dppo_mask_low, dppo_mask_high", low=0.2, high=0.2)
        | away_from_one(f"{PRIME_RL}: kl_tau", coef=1e-3),
        ignores_zero_advantage=False,
    ),
    _method(
        "m2po_released",
        "PPO's clip, as wide as the squared log-ratios of the batch allow",
        "the released code of arXiv:2510.01161",
        (objectives.m2po_released, "group_standardized", "token"),
        away_from_one("arXiv:2510.01161, section 4", threshold=0.04)
        | away_from_one("the released code", eps_low=0.3, eps_high=0.5),
        looks_at=LooksAt.BATCH,
    ),
    _method(
        "kl_cov",
        "the ratio times the advantage, and a pull on the tokens that cost the most entropy",
        "arXiv:2505.22617; verl 0.9, kl_cov",
        (objectives.kl_cov, "group_standardized_bessel", "token"),
        away_from_one("verl 0.9: kl_cov_ratio", share=2e-4)
        | away_from_one("verl 0.9: ppo_kl_coef", coef=1.0),
        looks_at=LooksAt.BATCH,
        ignores_zero_advantage=False,
    ),
    _method(
        "clip_cov",
        "PPO's clip without a random few of the tokens that cost much entropy",
        "arXiv:2505.22617; verl 0.9, clip_cov",
        (objectives.clip_cov, "group_standardized_bessel", "token"),
        CLIP
        | published("verl 0.9: clip_cov_ratio", share=2e-4)
        | published("verl 0.9: clip_cov_lb, clip_cov_ub", cov_low=1.0, cov_high=5.0),
        reads=frozenset({BEHAVIOR, UNIFORMS}),
        looks_at=LooksAt.BATCH,
    ),
    _method(
        "distill",
        "the reverse KL to the reference, a teacher; rewards are not read",
        f"on-policy distillation (Lu et al. 2025); {PRIME_RL}, ref_kl",
        (objectives.distill, "raw", "token"),
        away_from_one(f"{PRIME_RL}, ref_kl", low=0.2, coef=1e-3),
        reads=frozenset({BEHAVIOR, REFERENCE}),
        ignores_zero_advantage=False,
    ),
]


RECS = [
    *(
        _method(loss.__name__, summary, REC, (loss, "centered", "token"), knobs)
        for loss, summary, knobs in (
            (objectives.rec_one_side, "REINFORCE, silent where PPO's clip binds", REC_CLIP),
            (objectives.rec_one_side_is, "the same, weighted by the ratio", REC_CLIP),
            (objectives.rec_two_side, "REINFORCE on ratios near 1 alone", REC_CLIP),
            (objectives.rec_two_side_is, "the same, weighted by the ratio", REC_CLIP),
            (objectives.rec_ring, "two-side, open again far outside", REC_RING),
            (objectives.rec_ring_is, "the same, weighted by the ratio", REC_RING),
        )
    ),
    _without_ratio(
        "red_drop",
        "REINFORCE without as many random failures as outnumber the successes",
        f"{REC}, RED-Drop",
        (objectives.reinforce, "drop_negatives", "token"),
    ),
    _without_ratio(
        "red_weight",
        "REINFORCE weighted by exp(A / tau)",
        f"{REC}, RED-Weight",
        (objectives.reinforce, "exponentially_weighted", "token"),
    ),
    _without_ratio(
        "asymre",
        "REINFORCE with the baseline lowered",
        "arXiv:2506.20520; the shift of arXiv:2509.24203",
        (objectives.reinforce, "lowered_baseline", "token"),
    ),
]

REGRESSIONS = [
    _method(
        "opmd_kimi",
        "REINFORCE with a squared log-ratio by token",
        "arXiv:2501.12599, section 2.3.2, by token as in arXiv:2509.24203",
        (objectives.opmd_kimi, "centered", "token"),
        away_from_one(REC_RUNS, coef=0.1),
        ignores_zero_advantage=False,
    ),
    _method(
        "opmd_kimi_sequence",
        "REINFORCE with the squared log-ratio of the completion",
        "arXiv:2501.12599, section 2.3.2",
        (objectives.opmd_kimi_sequence, "centered", "sequence_sum"),
        away_from_one(REC_RUNS, tau=0.1),
        ignores_zero_advantage=False,
    ),
    _without_ratio(
        "opmd_min",
        "REINFORCE scaled by 1 / (1 + tau)",
        "Trinity-RFT 0.6, opmd",
        (objectives.opmd_min, "centered", "token"),
        published("Trinity-RFT 0.6, opmd", tau=1.0),
    ),
    _without_ratio(
        "opmd_pairwise",
        "rewards regressed on log-ratios, pair by pair",
        f"{REC}, eq. 4",
        (objectives.opmd_pairwise, "centered", "sequence_sum"),
        published(f"{REC}; no value is given", tau=1.0),
        looks_at=LooksAt.GROUP,
        one_credit=True,
    ),
    _method(
        "oapl",
        "rewards above the soft value regressed on the log-ratio of the completion",
        "arXiv:2602.19362, eq. 2 and 3",
        (objectives.oapl, "soft_value", "sequence_sum"),
        published("arXiv:2602.19362: beta_1", ADVANTAGE, tau=1.0)
        | published("arXiv:2602.19362: beta_2", slope=1e-3),
        ignores_zero_advantage=False,
        one_credit=True,
    ),
]

PREFERENCES = [
    _method(
        "dpo",
        "which of two completions is better, by log-ratios to a reference; all pairs of a group",
        "arXiv:2305.18290, eq. 7; on pairs of one's own samples, arXiv:2402.04792",
        (objectives.dpo, "centered", "sequence_sum"),
        published("arXiv:2305.18290, appendix B: beta", tau=0.1),
        looks_at=LooksAt.GROUP,
        beta=Knob(0.0, "its own log-ratio holds it to the reference"),
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
