"""The dials of Algorithm 1 and of reuse."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro
from annotated_types import Gt

from ogrpo.system.values import Count, Index, NonNegative, OptionalCount, Positive, metavar


def also(*names: str) -> Any:
    """Other names of an option on the command line."""
    return tyro.conf.arg(aliases=names)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The steps of a run, and what happens at which.

    A step collects one batch of groups, puts them into the replay buffer, draws from it `replay`
    times and takes `updates_per_batch` updates on each draw.
    """

    steps: Count = 240
    """Steps in the whole run."""
    updates_per_batch: Annotated[Count, also("--schedule.i")] = 1
    """Updates on each batch that is drawn (the papers' i)."""
    sync_interval: Annotated[Count, also("--schedule.v")] = 1
    """Steps between two synchronisations of the server's weights (the papers' v)."""
    sync_offset: Index = 0
    """Batches that may be asked for ahead of the step that trains on them. 0 collects and trains in
    turn; more overlap the two and make the samples that many steps older."""
    replay: Count = 1
    """Batches drawn from the buffer in a step: a group is drawn replay * draw / prompts times."""
    warmup: Index = 0
    """First steps that only collect."""
    offline: bool = False
    """Collect during the warm-up alone, from the initial policy, and train on that."""
    stages: Count = 1
    """S: the reference policy is replaced by the trainer's at the start of each stage."""
    reset_optimizer: bool = False
    """Start each stage with the optimizer as it was before the first update."""
    prompts: Count = 16
    """Prompts that a step collects a group of."""
    draw: OptionalCount = None
    """Groups in a batch that is drawn from the buffer; default: as many as a step collects."""
    evaluate_every: Count = 40
    """Steps between two evaluations; the first and the last step are always evaluated."""

    @property
    def draw_size(self) -> int:
        """Groups in a batch that an update takes."""
        return self.draw or self.prompts

    def starts_stage(self, step: int) -> bool:
        """Whether the reference is swapped before this step."""
        return any(step == stage * self.steps // self.stages for stage in range(self.stages))

    def collects(self, step: int) -> bool:
        """Whether this step takes fresh groups."""
        return step < self.warmup or not self.offline

    def draws(self, step: int) -> int:
        """Batches drawn from the buffer in this step, at most."""
        return 0 if step < self.warmup else self.replay

    def evaluates(self, steps: int) -> bool:
        """Whether the policy is evaluated after so many steps."""
        return steps % self.evaluate_every == 0 or steps == self.steps

    def renews(self, step: int) -> bool:
        """Whether the server is due for new weights before this step."""
        trained = step > self.warmup
        return trained and step % self.sync_interval == 0 and not self.offline

    def update_index(self, step: int, draw: int, iteration: int) -> int:
        """The place of an update among all that the run may take."""
        return ((step - self.warmup) * self.replay + draw) * self.updates_per_batch + iteration

    @property
    def updates(self) -> int:
        """The most updates that the run may take."""
        return (self.steps - self.warmup) * self.replay * self.updates_per_batch


@dataclass(frozen=True, kw_only=True)
class ReuseLimits:
    """Limits at which each signal says that the data are used up."""

    kl: Positive = 0.02
    """KL(pi||mu) in nats a token."""
    ess: Positive = 0.1
    """Lost share of the effective sample size of the tokens."""
    tail: Positive = 1.0
    """Log of the 99 % quantile of the token ratios."""
    staleness: bool = True
    """Whether the criterion for stale samples counts too."""
    clip_step: NonNegative = 0.0
    """Log-step of the clip's width after each step; 0 leaves it as it is."""
    clip_range: Annotated[float, Gt(1), metavar("FLOAT>1")] = 2.0
    """The clip may become so many times wider or narrower than it was at first."""


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """Whether measured signals, and not the schedule alone, say when data are used up."""

    adaptive: bool = False
    """End a step's draws, renew the server and set the clip's width by the signals below;
    schedule.replay and schedule.sync-interval are then the most that may happen."""
    limits: ReuseLimits = field(default_factory=ReuseLimits)
