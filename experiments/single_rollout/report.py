"""What the rows of `single-rollout` say: scores by interval, and how noisy the gradients are."""

from collections.abc import Sequence

import numpy as np

from experiments.grid.choose import reported
from experiments.grid.crossed import Crossed, against_at
from experiments.grid.rows import Row
from experiments.grid.signals import ending, fallen, measured
from experiments.grid.study import Section
from experiments.grid.tables import over_run, score
from experiments.single_rollout.methods import REFERENCE

INTERVAL = "sync_interval"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "ess")


def sections(
    rows: Sequence[Row], methods: Sequence[str], intervals: Sequence[int]
) -> list[Section]:
    """The page."""
    return Crossed(
        coordinate=INTERVAL,
        heads={interval: f"interval {interval}" for interval in intervals},
        labels=methods,
        columns=(
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("norm of the gradient", over_run("grad_norm")),
            ("signal to noise", signal_to_noise),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("fell", fallen),
            (f"against {REFERENCE}", against_at(reported(rows), REFERENCE, INTERVAL)),
        ),
        signals=SIGNALS,
        ending="Final held-out Pass@1, sampled; all take as many completions and updates.",
        whole="KL and entropy are means over the last tenth of a run, the norm of the gradient over"
        " all of it. Signal to noise is the squared norm of an update's gradient over the variance"
        " that its groups say it has, median over evaluations and seeds: it compares whatever an"
        " advantage is divided by, and is below 0 where noise is all there is. Fell: seeds whose"
        " Pass@1 was at some evaluation below .7 of the best before. The last column but one is"
        " the difference, seed by seed, to GRPO with groups of 8 at the same interval.",
    ).sections(rows)


def signal_to_noise(trials: Sequence[Row]) -> str:
    """Median over evaluations and seeds: a ratio of noisy estimates has wild ones."""
    values = np.concatenate([measured(row, "grad_snr") for row in trials])
    return f"{np.median(values):.2f}" if len(values) else "–"
