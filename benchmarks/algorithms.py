"""Every `--algorithm` trained for a few steps on the default task: does it rise above its start?

Command: python -m benchmarks.algorithms --output algorithms.jsonl
Hardware and time: one core; about 25 CPU seconds a run, two runs a method. A run that the output
has already is not repeated, so that the command can be stopped and given again.
"""

import itertools
import os
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np

from benchmarks.rows import Row, add_row, read_rows, table
from ogrpo.core.algorithms import ALGORITHMS

SCORES = ("pass@1/sampled", "pass@1/greedy")
RATE = 1e-3
"""The default run's learning rate; it is not tuned for each method."""
FEWER = 0.03
"""What a mean over seeds may lie below its start by chance, on 512 problems."""
KEPT = Path(__file__).with_name("algorithms.jsonl.xz")
"""The rows of the table in docs/algebra.md."""
SEEDS = (0, 1)
FREE = (
    "no clip bounds the push away from failures that an older policy drew, at a rate that was"
    " chosen with one"
)
BANDED = (
    "what has left the band is silent whichever way it would go, so that nothing brings it back"
)
UNHELD = ("reinforce", "rloo", "opo", "maxrl", "maxpo", "red_drop", "opmd_min", "opmd_pairwise")
REASONS = {
    **dict.fromkeys(UNHELD, FREE),
    "kl_cov": f"{FREE}; the pull holds one token of a batch of this size",
    **dict.fromkeys(("cispo", "sapo"), f"{FREE}; a bounded weight slows it and does not end it"),
    "vtrace": f"{FREE}; weights of 1 at most slow it",
    "asymre": f"{FREE}; its lower baseline makes that push smaller",
    "decoupled": f"{FREE}: it clips pi/pi_k, which is 1 where a batch has one update",
    **dict.fromkeys(("rec_two_side", "rec_two_side_is", "sppo"), BANDED),
    "oapl": "told below",
    "dpo": "it asks for a gap between completions and not for likely ones: both may become rarer",
}
"""Why a method ends below its start."""


def main(
    output: Path,
    steps: int = 60,
    seeds: tuple[int, ...] = SEEDS,
    algorithms: tuple[str, ...] = tuple(ALGORITHMS),
) -> None:
    """Runs what the output, a file of JSON lines, lacks; prints the table."""
    rows = read_rows(output) if output.exists() else []
    known = {(row["algorithm"], row["seed"], row["steps"]) for row in rows}
    for seed, name in itertools.product(seeds, algorithms):
        if (name, seed, steps) not in known:
            rows.append(row := trained(name, seed, steps))
            add_row(output, row)
    print("\n".join(summary(rows)))


def missing(rows: Iterable[Row]) -> list[str]:
    """Returns the methods that lack a run of one of `SEEDS`."""
    known = {(row["algorithm"], row["seed"]) for row in rows}
    return [name for name in ALGORITHMS if not {(name, seed) for seed in SEEDS} <= known]


def trained(name: str, seed: int, steps: int) -> Row:
    """Returns the scores of a run before its first step and after its last.

    A method that the default task has nothing for, or that ends in an error, has its words instead.
    """
    from rich.console import Console

    from ogrpo.config.method import check
    from ogrpo.config.schedule import Schedule
    from ogrpo.config.train import Evaluation
    from ogrpo.config.update import Optimizer
    from ogrpo.loop import start, train
    from ogrpo.setup.build import make_parts
    from ogrpo.setup.model import make_model
    from ogrpo.setup.prepare import prepare
    from ogrpo.setup.presets import main_study

    begun = time.process_time()
    row: Row = {"algorithm": name, "seed": seed, "steps": steps}
    config = main_study(
        algorithm=name,
        seed=seed,
        schedule=Schedule(steps=steps, sync_interval=10, evaluate_every=steps),
        optimizer=Optimizer(learning_rate=RATE),
        evaluation=Evaluation(gradient_variance=False, token_samples=0),
    )
    try:
        check(config)
        with closing(prepare(config)) as prepared:
            decoder, params = make_model(prepared, Console(quiet=True))
            parts = make_parts(prepared.config, prepared, decoder)
            state = start(parts.learner.init(params), parts)
            records = [record for _, record in train(state, parts)]
    except (ValueError, RuntimeError) as error:
        return {**row, "ended": f"{type(error).__name__}: {error}"[:200]}
    scores = {
        f"{when} {key}": records[place][key]
        for when, place in (("start", 0), ("end", -1))
        for key in SCORES
    }
    return {**row, **scores, "cpu_seconds": round(time.process_time() - begun, 1)}


def summary(rows: Iterable[Row]) -> list[str]:
    """Returns the rows as a table, one line a method, the mean over its seeds."""
    by_name: dict[str, list[Row]] = {}
    for row in rows:
        by_name.setdefault(row["algorithm"], []).append(row)
    head = ["algorithm", "sampled, start", "end", "greedy, start", "end", "seeds", ""]
    lines = []
    for name, group in by_name.items():
        ended = next((row["ended"] for row in group if "ended" in row), None)
        if ended is not None:
            lines.append([f"`{name}`", *[""] * 4, len(group), ended])
            continue
        means = [
            float(np.mean([row[f"{when} {key}"] for row in group]))
            for key in SCORES
            for when in ("start", "end")
        ]
        fell = any(end < begin - FEWER for begin, end in (means[:2], means[2:]))
        rose = any(end > begin + FEWER for begin, end in (means[:2], means[2:]))
        why = f"below its start: {REASONS.get(name, 'not looked into')}"
        why = why if fell else "rises" if rose else "stays"
        lines.append([f"`{name}`", *(f"{mean:.3f}" for mean in means), len(group), why])
    return table(head, lines)


if __name__ == "__main__":
    import tyro  # docs/build_algebra.py reads this module with the algebra's packages alone

    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    tyro.cli(main, description=__doc__)
