"""What the loop composes, and what a run is resumed from."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.config.reuse import ReuseLimits
from ogrpo.config.train import Certification
from ogrpo.core.advantages import NOTHING_SEEN, RunningMean
from ogrpo.core.algorithms import REFERENCE
from ogrpo.data.packing import Shape
from ogrpo.data.replay import ReplayBuffer
from ogrpo.learner.checkpoint import content_hash
from ogrpo.learner.examine import ExamineFn
from ogrpo.learner.offload import Storage
from ogrpo.learner.state import Hypers, Params, TrainState
from ogrpo.learner.update import UpdateFn
from ogrpo.learner.variance import NoiseFn
from ogrpo.loop.batches import Packer
from ogrpo.loop.diverged import Skipped
from ogrpo.loop.heldout import HeldoutVerdicts
from ogrpo.loop.mismatch import MismatchLimit
from ogrpo.protocol import Engine, Group, Sampling
from ogrpo.rollout.check import Terms
from ogrpo.rollout.collection import CollectionLimits, Collector, RewardFn

Ids = NDArray[np.int32]
Record = dict[str, Any]
EvaluationFn = Callable[[Sequence[Group]], HeldoutVerdicts]
ScoreFn = Callable[[Params, Batch[jax.Array], jax.Array], jax.Array]
StepsFn = Callable[[Batch[np.ndarray], NDArray[np.int64]], Batch[np.ndarray]]
PHASES = ("rollout", "update", "sync", "eval")


@dataclass(frozen=True)
class Prompts:
    """A task's tokenised prompts."""

    train: Sequence[Ids]
    heldout: Sequence[Ids]
    length: int
    """Tokens of the longest, to which all are padded."""


class Costs(NamedTuple):
    """FLOPs, counted from shapes; evaluations are not counted."""

    rollout: Callable[[int], int]
    """Of a batch whose longest completion has so many tokens."""
    update: Callable[[Shape | None], int]
    """Of a batch that is packed in this shape; None is a padded one."""
    score: Callable[[Shape | None], int]
    """Of the log-probs of a batch under one more policy."""


@dataclass(frozen=True)
class Parts:
    """The functions and engines that the loop composes."""

    init: Callable[[Params], TrainState]
    """The train state before the first update, of a policy's parameters."""
    shapes: Callable[[Params], TrainState]
    """The shapes of what `init` would make, each with its place."""
    prompts: Prompts
    reward_fn: RewardFn
    """What judges completions of the training prompts; the collector's judges call it."""
    evaluation_fn: EvaluationFn
    """What judges completions of the held-out prompts: `(groups, in their order) -> verdicts`."""
    reward_metrics: Callable[[], Mapping[str, float]]
    """What the rewards counted since the start."""
    engine: Engine
    evaluator: Engine
    update: UpdateFn
    score: ScoreFn
    values: ScoreFn | None
    """V before each token, of parameters with a value head; None where nobody reads it."""
    judge_steps: StepsFn | None
    """Adds the rewards of steps to a batch of these problems; None where nobody reads them."""
    hypers_at: Callable[[int, float, int], Hypers]
    """Hyper-parameters of the update with this index, the clip scaled by this factor, with this
    seed for the lots that the method draws."""
    sampling: Sampling
    terms: Terms
    """What completions are checked against before they are learned from."""
    evaluation_sampling: Sampling
    make_buffer: Callable[[dict[str, Any] | None], ReplayBuffer]
    """A replay buffer: a new one, or that of a checkpoint's description."""
    reads: frozenset[str]
    """Whose log-probs the method reads (`Algorithm.inputs`)."""
    reference: Storage
    """Where the reference policy lies while its log-probs are not computed."""
    reset_optimizer: Callable[[TrainState], TrainState] | None
    """What a new stage does to the optimizer's state; None leaves it."""
    certificate: Certification | None
    """What certificates are to hold to; None leaves them out."""
    collection: CollectionLimits
    """How far collection may run ahead of training."""
    retry_on: tuple[type[Exception], ...]
    """Errors of the engine that pass."""
    limits: ReuseLimits | None
    """Where the data are used up; None keeps to the schedule."""
    costs: Costs
    packer: Packer | None
    """How batches are packed; None pads them."""
    place: Callable[[Batch[np.ndarray]], Batch[jax.Array]]
    """Puts a batch on the devices."""
    noise: NoiseFn | None
    """How noisy an update's gradient is; None where that is not measured."""
    examine: ExamineFn
    """An update's numbers one stage after the other, of what it would do to a state."""
    baseline_rate: float | None
    """The share of a step's mean reward in the running mean; None where no method reads it."""
    max_skipped: int
    """Updates in a row that may be skipped as they were not finite."""
    mismatch: MismatchLimit
    """How far the sampler's log-probs may be from the trainer's."""
    seed: int
    before_evaluation: "Callable[[LoopState, Callable[[], Record]], None]" = lambda *_: None
    """Called when a step is complete but for its evaluation: with its state, and with what makes
    its record as far as that is known."""
    collect: Callable[..., Collector] = Collector
    """Makes the collector; with several processes, one that all of them share."""


