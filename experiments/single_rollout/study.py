"""`single-rollout`: is one completion a prompt enough, and may it be reused off policy?

Command: python -m experiments.run single-rollout
Hardware and time: two CPU cores, 126 cells of about 5 CPU-seconds and 7 programs to compile.

Open question 3 of arXiv:2505.22257. One completion of each of 128 prompts, with a baseline that
needs no siblings, beside groups of 4 and 8: completions and updates are the same for all, and so is
the loss, a clipped importance-weighted mean over tokens (`rec_one_side_is`), which on fresh samples
has REINFORCE's gradient. What differs is the advantage and how many prompts a step sees. The
sampler is renewed at every step, or every 20. Each method has its own learning rate at each
interval, the best of `rates` on tuning seeds and validation problems.

Left out unless asked for: other losses (`--loss reinforce` has neither clip nor weights), other
intervals (`--intervals`), rates of the running mean (`--base.override.baseline-rate`, with
`--methods "running baseline"`), and a learned baseline, which is PPO's and no advantage of these
losses: `rec --methods PPO --base.rollout.group-size 1 --base.schedule.prompts 128`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from experiments.grid.columns import FELL, GRADIENT, PASS_AT_1, POLICY, Column, against_at
from experiments.grid.rows import Rows, reported
from experiments.grid.signals import measured
from experiments.grid.study import Crossing, TunedStudy, intervals
from experiments.grid.tables import Section
from experiments.grid.verdicts import claim
from ogrpo.system.values import Count, require

METHODS = {
    "running baseline": (1, "running_baseline"),
    "other prompts": (1, "leave_prompt_out"),
    "no baseline": (1, "raw"),
    "RLOO, groups of 4": (4, "leave_one_out"),
    "RLOO, groups of 8": (8, "leave_one_out"),
    "GRPO, groups of 4": (4, "group_standardized"),
    "GRPO, groups of 8": (8, "group_standardized"),
}
"""Name -> completions of a prompt, and the advantage: above the mean reward of the steps before, of
the other prompts, or of nothing; above that of a prompt's other completions; or above its group's
and divided by the group's standard deviation."""

REFERENCE = "GRPO, groups of 8"
CLAIMS = tuple(
    claim(f"{name}: above {REFERENCE} {when}", name, "above", REFERENCE, {"sync_interval": v})
    for name in ("running baseline", "other prompts", "no baseline", "GRPO, groups of 4")
    for v, when in ((1, "on policy"), (20, "at interval 20"))
)
"""One completion a prompt, and smaller groups, against groups of eight."""

SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "ess")
ENDING = "Final held-out Pass@1, sampled; all take as many completions and updates."
NOISE = (
    "Signal to noise is the squared norm of an update's gradient over the variance that its groups"
    " say it has, median over evaluations and seeds: it compares whatever an advantage is divided"
    " by, and is below 0 where noise is all there is."
)
SEED_BY_SEED = (
    "The last column but one is the difference, seed by seed, to GRPO with groups of 8 at the same"
    " interval."
)


@dataclass(frozen=True)
class SingleRolloutStudy(TunedStudy):
    """Baselines with and without siblings, at equal completions and updates."""

    name = "single-rollout"
    question = "Is one completion a prompt enough, and may it be reused off policy?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {
        "methods": ("running baseline", "GRPO, groups of 8"),
        "intervals": (2,),
        "completions": 16,
    }

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    intervals: tuple[int, ...] = (1, 20)
    """Steps between two renewals of the sampler."""
    completions: Count = 128
    """Completions a step, whatever the groups."""
    loss: str = "rec_one_side_is"
    """The algorithm whose loss all share; its advantage is the method's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = [METHODS[name][0] for name in self.methods]
        fits = all(self.completions % size == 0 for size in sizes)
        remedy = f"give a multiple of {' and '.join(map(str, sorted({*sizes})))}"
        require(fits, f"completions is {self.completions}, which are no whole groups: {remedy}")

    @property
    def crossing(self) -> Crossing:
        """Every method at every interval; the loss and the completions of a step are equal."""
        samples = self.base.evaluation.samples or self.base.rollout.group_size
        options = {
            name: {
                "algorithm": self.loss,
                "override": {"advantage": advantage, "reduction": "token"},
                "rollout": {"group_size": size},
                "schedule": {"prompts": self.completions // size},
                "evaluation": {"samples": samples},  # its default is a method's own group size
            }
            for name, (size, advantage) in METHODS.items()
        }
        return Crossing(self.methods, options, "sync_interval", intervals(self.intervals))

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns where each method ends at each interval, and its signals on the way."""
        difference = against_at(reported(rows), REFERENCE, "sync_interval")
        columns = (
            *(*PASS_AT_1, GRADIENT, Column("signal to noise", signal_to_noise, NOISE)),
            *(*POLICY, FELL, Column(f"against {REFERENCE}", difference, SEED_BY_SEED)),
        )
        heads = {interval: f"interval {interval}" for interval in self.intervals}
        return self.crossing.sections(rows, columns, heads, SIGNALS, ending=ENDING)


def signal_to_noise(trials: Rows) -> str:
    """Returns the median over evaluations and seeds: a ratio of noisy estimates has wild ones."""
    values = np.concatenate([measured(row, "grad_snr") for row in trials])
    return f"{np.median(values):.2f}" if len(values) else "–"
