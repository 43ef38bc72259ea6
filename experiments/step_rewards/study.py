"""`step-rewards`: does a reward for each step of a solution help, on policy and off?

Command: python -m experiments.run step-rewards
Hardware and time: two CPU cores, 108 cells of about 4 CPU-seconds and 4 programs to compile.

Open question 3 of arXiv:2505.22257. A line of a generated problem's answer is right if its equation
holds and its result is that of the worked solution's line (`ogrpo.tasks.problems`); advantages
are then by token, through the same loss (`rec_one_side_is`) as those of the outcome alone. What is
told is Pass@1, which is of the outcome. Each method has its own learning rate at each interval, the
best of `rates` on tuning seeds and validation problems.

What this task can tell is little: half of its problems have a solution of one line, whose reward is
nearly the outcome's, the other half of two, and an answer has 11 tokens. A page's first table says
how often lines and outcome differ in the answers that a run begins with.

Left out unless asked for: other intervals (`--intervals`). What has no option is the same sum of
outcome and steps as one reward at the end, which would part more reward from earlier reward, and
steps on other tasks, whose solutions have no lines to check.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from experiments.grid.columns import FELL, GRADIENT, LENGTH, PASS_AT_1, POLICY, Column, against_at
from experiments.grid.rows import Rows, reported
from experiments.grid.study import Crossing, TunedStudy, intervals
from experiments.grid.tables import Section, Table
from experiments.grid.variants import Changes
from experiments.grid.verdicts import Relation, claim
from ogrpo.tasks.arithmetic import TEACHER, careless_answer, generate
from ogrpo.tasks.problems import Problem, final_answer, line_rewards


def _of(advantage: str, **knobs: float) -> Changes:
    override = {"advantage": advantage, "reduction": "token"}
    return {"algorithm": "rec_one_side_is", "override": override, "knobs": knobs}


METHODS: dict[str, Changes] = {
    "outcome, RLOO": _of("leave_one_out"),
    "outcome and 0.3 steps": _of("step_returns", step_weight=0.3),
    "outcome and steps": _of("step_returns", step_weight=1.0),
    "outcome and 3 steps": _of("step_returns", step_weight=3.0),
    "outcome, GRPO": _of("group_standardized"),
    "steps alone, GRPO": _of("process_standardized"),
}
"""Name -> options. All have the loss of `rec_one_side_is`, a clipped importance-weighted mean over
tokens, which on fresh samples has REINFORCE's gradient. Outcome and w steps: the reward to come,
w/K for each right line of K, beyond that of the group's others from the same line on, which is RLOO
with w = 0. Steps alone: GRPO with process supervision (arXiv:2402.03300, 4.1.3), which does not
read the outcome."""

REFERENCES = {
    **dict.fromkeys(METHODS, "outcome, RLOO"),
    "outcome, GRPO": "outcome, GRPO",
    "steps alone, GRPO": "outcome, GRPO",
}
"""The method with the outcome alone that each is held against."""

COMPARED: tuple[tuple[str, Relation, str], ...] = (
    ("outcome and steps", "above", "above the outcome alone"),
    ("outcome and 3 steps", "above", "above the outcome alone"),
    ("steps alone, GRPO", "not below", "as well as the outcome alone"),
)
CLAIMS = tuple(
    claim(f"{name}, {when}: {says}", name, relation, REFERENCES[name], {"sync_interval": v})
    for name, relation, says in COMPARED
    for v, when in ((1, "on policy"), (20, "at interval 20"))
)
"""Rewards of steps against that of the outcome."""

SIGNALS = ("pass@1/sampled", "pass@1/greedy", "kl/pi_mu", "entropy", "grad_norm", "reward")
ENDING = "Final held-out Pass@1, sampled, of the outcome."
SEED_BY_SEED = (
    "The last column but one is the difference, seed by seed, to the same advantage of the outcome"
    " alone at the same interval: RLOO for sums, GRPO for GRPO."
)
LINES = (
    "Shares in groups of 8 answers of the careless teacher, whom the policy imitates before a run"
    " begins; computed without a run. Groups of equal outcomes teach nothing without steps: the"
    " last column is the share of them in which steps tell answers apart."
)


@dataclass(frozen=True)
class StepRewardsStudy(TunedStudy):
    """Advantages of outcomes and of lines."""

    name = "step-rewards"
    question = "Does a reward for each step of a solution help, on policy and off?"
    pages = ("results.md",)
    claims = CLAIMS
    known: ClassVar = {"methods": METHODS}
    few: ClassVar = {"methods": ("outcome, RLOO", "outcome and steps"), "intervals": (2,)}

    methods: tuple[str, ...] = tuple(METHODS)
    """Which to run, by name."""
    intervals: tuple[int, ...] = (1, 20)
    """Steps between two renewals of the sampler."""

    @property
    def crossing(self) -> Crossing:
        """Every method at every interval."""
        return Crossing(self.methods, METHODS, "sync_interval", intervals(self.intervals))

    def report(self, rows: Rows) -> Sequence[Section]:
        """Returns what lines can tell, where each method ends, and its signals on the way."""
        difference = against_at(reported(rows), REFERENCES.__getitem__, "sync_interval")
        columns = (
            *(*PASS_AT_1, GRADIENT, *POLICY, LENGTH, FELL),
            Column("against the outcome", difference, SEED_BY_SEED),
        )
        heads = {interval: f"interval {interval}" for interval in self.intervals}
        return [
            Section("What lines tell that the outcome does not", LINES, [line_table(of_teacher())]),
            *self.crossing.sections(rows, columns, heads, SIGNALS, ending=ENDING),
        ]


@dataclass(frozen=True)
class Judged:
    """A group's answers: right or not, and the share of the solution's lines that are right."""

    lines: int
    right: np.ndarray
    shares: np.ndarray


def judged(solution: str, answers: Sequence[str]) -> Judged:
    """Returns the answers to one problem, judged by their outcome and by their lines."""
    gold = final_answer(Problem("", solution))
    right = [final_answer(Problem("", answer)) == gold for answer in answers]
    shares = [sum(step.reward for step in line_rewards(answer, solution)) for answer in answers]
    lines = len(line_rewards(solution, solution))
    return Judged(lines, np.array(right), np.round(shares, 6))


@cache
def of_teacher(problems: int = 2000, group: int = 8) -> list[Judged]:
    """Returns groups of the careless teacher's answers, which the policy first imitates."""
    rng = np.random.default_rng(0)
    return [
        judged(p.answer, [careless_answer(p, rng, TEACHER) for _ in range(group)])
        for p in generate(problems, 0)
    ]


def line_table(groups: Sequence[Judged]) -> Table:
    """Returns how often outcome and lines say different things, by the lines of a solution."""
    heads = (
        *("lines of the solution", "problems", "right outcomes", "right lines"),
        *("wrong outcomes with a right line", "right outcomes with a wrong line"),
        *("groups of equal outcomes", "of those, lines differ"),
    )
    lines = []
    for n in sorted({group.lines for group in groups}):
        alike = [group for group in groups if group.lines == n]
        right = np.array([group.right for group in alike])
        shares = np.array([group.shares for group in alike])
        equal = (right == right[:, :1]).all(axis=1)
        differ = (shares != shares[:, :1]).any(axis=1)
        values = (right, shares, (shares > 0)[~right], (shares < 1)[right], equal, differ[equal])
        means = (f"{np.mean(x):.2f}" if x.size else "–" for x in values)
        lines.append([f"{n}", f"{len(alike)}", *means])
    return Table("lines", heads, lines)
