"""A training run, and its weights' sampled Pass@1 at lower temperatures at its end."""

from dataclasses import replace

from experiments.grid.cell import Cell
from experiments.grid.train import Bench, row_of
from ogrpo.loop import DivergedError, start, train
from ogrpo.loop.evaluate import evaluate
from ogrpo.loop.parts import Record

TEMPERATURES = (0.25, 0.5, 0.75)
"""Beside that of the run's own evaluations, 1."""
MEASURE = "experiments.real.measure:trained"


def trained(cell: Cell, bench: Bench) -> Record:
    """Returns a run's row, with `temperatures`: sampled Pass@1 at each, of the last weights."""
    records, compiled, ended, state = [], [], "whole", None
    with bench.parts(cell.config) as (_, parts, first):
        before = bench.clock.seconds
        try:
            for turn in train(start(first, parts), parts):
                state, record = turn
                records.append(record)
                compiled.append(bench.clock.seconds - before)
                before = bench.clock.seconds
        except DivergedError as error:
            ended = f"diverged: {error}"
        scores = {"1": records[-1].get("pass@1/sampled")}
        if state is not None and ended == "whole":
            for temperature in TEMPERATURES:
                sampling = replace(parts.evaluator.sampling, temperature=temperature)
                evaluator = replace(parts.evaluator, sampling=sampling)
                record = evaluate(state, replace(parts, evaluator=evaluator), None)
                scores[f"{temperature:g}"] = record["pass@1/sampled"]
    return {**row_of(records, compiled, ended, cell.watch), "temperatures": scores}
