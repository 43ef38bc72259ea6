"""What the rows of `step-rewards` say, and what lines of this task can tell at all."""

from collections.abc import Sequence
from functools import cache

from experiments.grid.choose import reported
from experiments.grid.crossed import Crossed, against_at
from experiments.grid.rows import Row
from experiments.grid.signals import ending, fallen
from experiments.grid.study import Section
from experiments.grid.tables import Table, Value, over_run, score
from experiments.step_rewards.lines import line_table, of_teacher
from experiments.step_rewards.methods import REFERENCES

INTERVAL = "sync_interval"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "reward")


def sections(
    rows: Sequence[Row], methods: Sequence[str], intervals: Sequence[int]
) -> list[Section]:
    """The page."""
    final_rows = reported(rows)

    def to_outcome(trials: Sequence[Row]) -> Value:
        return against_at(final_rows, REFERENCES[trials[0]["label"]], INTERVAL)(trials)

    lines = Section(
        "What lines tell that the outcome does not",
        "Shares in groups of 8 answers of the careless teacher, whom the policy imitates before"
        " a run begins; computed without a run. Groups of equal outcomes teach nothing without"
        " steps: the last column is the share of them in which steps tell answers apart.",
        [_lines()],
    )
    crossed = Crossed(
        coordinate=INTERVAL,
        heads={interval: f"interval {interval}" for interval in intervals},
        labels=methods,
        columns=(
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("norm of the gradient", over_run("grad_norm")),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("tokens a completion", ending("tokens/completion", ".1f")),
            ("fell", fallen),
            ("against the outcome", to_outcome),
        ),
        signals=SIGNALS,
        ending="Final held-out Pass@1, sampled, of the outcome.",
        whole="KL and entropy are means over the last tenth of a run, the norm of the gradient over"
        " all of it. Fell: seeds whose Pass@1 was at some evaluation below .7 of the best before."
        " The last column but one is the difference, seed by seed, to the same advantage of the"
        " outcome alone at the same interval: RLOO for sums, GRPO for GRPO.",
    )
    return [lines, *crossed.sections(rows)]


@cache
def _lines() -> Table:
    return line_table(of_teacher())
