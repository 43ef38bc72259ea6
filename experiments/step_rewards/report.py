"""What the rows of `step-rewards` say, and what lines of this task can tell at all."""

from collections.abc import Sequence
from functools import cache

from experiments.grid.choose import reported
from experiments.grid.crossed import against_at, by_value, curves_at, scores
from experiments.grid.rows import Row
from experiments.grid.signals import ending, fallen
from experiments.grid.study import Section
from experiments.grid.tables import Table, over_run, score, summary
from experiments.step_rewards.lines import line_table, of_teacher
from experiments.step_rewards.methods import REFERENCES

INTERVAL = "sync_interval"
SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "reward")


def sections(
    rows: Sequence[Row], methods: Sequence[str], intervals: Sequence[int]
) -> list[Section]:
    """The page."""
    told = reported(rows)
    heads = {interval: f"interval {interval}" for interval in intervals}
    return [
        Section(
            "What lines tell that the outcome does not",
            "Shares in groups of 8 answers of the careless teacher, whom the policy imitates before"
            " a run begins; computed without a run. Groups of equal outcomes teach nothing without"
            " steps: the last column is the share of them in which steps tell answers apart.",
            [_lines()],
        ),
        Section(
            "Where each method ends",
            "Final held-out Pass@1, sampled, of the outcome, on seeds and problems that nothing was"
            " chosen on: mean ± standard error over seeds.",
            [scores(told, methods, INTERVAL, heads, name="scores")],
        ),
        Section(
            "All of it",
            "KL and entropy are means over the last tenth of a run, the norm of the gradient over"
            " all of it. Fell: seeds whose Pass@1 was at some evaluation below .7 of the best"
            " before. The last column but one is the difference, seed by seed, to the same"
            " advantage of the outcome alone at the same interval: RLOO for sums, GRPO for GRPO.",
            [whole_table(rows, methods)],
        ),
        *curves_at(told, methods, SIGNALS, INTERVAL, heads),
    ]


@cache
def _lines() -> Table:
    return line_table(of_teacher())


def whole_table(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    """Every method at every interval, with its signals."""
    told = reported(rows)

    def to_outcome(trials: Sequence[Row]) -> str:
        return against_at(told, REFERENCES[trials[0]["label"]], INTERVAL)(trials)

    return summary(
        rows,
        (
            ("Pass@1, sampled", score()),
            ("Pass@1, greedy", score("pass@1/greedy")),
            ("norm of the gradient", over_run("grad_norm")),
            ("KL(π‖μ)", ending("kl/pi_mu", ".2g")),
            ("entropy", ending("entropy", ".3f")),
            ("tokens a completion", ending("tokens/completion", ".1f")),
            ("fell", fallen),
            ("against the outcome", to_outcome),
        ),
        order=by_value(INTERVAL, methods),
    )
