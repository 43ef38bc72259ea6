"""What the rows of `single-rollout` say: scores by interval, and how noisy the gradients are."""

from collections.abc import Sequence

import numpy as np

from experiments.grid.choose import reported
from experiments.grid.crossed import against_at, by_value, curves_at, scores
from experiments.grid.rows import Row
from experiments.grid.signals import ending, fallen, measured
from experiments.grid.study import Section
from experiments.grid.tables import Table, over_run, score, summary
from experiments.single_rollout.methods import REFERENCE

INTERVAL = "sync_interval"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "ess")


def sections(
    rows: Sequence[Row], methods: Sequence[str], intervals: Sequence[int]
) -> list[Section]:
    """The page."""
    told = reported(rows)
    heads = {interval: f"interval {interval}" for interval in intervals}
    return [
        Section(
            "Where each method ends",
            "Final held-out Pass@1, sampled, on seeds and problems that nothing was chosen on: mean"
            " ± standard error over seeds. All take as many completions and updates.",
            [scores(told, methods, INTERVAL, heads, name="scores")],
        ),
        Section(
            "All of it",
            "KL and entropy are means over the last tenth of a run, the norm of the gradient over"
            " all of it. Signal to noise is the squared norm of an update's gradient over the"
            " variance that its groups say it has, median over evaluations and seeds: it compares"
            " whatever an advantage is divided by, and is below 0 where noise is all there is."
            " Fell: seeds whose Pass@1 was at some evaluation below .7 of the best before. The"
            " last column but one is the difference, seed by seed, to GRPO with groups of 8 at"
            " the same interval.",
            [whole_table(rows, methods)],
        ),
        *curves_at(told, methods, SIGNALS, INTERVAL, heads),
    ]


def whole_table(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    """Every method at every interval, with its signals."""
    return summary(
        rows,
        (
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("norm of the gradient", over_run("grad_norm")),
            ("signal to noise", signal_to_noise),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("fell", fallen),
            (f"against {REFERENCE}", against_at(reported(rows), REFERENCE, INTERVAL)),
        ),
        order=by_value(INTERVAL, methods),
    )


def signal_to_noise(trials: Sequence[Row]) -> str:
    """Median over evaluations and seeds: a ratio of noisy estimates has wild ones."""
    values = np.concatenate([measured(row, "grad_snr") for row in trials])
    return f"{np.median(values):.2f}" if len(values) else "–"
