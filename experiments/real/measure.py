"""A training run, and its weights' sampled Pass@1 at lower temperatures at its end."""

from dataclasses import replace

from experiments.grid.cell import Cell
from experiments.grid.train import Bench, row_of, train_run
from ogrpo.loop.evaluate import evaluate
from ogrpo.loop.parts import Record

TEMPERATURES = (0.25, 0.5, 0.75)
"""Beside that of the run's own evaluations, 1."""
MEASURE = "experiments.real.measure:trained"


def trained(cell: Cell, bench: Bench) -> Record:
    """Returns a run's row, with `temperatures`: sampled Pass@1 at each, of the last weights."""
    with bench.parts(cell.config) as (_, parts, first):
        run = train_run(parts, first, bench.clock)
        scores = {"1": run.records[-1].get("pass@1/sampled")}
        if run.state is not None and run.ended == "whole":
            for temperature in TEMPERATURES:
                sampling = replace(parts.evaluator.sampling, temperature=temperature)
                evaluator = replace(parts.evaluator, sampling=sampling)
                record = evaluate(run.state, replace(parts, evaluator=evaluator), None)
                scores[f"{temperature:g}"] = record["pass@1/sampled"]
    return {**row_of(run, cell.watch), "temperatures": scores}
