"""`centering`: does score centring help on samples that many updates have left behind?

Command: python -m experiments.run centering
Hardware and time: two CPU cores, 99 cells of about 5 CPU-seconds and 9 programs to compile.

Score centring (arXiv:2609.20807) subtracts from an off-policy gradient E_mu[A w d log pi] its drift
E_mu[A] E_mu[w d log pi], which moves pi by how far mu is from it, whatever a token earned. Three
methods without it, over the likeliest 4 tokens of the sampler, and over all that it can draw, when
nothing of the drift is left; the sampler is renewed every 20 steps. `reinforce` has no weights, the
paper's case; `off_policy_grpo` has a clip's, `dual_clip` bounds them on both sides. Each has its
learning rate at each width, the best of `rates` on tuning seeds and validation problems.

A quantised sampler on a real model, where the paper gains, has its drift measured in `drift`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.grid.columns import FELL, PASS_AT_1, POLICY
from experiments.grid.rows import Rows
from experiments.grid.study import Crossing, TunedStudy
from experiments.grid.tables import Section
from experiments.grid.verdicts import claim

METHODS = ("reinforce", "off_policy_grpo", "dual_clip")
WIDTHS = {"plain": 0, "4 tokens": 4, "all tokens": 1024}
"""Tokens that the drift is summed over; more than the vocabulary are all of it."""
CLAIMS = tuple(
    claim(
        f"{name}: centred over {width}, above plain",
        *(name, "above", name, {"centering": width}, {"centering": "plain"}),
    )
    for name in METHODS
    for width in WIDTHS
    if width != "plain"
)
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "ess")
ENDING = "Final held-out Pass@1, sampled; all take as many completions and updates."


@dataclass(frozen=True)
class CenteringStudy(TunedStudy):
    """Losses with and without the drift of stale samples."""

    name = "centering"
    question = "Does score centring help on samples that many updates have left behind?"
    pages = ("replay.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS, "widths": WIDTHS}
    few: ClassVar = {"methods": ("reinforce",), "widths": ("plain", "4 tokens"), "interval": 2}

    methods: tuple[str, ...] = METHODS
    """Which to run, by name."""
    widths: tuple[str, ...] = tuple(WIDTHS)
    """Tokens that the drift is summed over, by name."""
    interval: int = 20
    """Steps between two renewals of the sampler."""
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Learning rates that are tried, for every method alike."""

    @property
    def crossing(self) -> Crossing:
        """Every method at every width."""
        stale = {"sync_interval": self.interval}
        options = {name: {"algorithm": name, "schedule": stale} for name in METHODS}
        widths = {name: {"override": {"centering": WIDTHS[name]}} for name in self.widths}
        return Crossing(self.methods, options, "centering", widths)

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns where each method ends at each width, and its signals on the way."""
        columns = (*PASS_AT_1, *POLICY, FELL)
        heads = {name: name for name in self.widths}
        return self.crossing.sections(rows, columns, heads, SIGNALS, ending=ENDING)
