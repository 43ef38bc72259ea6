"""The inequalities that `bounds` holds its records to, and how often each of them held."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

Record = dict[str, Any]
Kind = Literal["exact", "sampled", "confidence"]
TOLERANCE = 1e-6
"""What float64 sums and a float32 policy table may be off by."""


class Claim(NamedTuple):
    """One inequality: exact ones must hold; of a sampled one it is asked whether it is refuted."""

    where: str
    text: str
    kind: Kind
    held: int
    of: int
    slack: float
    """The least; negative where it failed."""

    @property
    def holds(self) -> bool:
        """Whether it held every time."""
        return self.held == self.of


def of_part(records: Sequence[Record], part: str) -> list[Record]:
    """The records of one part, in order."""
    return [record for record in records if record["part"] == part]


def claim(where: str, text: str, kind: Kind, slacks: Sequence[float]) -> Claim:
    """Counts the slacks that are not negative, but for rounding."""
    least = min(slacks, default=0.0)
    return Claim(where, text, kind, sum(s >= -TOLERANCE for s in slacks), len(slacks), least)


def make_claims(records: Sequence[Record], delta: float) -> list[Claim]:
    """All of them, by part."""
    return [
        *bandit_claims(of_part(records, "bandit"), delta),
        *run_claims(of_part(records, "run")),
        *period_claims(of_part(records, "period"), delta),
        *variance_claims(of_part(records, "variance")),
        *clip_claims(of_part(records, "clip")),
    ]


def vacuity(steps: Sequence[Record]) -> list[float]:
    """Minus the published right side, at each step and prompt with sigma <= 1/2."""
    prompts = [r["by_prompt"] for r in steps]
    pairs = [p for by in prompts for p in zip(by["sigma"], by["published"], strict=True)]
    return [-published for sigma, published in pairs if sigma <= 0.5]


def bandit_claims(steps: Sequence[Record], delta: float) -> list[Claim]:
    """Every step, the worst prompt."""

    def every(text: str, slack: Callable[[Record], float]) -> Claim:
        return claim("bandit", text, "exact", [slack(r) for r in steps])

    return [
        every("ΔJ = σ (L(π) − L(π_k))", lambda r: -r["identity_error"]),
        every("minorise-maximise ≤ ΔJ", lambda r: r["slack/mm"]),
        every("sharp bound ≤ ΔJ", lambda r: r["slack/sharp"]),
        every("stale bound ≤ ΔJ", lambda r: r["slack/stale"]),
        every("published bound ≤ ΔJ", lambda r: r["slack/published"]),
        every("certificate's mean ≤ ΔJ", lambda r: r["slack/certificate/mean"]),
        claim("bandit", "published bound ≤ 0 where σ ≤ ½: vacuous", "exact", vacuity(steps)),
        claim(
            "bandit",
            f"certificate ≤ ΔJ, each with confidence {1 - delta:.0%}",
            "confidence",
            [r["value/gain"] - r["certificate"] for r in steps],
        ),
    ]


def run_claims(steps: Sequence[Record]) -> list[Claim]:
    """Not refuted: the slack's 95 % interval reaches zero."""
    names = {"mm": "minorise-maximise", "sharp": "sharp bound", "stale": "stale bound"}
    return [
        claim("run, steps", f"{text} ≤ ΔJ", "sampled", [r[f"slack/{name}/high"] for r in steps])
        for name, text in {**names, "published": "published bound"}.items()
    ]


def period_claims(periods: Sequence[Record], delta: float) -> list[Claim]:
    """J measured anew after the period, against what the samples before it said."""

    def every(text: str, kind: Kind, slack: Callable[[Record], float]) -> Claim:
        return claim("run, periods", text, kind, [slack(r) for r in periods])

    return [
        every(
            "ΔJ by importance sampling = ΔJ measured anew (intervals meet)",
            "sampled",
            lambda r: (
                min(r["gain/high"], r["value/gain/high"]) - max(r["gain/low"], r["value/gain/low"])
            ),
        ),
        *(
            every(
                f"{text} ≤ ΔJ measured anew",
                "sampled",
                lambda r, name=name: r["value/gain/high"] - r[f"{name}/low"],
            )
            for name, text in (("mm", "minorise-maximise"), ("sharp", "sharp bound"))
        ),
        every(
            f"certificate ≤ ΔJ measured anew, each with confidence {1 - delta:.0%}",
            "confidence",
            lambda r: r["value/gain/high"] - r["certificate"],
        ),
    ]


def variance_claims(pairs: Sequence[Record]) -> list[Claim]:
    """Every pair of policies."""

    def every(text: str, slack: Callable[[Record], float]) -> Claim:
        return claim("variance", text, "exact", [slack(r) for r in pairs])

    return [
        every("importance sampling is unbiased", lambda r: -abs(r["bias"])),
        every("n Var ≤ 1 + χ² = n / n_eff", lambda r: 1 / r["effective_share"] - r["variance"]),
        every("exp(KL) ≤ 1 + χ²", lambda r: r["chi_square"] - r["expm1_kl"]),
        every("χ² ≤ κ(max ρ) KL", lambda r: r["kappa"] * r["kl"] - r["chi_square"]),
    ]


def clip_claims(sizes: Sequence[Record]) -> list[Claim]:
    """Every sample size."""
    rules = ("sqrt_n", "high_probability", "proposed", "unclipped")

    def every(text: str, slack: Callable[[Record], float]) -> Claim:
        return claim("clip", text, "exact", [slack(r) for r in sizes])

    return [
        every("τ* solves the fixed point", lambda r: -abs(r["tau/optimal"] - r["fixed_point"])),
        every("MSE(τ*) ≤ MSE of every cap drawn", lambda r: min(r["mse"]) - r["mse/optimal"]),
        every(
            "MSE(τ*) ≤ MSE of every other rule",
            lambda r: min(r[f"mse/{rule}"] for rule in rules) - r["mse/optimal"],
        ),
    ]
