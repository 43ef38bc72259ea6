"""Coverage of the 95 % intervals of Pass@1 and Pass@k, by simulation.

    python -m benchmarks.interval_coverage             # the tables of docs/evaluation.md, 5 minutes
    python -m benchmarks.interval_coverage --runs 200  # a look, half a minute

Problems are drawn from a population of which the mean skill is known, and each problem's samples
from its skill. `Population.kind` says how problems differ:

- a number r in (0, 1): skills are beta distributed with intra-class correlation r
- "alike": all have the mean skill
- "always": each is always right or always wrong
- "half": hard problems are right half the time, all others always (or, at means below .5, never)
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray

from benchmarks.rows import table
from ogrpo.evaluation import Estimate, clustered_interval, pass_at_k

MEANS = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)
PROBLEMS = (1, 2, 3, 5, 10, 17, 30, 64, 128, 256, 512)
SAMPLES = (1, 4, 16, 64)
HEAD = ("settings", "least coverage", "below .93", "mean coverage")
KINDS = ("alike", 0.1, 0.3, 0.7, "half", "always")


class Population(NamedTuple):
    """Problems whose skills, the chances of a right sample, have the mean `mean`."""

    mean: float
    kind: float | str

    def skills(self, rng: np.random.Generator, problems: int) -> NDArray[np.float64]:
        """Draws the skills of problems."""
        if self.kind == "alike":
            return np.full(problems, self.mean)
        if self.kind == "always":
            return (rng.random(problems) < self.mean) * 1.0
        if self.kind == "half":
            often = self.mean >= 0.5
            mixed = rng.random(problems) < 2 * min(self.mean, 1 - self.mean)
            return np.where(mixed, 0.5, float(often))
        size = 1 / float(self.kind) - 1
        return rng.beta(self.mean * size, (1 - self.mean) * size, problems)


def coverage(
    population: Population,
    problems: int,
    samples: int,
    *,
    runs: int,
    seed: int,
    truth: float | None = None,
    interval: Callable[[NDArray[np.float32]], Estimate] = clustered_interval,
) -> float:
    """Returns the share of intervals of `runs` simulated evaluations that hold the truth.

    The truth is the population's mean unless there is another.
    """
    rng = np.random.default_rng(seed)
    truth = population.mean if truth is None else truth
    held = 0
    for _ in range(runs):
        skills = population.skills(rng, problems)
        outcomes = (rng.random((problems, samples)) < skills[:, None]).astype(np.float32)
        estimate = interval(outcomes)
        held += estimate.low <= truth <= estimate.high
    return held / runs


def pass_truth(population: Population, k: int) -> float:
    """The population's Pass@k, E[1 - (1 - skill)^k], of the kinds that have a closed form."""
    if population.kind == "alike":
        return 1 - (1 - population.mean) ** k
    size = 1 / float(population.kind) - 1
    wrong = (1 - population.mean) * size
    return 1 - float(np.prod([(wrong + j) / (size + j) for j in range(k)]))


def settings() -> Iterator[tuple[Population, int, int]]:
    """Every population, number of problems and of samples; kinds are one where samples are 1."""
    for mean, kind, problems, samples in product(MEANS, KINDS, PROBLEMS, SAMPLES):
        if samples > 1 or kind == "alike":
            yield Population(mean, kind), problems, samples


def main(runs: int = 2000, seed: int = 0) -> None:
    """Prints both tables, of so many evaluations a setting."""
    print(*_pass_at_1(runs, seed), "", *_pass_at_k(runs, seed), sep="\n")


def _pass_at_1(runs: int, seed: int) -> list[str]:
    by_mean: dict[float, list[tuple[float, str]]] = defaultdict(list)
    for population, problems, samples in settings():
        one = coverage(population, problems, samples, runs=runs, seed=seed)
        where = f"{problems} problems, {samples} samples, {population.kind}"
        by_mean[population.mean].append((one, where))
    rows = [_row(f"{mean:g}", cells) for mean, cells in by_mean.items()]
    return table(["mean", *HEAD], rows)


def _pass_at_k(runs: int, seed: int) -> list[str]:
    rows = []
    for mean, k in product((0.1, 0.5, 0.9), (4, 16)):
        cells = []
        for kind, problems in product(("alike", 0.1, 0.3, 0.7), (10, 30, 128, 512)):
            population = Population(mean, kind)
            how = {"runs": runs, "seed": seed, "truth": pass_truth(population, k)}
            one = coverage(population, problems, 16, interval=partial(pass_at_k, k=k), **how)
            cells.append((one, f"{problems} problems, {kind}"))
        rows.append(_row(f"{mean:g}, k = {k}", cells))
    return table(["mean, k of 16 samples", *HEAD], rows)


def _row(name: str, cells: Sequence[tuple[float, str]]) -> list[str]:
    shares = [share for share, _ in cells]
    least, where = min(cells, key=itemgetter(0))
    low = sum(share < 0.93 for share in shares)
    mean = np.mean(shares)
    return [name, f"{len(cells)}", f"{least:.3f} ({where})", f"{low}", f"{mean:.3f}"]


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