@dataclass(frozen=True)
class LoopState:
    """What a run is resumed from; `arrays` and `progress` are its checkpoint.

    All of it is immutable but the buffer, which belongs to the newest state alone. Policies are
    held as their trained parameters; `train.whole` completes them.
    """

    train: TrainState
    server: Params
    reference: Params | None
    """As `Parts.reference` keeps it; None where nobody reads its log-probs."""
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
    gaps: tuple[float, ...] = ()
    """What draws of the weights before say of the improvement, one value a completion."""
    baseline: RunningMean = NOTHING_SEEN
    """The mean reward of the steps before, where the method reads it."""
    clip_scale: float = 1.0
    used_up: bool = False
    """Whether the last step's data were used up at their first draw."""
    shapes: frozenset[Shape] = frozenset()
    """What the packed batches of updates were shaped like: programs that were compiled."""
    frozen_hash: str = ""
    """Of the parameters that are not trained; empty where there are none."""
    skipped: int = 0
    """Updates that were not taken, as they would not have been finite."""
    skipped_in_a_row: int = 0
    mismatch: float = 0.0
    """Of the sampler's log-probs from the trainer's, on the step's first batch where it was drawn
    with the trainer's own weights; no checkpoint holds it."""
    failed: tuple[Skipped, ...] = ()
    """What this process knows of those in a row; no checkpoint holds it."""
    unevaluated: Record | None = None
    """The record of this step as far as it was known when its evaluation failed."""

    def arrays(self) -> dict[str, Any]:
        """The arrays of a checkpoint, without the parameters that are not trained."""
        optional = {"reference": self.reference}
        kept = {name: params for name, params in optional.items() if params is not None}
        return {"train": replace(self.train, frozen=()), "server": self.server, **kept}

    def progress(self) -> dict[str, Any]:
        """The counters of a checkpoint, and what the buffer needs beside its files."""
        counters = {name: getattr(self, name) for name in COUNTERS}
        owed = {} if self.unevaluated is None else {"owed": self.unevaluated}
        return {**counters, **owed, "shapes": sorted(self.shapes), "buffer": self.buffer.state()}


COUNTERS = (
    *("step", "server_version", "completions", "tokens", "uses", "rollout_flops", "update_flops"),
    *("gaps", "baseline", "clip_scale", "used_up", "frozen_hash", "skipped", "skipped_in_a_row"),
    "previous_version",
)
LATER = {"frozen_hash": "", "skipped": 0, "skipped_in_a_row": 0, "baseline": NOTHING_SEEN}
LATER |= {"previous_version": -1}
"""Counters that older checkpoints do not have."""


def snapshot(params: Params) -> Params:
    """A copy that outlives the donation of the trainer's buffers."""
    return jax.tree.map(jnp.copy, params)


def start(train: TrainState, parts: Parts) -> LoopState:
    """The state before step 0: every policy is the initial one."""
    initial = {"reference": None, **first_arrays(train, parts)}
    return LoopState(
        **{**initial, "train": train},
        buffer=parts.make_buffer(None),
        frozen_hash=content_hash(train.frozen),
    )


def first_arrays(train: TrainState, parts: Parts) -> dict[str, Any]:
    """The arrays before step 0."""
    return _stored(_named(train, snapshot(train.params), parts.reads), parts)


def array_shapes(train: TrainState, parts: Parts) -> dict[str, Any]:
    """What a checkpoint's reader is to expect, from a state or its shapes; nothing is copied."""
    return _stored(checkpoint_shapes(train, parts.reads), parts)


def _stored(named: dict[str, Any], parts: Parts) -> dict[str, Any]:
    """The arrays of a checkpoint, or their shapes, with the reference policy where it is kept."""
    if "reference" not in named:
        return named
    return {**named, "reference": parts.reference.keep(named["reference"])}


def checkpoint_shapes(train: TrainState, reads: frozenset[str]) -> dict[str, Any]:
    """The same of a run that reads these policies' log-probs."""
    shapes = jax.tree.map(_shape, replace(train, frozen=()))
    return _named(shapes, shapes.params, reads)


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def _named(train: TrainState, policy: Params, reads: frozenset[str]) -> dict[str, Any]:
    """A checkpoint's arrays, where every policy but the trainer's is `policy`."""
    reference = {"reference": policy} if REFERENCE in reads else {}
    return {"train": replace(train, frozen=()), "server": policy, **reference}


def resume(
    arrays: dict[str, Any], progress: dict[str, Any], parts: Parts, *, frozen: Params = ()
) -> LoopState:
    """The state that a checkpoint describes, `frozen` being what it does not hold: parameters that
    `check_frozen` takes.
    """
    counters = {name: {**LATER, **progress}[name] for name in COUNTERS}
    arrays = {**arrays, "train": replace(arrays["train"], frozen=frozen)}
    counters["gaps"] = tuple(counters["gaps"])
    counters["baseline"] = RunningMean(*counters["baseline"])
    counters["shapes"] = frozenset(Shape(*sizes) for sizes in progress["shapes"])
    policies = {"reference": None, **arrays}
    counters["unevaluated"] = progress.get("owed")
    return LoopState(**policies, **counters, buffer=parts.make_buffer(progress["buffer"]))


def check_frozen(frozen: Params, progress: Mapping[str, Any]) -> None:
    """Refuses frozen parameters that are not those that a checkpoint's run began with.

    Raises:
        ValueError: they are others.
    """
    then = progress.get("frozen_hash", "")
    if (found := content_hash(frozen)) != then:
        raise ValueError(
            f"the weights beside the adapters are not those that the run began with (SHA-256"
            f" {found[:12]}, {then[:12]} then): give back the model that it was started from, or"
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


def stream_seed(seed: int, stream: str, step: int) -> int:
    """An independent 31-bit seed for each (run seed, purpose, step)."""
    words = np.random.SeedSequence([seed, *stream.encode(), step]).generate_state(1)
    return int(words[0] >> 1)
