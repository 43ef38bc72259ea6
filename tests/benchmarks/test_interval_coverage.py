import numpy as np
import pytest

from benchmarks.interval_coverage import KINDS, Population, main, pass_truth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mean", [0.1, 0.9])
def test_a_population_has_its_mean(kind, mean):
    skills = Population(mean, kind).skills(np.random.default_rng(0), 40_000)
    assert skills.mean() == pytest.approx(mean, abs=4 * 0.5 / 200)


@pytest.mark.parametrize("kind", ["alike", 0.1, 0.7])
def test_the_true_pass_at_k_is_that_of_skills(kind):
    population = Population(0.4, kind)
    skills = population.skills(np.random.default_rng(1), 40_000)
    expected = np.mean(1 - (1 - skills) ** 4)
    assert pass_truth(population, 4) == pytest.approx(expected, abs=4 * 0.5 / 200)


def test_the_command_prints_both_tables(capsys):
    main(["--runs", "1"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| 0")]
    assert len(rows) == 12
