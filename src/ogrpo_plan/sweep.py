"""The simulation of a plan: its own workers, and other numbers of them as fast as these."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ogrpo_plan.config import Plan
from ogrpo_plan.schedule import PlannedSchedule, Times, lengths, push_besides
from ogrpo_plan.simulation import (
    Pipeline,
    ServiceFn,
    Summary,
    drawn_service,
    simulate,
    summarize,
)

LEADS = (0, 1, 4)


class Point(NamedTuple):
    """One simulation: number of workers, lead, and its summary."""

    workers: int
    lead: int
    grown: bool
    """Whether batch, trainer and (with `link.sent` each) pushes grew with the workers."""
    completions_per_second: float
    summary: Summary

    @property
    def name(self) -> str:
        """Label of the line in plots and tables."""
        return f"lead {self.lead}, grown" if self.grown else f"lead {self.lead}"

    def record(self) -> dict[str, Any]:
        """Returns the point as JSON values."""
        return {**self._asdict(), "summary": self.summary._asdict()}


def calls_of(plan: Plan, growth: float = 1.0) -> int:
    """Returns the number of calls that draw a batch."""
    return max(1, round(growth * plan.batch.prompts / plan.serve.groups_per_call))


def service(plan: Plan, spent: Times, calls: int) -> ServiceFn:
    """Returns calls whose mean duration lets the plan's workers draw a batch in `spent.draw`.

    A call lasts as long as the longest of its completions: tokens/s as given or measured has that
    in it already, so only the shape of the distribution is taken from the lengths.
    """
    serve, batch = plan.serve, plan.batch
    mean = spent.draw * serve.workers / calls_of(plan)
    longest = lengths(plan).expected_longest(serve.groups_per_call * batch.group_size)
    return drawn_service(
        lengths(plan),
        calls=calls,
        groups_per_call=serve.groups_per_call,
        group_size=batch.group_size,
        seconds_per_token=mean / longest,
        overhead=0.0,
        seed=plan.seed,
    )


def push_seconds(plan: Plan, spent: Times, growth: float) -> float:
    """Returns the seconds of a push to more servers than the plan has."""
    besides = push_besides(plan)
    return besides + (spent.push - besides) * (growth if plan.link.sent == "each" else 1)


def point(
    plan: Plan,
    spent: Times,
    recommended: PlannedSchedule,
    *,
    workers: int,
    lead: int,
    grown: bool = False,
) -> Point:
    """Simulates the recommended schedule with this number of workers and this lead."""
    growth = workers / plan.serve.workers if grown else 1.0
    calls = calls_of(plan, growth)
    pipeline = Pipeline(
        steps=max(plan.steps, 2 * (recommended.v + lead) + 2),
        workers=workers,
        lead=lead,
        v=recommended.v,
        sync_seconds=push_seconds(plan, spent, growth),
        in_flight=plan.link.in_flight,
    )
    trace = simulate(pipeline, service(plan, spent, calls), lambda _step: recommended.train_seconds)
    summary = summarize(trace, lead=lead, v=recommended.v)
    collected = calls * plan.serve.groups_per_call * plan.batch.group_size
    return Point(workers, lead, grown, collected * summary.steps_per_second, summary)


def sweep(
    plan: Plan, spent: Times, recommended: PlannedSchedule, leads: Sequence[int] = LEADS
) -> Iterator[Point]:
    """Simulates every number of workers at each lead, and with a batch that grows with them.

    With one batch, what (lead + 1) batches of calls can occupy bounds what more workers bring. The
    batch grows, and the trainer with it so that its seconds stay, from the plan's workers on.
    """
    planned = recommended.lead
    places = [(n, lead, False) for lead in sorted({planned, *leads}) for n in plan.workers]
    places += [(n, planned, True) for n in plan.workers if n >= plan.serve.workers]
    for workers, lead, grown in places:
        yield point(plan, spent, recommended, workers=workers, lead=lead, grown=grown)
