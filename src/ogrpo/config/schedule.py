"""The dials of Algorithm 1 and of reuse."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

POSITIVE = (
    *("steps", "updates_per_batch", "sync_interval", "stages", "prompts", "replay"),
    "evaluate_every",
)


def also(*names: str) -> Any:
    """Other names of an option on the command line."""
    return tyro.conf.arg(aliases=names)


@dataclass(frozen=True)
class Schedule:
    """What happens at which step.

    A step collects one batch of groups, puts them into the replay buffer, draws from it `replay`
    times and takes `updates_per_batch` updates on each draw.
    """

    steps: int = 240
    """Steps in the whole run."""
    updates_per_batch: Annotated[int, also("--schedule.i")] = 1
    """SGD iterations on each batch that is drawn (the papers' i)."""
    sync_interval: Annotated[int, also("--schedule.v")] = 1
    """Steps between two synchronisations of the server's weights (the papers' v)."""
    sync_offset: int = 0
    """Batches that may be asked for ahead of the step that trains on them. 0 collects and trains in
    turn; more overlap the two and make the samples that many steps older."""
    replay: int = 1
    """Batches drawn from the buffer in a step: updates per fresh group, apart from i."""
    warmup: int = 0
    """First steps that only collect."""
    offline: bool = False
    """Collect during the warm-up alone, from the initial policy, and train on that."""
    stages: int = 1
    """S: the reference policy is replaced by the trainer's at the start of each stage."""
    reset_optimizer: bool = False
    """Start each stage with the optimizer as it was before the first update."""
    prompts: int = 16
    """Prompts in a batch."""
    evaluate_every: int = 40
    """Steps between two evaluations; the first and the last step are always evaluated."""

    def __post_init__(self) -> None:
        for name in (*POSITIVE, "sync_offset", "warmup"):
            least, value = int(name in POSITIVE), getattr(self, name)
            if value < least:
                dial = name.replace("_", "-")
                raise ValueError(
                    f"schedule.{dial} is {value}: give a whole number of at least {least}"
                )
        if self.stages > self.steps:
            raise ValueError(
                f"schedule.stages is {self.stages}, more than schedule.steps = {self.steps}"
            )
        if self.reset_optimizer and self.stages == 1:
            raise ValueError(
                "schedule.reset-optimizer acts at the start of each stage after the first, but "
                "schedule.stages is 1: give more stages, or leave it out"
            )
        if self.warmup >= self.steps:
            raise ValueError(
                f"schedule.warmup is {self.warmup}, which leaves no step of schedule.steps = "
                f"{self.steps} to train in"
            )
        if self.offline and self.warmup == 0:
            raise ValueError(
                "schedule.offline collects only during the warm-up, but schedule.warmup is 0: give "
                "the number of batches to collect"
            )

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
