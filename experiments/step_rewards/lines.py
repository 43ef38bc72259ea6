"""What lines tell that the outcome does not, in the answers that the policy begins with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.grid.tables import Table
from ogrpo.config.train import WarmStart
from ogrpo.tasks.arithmetic import careless_answer, generate
from ogrpo.tasks.problems import Problem, final_answer
from ogrpo.tasks.step_rewards import line_rewards

PROBLEMS, GROUP, SEED = 2000, 8, 0


@dataclass(frozen=True)
class Judged:
    """A group's answers: right or not, and the share of the solution's lines that are right."""

    lines: int
    right: np.ndarray
    shares: np.ndarray


def judged(solution: str, answers: Sequence[str]) -> Judged:
    """The answers to one problem, by their outcome and by their lines."""
    wanted = final_answer(Problem("", solution))
    right = [final_answer(Problem("", answer)) == wanted for answer in answers]
    shares = [sum(step.reward for step in line_rewards(answer, solution)) for answer in answers]
    lines = len(line_rewards(solution, solution))
    return Judged(lines, np.array(right), np.round(shares, 6))


def of_teacher(problems: int = PROBLEMS, group: int = GROUP, seed: int = SEED) -> list[Judged]:
    """Groups of the careless teacher's answers, which the policy imitates before the first step."""
    rng, teacher = np.random.default_rng(seed), WarmStart().teacher
    return [
        judged(p.answer, [careless_answer(p, rng, teacher) for _ in range(group)])
        for p in generate(problems, seed)
    ]


def line_table(found: Sequence[Judged]) -> Table:
    """By the number of a solution's lines: how often outcome and lines say different things."""
    heads = (
        *("lines of the solution", "problems", "right outcomes", "right lines"),
        *("wrong outcomes with a right line", "right outcomes with a wrong line"),
        *("groups of equal outcomes", "of those, lines differ"),
    )
    sizes = sorted({group.lines for group in found})
    return Table("lines", heads, [_told(f"{n}", [g for g in found if g.lines == n]) for n in sizes])


def _told(name: str, found: Sequence[Judged]) -> list[str]:
    right = np.array([group.right for group in found])
    shares = np.array([group.shares for group in found])
    equal = (right == right[:, :1]).all(axis=1)
    differ = (shares != shares[:, :1]).any(axis=1)
    shown = (right, shares, (shares > 0)[~right], (shares < 1)[right], equal, differ[equal])
    return [name, f"{len(found)}", *(f"{np.mean(x):.2f}" if x.size else "–" for x in shown)]
