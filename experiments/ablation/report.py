"""What the rows of `ablation` say: the paper's tables, and what each dial changed."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from experiments.ablation.figures import against_pushes, reward_scale_curve
from experiments.ablation.methods import CENTERS, INTERVALS, METHODS, PAPER, PENALTIES, STAGES
from experiments.grid.choose import SCORE, of_labels, reported
from experiments.grid.figures import all_axes, small_multiples
from experiments.grid.rows import Row
from experiments.grid.study import Picture, Section
from experiments.grid.tables import (
    Column,
    Table,
    Value,
    against,
    in_order,
    over_run,
    plus_minus,
    score,
)
from ogrpo.policy.config import SHAPES
from ogrpo.policy.flops import parameters

BYTES = 2 * parameters(SHAPES["qwen2.5-0.5b"]).total
"""Of the paper's model in bfloat16."""
Statistic = Callable[[Sequence[float]], float]
PRINTED: dict[str, Statistic] = {"min": min, "max": max, "median": np.median, "mean": np.mean}


def sections(rows: Sequence[Row]) -> list[Section]:
    """The page."""
    told = reported(rows)
    found = [
        Section(
            "As the paper prints it",
            "Held-out Pass@1, sampled: the statistics are over the evaluations of a run after its"
            " first step, then mean and 95 % t-interval over seeds. The maximum over evaluations is"
            " above what one would get by stopping there, as it is chosen on what it is told of.",
            [printed(rows, PAPER)],
            [Picture("curves", partial(all_axes, of_labels(told, PAPER)))],
        ),
        Section(
            "The constant (1 − σ)/σ",
            "What weighs the distance from the sampler in Corollary 1 of the paper, for rewards 0"
            " and 1 with success rate p: σ² = p (1 − p) + ε. Nothing was run for it.",
            pictures=[Picture("scale", reward_scale_curve)],
        ),
        Section(
            "Swaps, resets and masking",
            "At v = 10. Swaps and masking act through the KL term alone, so that with β = 0 there"
            " is nothing to compare.",
            [dial(rows, "stages", STAGES, "v10-i1")],
            [multiples("swaps", told, STAGES)],
        ),
        Section(
            "β",
            "At v = 10; without a KL term there is no reference to swap.",
            [dial(rows, "beta", PENALTIES, "v10-i1")],
            [multiples("penalty", told, PENALTIES)],
        ),
        Section(
            "Centre of the clip",
            "Four updates on each batch, where the exact centre π_k/μ acts; with one update on a"
            " batch π is π_k when the gradient is taken, and the exact centre never clips. Fresh"
            " samples are π_k's own: π_k/μ is 1, and v1-i4 and v1-i4 exact are the same run.",
            [center(rows)],
            [multiples("center", told, CENTERS)],
        ),
        Section(
            "Cost of communication",
            "Pushes of weights in a run, what they would move for the paper's Qwen2.5-0.5B in"
            f" bfloat16 ({BYTES / 1e9:.2f} GB each), and what is lost by pushing less. A push to"
            " the embedded sampler is a copy in memory; its seconds are this machine's.",
            [communication(rows)],
            [Picture("pushes", partial(against_pushes, of_labels(told, INTERVALS)))],
        ),
    ]
    return [section for section in found if all(table.lines for table in section.tables)]


def multiples(name: str, rows: Sequence[Row], methods: Sequence[str]) -> Picture:
    """What a dial changed on the way."""
    signals = (SCORE, "kl/pi_ref", "kl/pi_mu", "clipped", "entropy", "grad_norm")
    return Picture(name, partial(small_multiples, of_labels(rows, methods), signals))


def printed(rows: Sequence[Row], methods: Sequence[str]) -> Table:
    """The paper's Table 1: statistics over iterations."""
    columns = [(name, over_iterations(found)) for name, found in PRINTED.items()]
    ends: list[Column] = [("final", score()), ("final, against v1-i1", versus(rows, "v1-i1"))]
    return in_order(rows, methods, [*columns, *ends], name="printed")


def over_iterations(statistic: Statistic) -> Callable[[Sequence[Row]], str]:
    """A statistic over a run's evaluations after its first step, told over seeds."""

    def told(rows: Sequence[Row]) -> str:
        return plus_minus([float(statistic(row["evaluations"][SCORE][1:])) for row in rows])

    return told


def versus(rows: Sequence[Row], method: str) -> Callable[[Sequence[Row]], Value]:
    """The difference to a method, seed by seed."""
    return against(of_labels(reported(rows), (method,)))


def dial(rows: Sequence[Row], name: str, methods: Sequence[str], base: str) -> Table:
    """What a dial changed."""
    columns: list[Column] = [
        ("final Pass@1", score()),
        (f"against {base}", versus(rows, base)),
        ("KL(π‖reference)", over_run("kl/pi_ref")),
        ("entropy", over_run("entropy")),
    ]
    return in_order(rows, methods, columns, name=name)


def center(rows: Sequence[Row]) -> Table:
    """Centre 1 against the exact one."""
    columns: list[Column] = [
        ("final Pass@1", score()),
        ("against centre 1", partial(_against_unit, rows)),
        ("clipped", over_run("clipped")),
        ("KL(π‖μ)", over_run("kl/pi_mu")),
    ]
    return in_order(rows, CENTERS, columns, name="center")


def _against_unit(rows: Sequence[Row], trials: Sequence[Row]) -> Value:
    return versus(rows, trials[0]["label"].removesuffix(" exact"))(trials)


def communication(rows: Sequence[Row]) -> Table:
    """What pushing less saves and costs."""
    columns: list[Column] = [
        ("pushes", lambda trials: f"{pushes(trials[0])}"),
        ("moved for 0.5 B, GB", lambda trials: f"{pushes(trials[0]) * BYTES / 1e9:.1f}"),
        ("seconds of a step's push here", over_run("seconds/sync", ".2g")),
        ("staleness, steps", over_run("staleness", ".1f")),
        ("final Pass@1", score()),
        ("against v1-i1", versus(rows, "v1-i1")),
    ]
    return in_order(rows, INTERVALS, columns, name="communication")


def pushes(row: Row) -> int:
    """Renewals of the server's weights in a run, the first weights among them."""
    steps, v = row["final"]["step"], METHODS[row["label"]].v
    return -(-int(steps) // v)
