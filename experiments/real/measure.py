"""A training run, and what its weights score at its end, at several temperatures."""

from dataclasses import replace

import numpy as np

from experiments.grid.cell import Cell
from experiments.grid.rows import rounded
from experiments.grid.train import Bench, row_of, train_run
from ogrpo.evaluation import success_reward
from ogrpo.loop import start
from ogrpo.loop.evaluate import evaluate, withdraw
from ogrpo.loop.parts import Parts, Record, stream_seed
from ogrpo.loop.state import LoopState

TEMPERATURES = (0.25, 0.5)
"""Beside that of the run's own evaluations, 1."""
ON_THE_WAY = 2
"""Held-out problems of the evaluations within a run, which nothing is shown of."""
SAMPLES = 2
"""Completions a problem at these temperatures; there are `evaluation.samples` at 1."""
TRAINED = "experiments.real.measure:trained"
UNTOUCHED = "experiments.real.measure:untouched"


def trained(cell: Cell, bench: Bench) -> Record:
    """Returns a run's row, whose final scores are of all held-out problems."""
    with bench.parts(cell.config) as (_, parts, first):
        few = replace(parts.prompts, heldout=parts.prompts.heldout[:ON_THE_WAY])
        run = train_run(replace(parts, prompts=few), first, bench.clock)
        row = row_of(run, cell.watch)
        scores = scores_of(run.state, parts) if run.state and run.ended == "whole" else {}
    axes = {name: value for name, value in row["final"].items() if not name.startswith("pass@")}
    return {**row, "final": {**axes, **scores}}


def untouched(cell: Cell, bench: Bench) -> Record:
    """Returns the row of the weights before training."""
    with bench.parts(cell.config) as (_, parts, first):
        return {"ended": "whole", "final": scores_of(start(first, parts), parts)}


def scores_of(state: LoopState, parts: Parts) -> Record:
    """Returns Pass@1 and Pass@k of the weights, and sampled Pass@1 at the other temperatures."""
    record = evaluate(state, parts, None)
    scores = {name: record[name] for name in record if name.count("/") == 1 and name[:4] == "pass"}
    evaluator, seed = parts.evaluator, stream_seed(parts.seed, "evaluation", state.step)
    evaluator.engine.publish(state.train.whole(), state.step)
    for temperature in TEMPERATURES:
        sampling = replace(evaluator.sampling, temperature=temperature, group_size=SAMPLES)
        verdicts = evaluator.judge(evaluator.engine.generate(parts.prompts.heldout, sampling, seed))
        success = success_reward(verdicts.values, verdicts.success)
        assert success is not None, "the judge of the task says right or wrong"
        scores[f"pass@1/sampled at {temperature:g}"] = float(np.mean(verdicts.values[success]))
    withdraw(evaluator.engine)
    best = max(value for name, value in scores.items() if name.startswith("pass@1/sampled"))
    return rounded({**scores, "pass@1/best": best})
