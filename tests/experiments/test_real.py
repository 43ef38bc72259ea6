"""The study of a real model: its scores are those of its rows."""

from experiments.grid.rows import judged_by
from experiments.real.study import PRIMARY, with_best

ROW = {
    "final": {"pass@1/sampled": 0.2, "pass@1/greedy": 0.4},
    "temperatures": {"1": 0.2, "0.5": 0.5, "0.25": None},
}


def test_the_best_over_temperatures_and_the_first_measure():
    assert with_best(ROW)["final"]["pass@1/best"] == 0.5
    assert judged_by(ROW, PRIMARY)["final"]["pass@1/sampled"] == 0.4
