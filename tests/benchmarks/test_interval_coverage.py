import numpy as np
import pytest

from benchmarks.interval_coverage import Population, pass_truth


@pytest.mark.parametrize("kind", ["alike", 0.1, 0.7])
def test_the_true_pass_at_k_is_that_of_skills(kind):
    population = Population(0.4, kind)
    skills = population.skills(np.random.default_rng(1), 40_000)
    expected = np.mean(1 - (1 - skills) ** 4)
    assert pass_truth(population, 4) == pytest.approx(expected, abs=4 * 0.5 / 200)
