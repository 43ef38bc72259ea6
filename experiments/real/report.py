"""Report of `real`: greedy Pass@1, the best over temperatures, Pass@8."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path

from experiments.grid.choose import SCORE, of_labels, reported
from experiments.grid.figures import all_axes
from experiments.grid.rows import Row
from experiments.grid.signals import ending
from experiments.grid.study import Picture, Section
from experiments.grid.tables import average, claims_table, score, summary
from experiments.real.methods import CLAIMS

PROTOCOL = Path(__file__).with_name("protocol.md")
PRIMARY = "pass@1/greedy"


def sections(rows: Sequence[Row], methods: Sequence[str], rates: Sequence[float]) -> list[Section]:
    """The page."""
    rows = of_labels([with_best(row) for row in rows], methods)
    digest = hashlib.sha256(PROTOCOL.read_bytes()).hexdigest()
    return [
        Section(
            "Protocol",
            f"experiments/real/protocol.md, SHA-256 {digest}: written before the runs.",
        ),
        Section(
            "Claims",
            "Decided on greedy Pass@1, the first measure of protocol.md, by the rule of"
            " docs/studies.md.",
            [
                replace(
                    claims_table(CLAIMS, [on_primary(row) for row in rows]), name="claims-greedy"
                )
            ],
        ),
        Section(
            "Scores",
            "Held-out problems, mean and 95 % interval over seeds that nothing was chosen on. Best"
            " sampled is the highest of the temperatures .25, .5, .75 and 1, so that a method that"
            " sharpens alone gains nothing. Rates are chosen by greedy Pass@1 on validation"
            f" problems, of {', '.join(f'{rate:g}' for rate in rates)}.",
            [
                summary(
                    rows,
                    (
                        ("completions", average("completions")),
                        ("updates", average("updates")),
                        ("greedy", score(PRIMARY)),
                        ("best sampled", score("pass@1/best")),
                        ("sampled, T = 1", score()),
                        ("Pass@8", score("pass@8/sampled")),
                        ("tokens a completion", ending("tokens/completion", ".1f")),
                        ("mismatch", ending("mismatch", ".2g")),
                        ("ESS", ending("ess", ".3f")),
                        ("entropy", ending("entropy", ".3f")),
                    ),
                )
            ],
        ),
        Section("Curves", "", pictures=[Picture("curves", partial(all_axes, reported(rows)))]),
    ]


def on_primary(row: Row) -> Row:
    """The row with greedy Pass@1 where the rule looks for a score."""
    return {**row, "final": {**row["final"], SCORE: row["final"].get(PRIMARY)}}


def with_best(row: Row) -> Row:
    """The row with the best of sampled Pass@1 over temperatures among its final scores."""
    known = [value for value in row.get("temperatures", {}).values() if value is not None]
    return {**row, "final": {**row["final"], "pass@1/best": max(known, default=nan)}}
