"""The state of the loop: what a run is resumed from, and what a checkpoint holds of it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ogrpo.batch import Batch, Frozen
from ogrpo.core.advantages import NOTHING_SEEN, RunningMean
from ogrpo.core.algorithms import REFERENCE
from ogrpo.data.packing import Shape
from ogrpo.data.replay import ReplayBuffer
from ogrpo.learner.checkpoint import content_hash
from ogrpo.learner.state import Hypers, Params, TrainState
from ogrpo.loop.parts import Parts, Record
from ogrpo.loop.tokens import TokenSample

PHASES = ("rollout", "update", "sync", "eval")


class DivergedError(RuntimeError):
    """More updates in a row were skipped than may be; the weights are those before them."""


class Skipped(NamedTuple):
    """An update that was not taken, as it would not have been finite."""

    step: int
    draw: int
    iteration: int
    batch: Batch[jax.Array]
    hypers: Hypers
    metrics: dict[str, float]


class Certified(NamedTuple):
    """A period whose certificate is above 0, with the draws that it rests on."""

    step: int
    bound: float
    delta: float
    gains: tuple[float, ...]
    old_weights: str
    """SHA-256; empty for weights that were no longer held."""
    new_weights: str


@dataclass(frozen=True)
class LoopState:
    """The state between two steps; `arrays` and `progress` are its checkpoint.

    All of it is immutable but the buffer, which belongs to the newest state alone; the arrays of
    those before it are taken by an update, or freed. Policies are held as their trained parameters;
    `train.whole` completes them.
    """

    train: TrainState
    server: Params
    reference: Params | None
    """Trained parameters, as `server`; None where the method does not read its log-probs."""
    buffer: ReplayBuffer
    step: int = 0
    server_version: int = 0
    previous_version: int = -1
    """The version that the server's took the place of; -1 before any."""
    completions: int = 0
    tokens: int = 0
    uses: int = 0
    """Groups that updates were taken on, each counted once an update."""
    rollout_flops: int = 0
    update_flops: int = 0
    gains: tuple[float, ...] = ()
    """Gains of the server period's certificate so far, one value a completion."""
    baseline: RunningMean = NOTHING_SEEN
    """The mean reward of the steps before, where the method reads it."""
    clip_scale: float = 1.0
    used_up: bool = False
    """Whether the last step's data were used up at their first draw."""
    shapes: frozenset[Shape] = frozenset()
    """Shapes of the packed batches of updates so far: programs that were compiled."""
    frozen_hash: str = ""
    """Of the parameters that are not trained; empty where there are none."""
    skipped: int = 0
    """Updates that were not taken, as they would not have been finite."""
    skipped_in_a_row: int = 0
    mismatch: float = 0.0
    """Of the sampler's log-probs from the trainer's, on the step's first batch where it was drawn
    with the trainer's weights of now; in no checkpoint."""
    failed: tuple[Skipped, ...] = ()
    """Those of the updates skipped in a row that this process took part in; in no checkpoint."""
    certificate: Certified | None = None
    """The newest; in no checkpoint."""
    token_samples: tuple[TokenSample, ...] = ()
    """Of the step's first batch, where the step is evaluated; in no checkpoint."""
    unevaluated: Record | None = None
    """The record of this step without its evaluation, which failed."""

    def arrays(self) -> dict[str, Any]:
        """Returns the arrays of a checkpoint, without the parameters that are not trained."""
        reference = {} if self.reference is None else {"reference": self.reference}
        return {"train": replace(self.train, frozen=()), "server": self.server, **reference}

    def progress(self) -> dict[str, Any]:
        """Returns a checkpoint's counters, and the buffer's description beside its files."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        described = {"shapes": sorted(self.shapes), "buffer": self.buffer.state()}
        return {**counters, "gaps": self.gains, **described}


COUNTERS = (
    *("step", "server_version", "previous_version", "completions", "tokens", "uses"),
    *("rollout_flops", "update_flops", "clip_scale", "used_up", "baseline"),
    *("frozen_hash", "skipped", "skipped_in_a_row", "unevaluated"),
)


def snapshot(params: Params) -> Params:
    """Copies parameters, so that they outlive the donation of the trainer's buffers."""
    return jax.tree.map(jnp.copy, params)


def first_arrays(
    train: TrainState, reads: frozenset[str], policy: Params | None = None
) -> dict[str, Any]:
    """Returns a checkpoint's arrays before step 0, or their shapes.

    Args:
      reads: the policies whose log-probs the run reads.
      policy: all but the trainer's; by default a copy of it.
    """
    policy = snapshot(train.params) if policy is None else policy
    reference = {"reference": policy} if REFERENCE in reads else {}
    return {"train": replace(train, frozen=()), "server": policy, **reference}


def resume(
    arrays: dict[str, Any], progress: dict[str, Any], parts: Parts, *, frozen: Frozen = ()
) -> LoopState:
    """Returns the state that a checkpoint describes.

    Args:
      frozen: the parameters that no checkpoint holds; `check_frozen` compares them.
    """
    counters = {name: progress[name] for name in COUNTERS}
    counters["baseline"] = RunningMean(*counters["baseline"])
    policies = {"reference": None, **arrays, "train": replace(arrays["train"], frozen=frozen)}
    return LoopState(
        **policies,
        **counters,
        gains=tuple(progress["gaps"]),
        shapes=frozenset(Shape(*sizes) for sizes in progress["shapes"]),
        buffer=parts.make_buffer(progress["buffer"]),
    )


def check_frozen(frozen: Frozen, progress: Mapping[str, Any]) -> None:
    """Refuses frozen parameters that are not those that a checkpoint's run began with.

    Raises:
      ValueError: their hash is another.
    """
    then, now = progress["frozen_hash"], content_hash(frozen)
    if now != then:
        raise ValueError(
            f"the weights beside the adapters are not those that the run began with (SHA-256"
            f" {now[:12]}, {then[:12]} then): give back the model that it was started from, or"
            " start a new run"
        )


@dataclass
class Stopwatch:
    """Wall seconds by phase."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds the time spent inside to `phase`."""
        begin = time.perf_counter()
        yield
        self.seconds[phase] += time.perf_counter() - begin
