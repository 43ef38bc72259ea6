"""The parts that the loop composes, built once from the configuration (`ogrpo.setup.build`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from ogrpo.batch import Batch
from ogrpo.config.schedule import ReuseLimits, Schedule
from ogrpo.config.train import Certification
from ogrpo.data.packing import Shape
from ogrpo.data.replay import Experience, ReplayBuffer
from ogrpo.learner.examine import NoiseFn, TokensFn
from ogrpo.learner.state import Hypers, Params, TrainState
from ogrpo.learner.update import UpdateFn
from ogrpo.loop.batches import Packer
from ogrpo.protocol import Engine, FloatArray, Group, IntArray, Sampling, derived_seed
from ogrpo.rollout.check import Requirements
from ogrpo.rollout.collection import CollectionLimits, Collector, GroupRewardFn
from ogrpo.rollout.vllm import RolloutError
from ogrpo.system.files import Record as Record

ScoreFn = Callable[[Params, Batch[jax.Array], jax.Array], jax.Array]
BatchScoreFn = Callable[[Batch[np.ndarray]], FloatArray]
"""`padded groups -> log-probs [N, G, T]` of a model."""
StepsFn = Callable[[Batch[np.ndarray], NDArray[np.int64]], Batch[np.ndarray]]


def stream_seed(seed: int, stream: str, step: int) -> int:
    """Returns an independent 31-bit seed for each (run seed, purpose, step)."""
    return derived_seed(seed, *stream.encode(), step)


@dataclass(frozen=True)
class Prompts:
    """A task's tokenised prompts."""

    train: Sequence[IntArray]
    heldout: Sequence[IntArray]
    length: int
    """Tokens of the longest, to which all are padded."""


class HeldoutVerdicts(NamedTuple):
    """Rewards of held-out completions `[N, G]`, NaN where a reward left no verdict."""

    rewards: NDArray[np.float32]
    """The weighted sums; NaN where a reward that counts failed."""
    values: Mapping[str, NDArray[np.float32]]
    """By reward."""
    success: str | None
    """The reward that the task marks as saying right (1) or wrong (0)."""
    unparsable: float | None
    """Share of the answers without anything to compare; None where no reward says."""
    truncated: float
    """Share of the answers that did not end themselves."""


@dataclass(frozen=True)
class Collection:
    """Draws groups of the training prompts and rewards them, ahead of training."""

    engine: Engine
    sampling: Sampling
    required: Requirements
    """Conditions that completions are checked against before they are learned from."""
    reward_fn: GroupRewardFn
    """Judges completions of the training prompts; the collector's judges call it."""
    reward_metrics: Callable[[], Mapping[str, float]]
    """Counts of the rewards since the start."""
    limits: CollectionLimits
    collector: Callable[..., Collector] = Collector
    """Makes the collector; with several processes, one that all of them share."""


@dataclass(frozen=True)
class Evaluator:
    """Draws answers to the held-out prompts and judges them."""

    engine: Engine
    sampling: Sampling
    judge: Callable[[Sequence[Group]], HeldoutVerdicts]
    """`(groups, in the order of their prompts) -> verdicts`."""
    token_samples: int
    """Completions of a step with an evaluation that are kept token by token."""


@dataclass(frozen=True)
class Learner:
    """Functions on the train state and on batches, each compiled once."""

    init: Callable[[Params], TrainState]
    """The train state before the first update, of a policy's parameters."""
    shapes: Callable[[Params], TrainState]
    """The shapes of what `init` would make, each with its place."""
    packer: Packer | None
    """Packs batches; None pads them."""
    place: Callable[[Batch[np.ndarray]], Batch[jax.Array]]
    """Puts a batch on the devices."""
    score: ScoreFn
    """Log-probs of a batch's completions under a policy."""
    values: ScoreFn | None
    """V before each token, of parameters with a value head; None where the method has no critic."""
    update: UpdateFn
    noise: NoiseFn | None
    """Variance of an update's gradient; None where that is not measured."""
    tokens: TokensFn
    """Advantage and clip of each token, as an update would have them."""
    reset_optimizer: Callable[[TrainState], TrainState] | None
    """Resets the optimizer's state at a new stage; None leaves it."""


@dataclass(frozen=True)
class MethodInputs:
    """Values and log-probs that the method reads beside the tokens of a batch."""

    reads: frozenset[str]
    """Whose log-probs it reads (`Algorithm.inputs`)."""
    hypers_at: Callable[[int, float, int], Hypers]
    """`(update, clip scale, seed of the method's random numbers) -> hyper-parameters`."""
    baseline_rate: float | None
    """Share of a step's mean reward in the running mean; None where no method reads it."""
    judge_steps: StepsFn | None
    """Adds the rewards of steps to a batch of these problems; None where the method reads none."""
    sampling_mask: bool = False
    """Whether the policy is taken over the tokens that the sampler could draw."""


class MismatchLimit(NamedTuple):
    """Bound on the distance between the sampler's log-probs and the trainer's.

    For a batch that was drawn with the trainer's weights the trainer knows the true ones: what is
    left between the two is precision, or a fault of the sampler's.
    """

    nats: float | None
    """A token, on average; None is any distance."""
    servers: tuple[str, ...]
    """URLs of the samplers; none where the trainer samples."""

    def passed_by(self, mismatch: float) -> bool:
        """Whether a batch's mean is beyond it."""
        return self.nats is not None and mismatch > self.nats

    def check(self, mismatch: float, step: int) -> None:
        """Refuses to go on with a batch that was beyond it.

        Raises:
          RolloutError: names the value, the limit, the servers and what can be done.
        """
        if not self.passed_by(mismatch):
            return
        who = ", ".join(self.servers) or "the embedded sampler"
        raise RolloutError(
            f"the log-probs of {who} are {mismatch:.3g} nats a token from the trainer's in step"
            f" {step}, whose batch was drawn with the trainer's own weights;"
            f" rollout.mismatch-limit is {self.nats:g}. One update was taken on them. Look for what"
            " changes log-probs behind the proof of a push: a temperature, penalty or truncation of"
            " the server's own (ogrpo-serve sets none), --rollout.top-k, .top-p or .min-p without"
            " --rollout.keep-sampling-mask, a proxy that rewrites answers, a dtype below bfloat16."
            " A larger --rollout.mismatch-limit, or None, trains on them as they are"
        )


@dataclass(frozen=True)
class Limits:
    """Bounds beyond which a step's draws, or the run, end."""

    skipped: int
    """Updates in a row that may be skipped as they were not finite."""
    mismatch: MismatchLimit
    reuse: ReuseLimits | None
    """Signals that say when the data are used up; None keeps to the schedule."""


class Costs(NamedTuple):
    """FLOPs, counted from shapes; evaluations are not counted."""

    rollout: Callable[[IntArray], int]
    """Of a batch whose completions have so many tokens."""
    update: Callable[[Shape | None], int]
    """Of a batch that is packed in this shape; None is a padded one."""
    score: Callable[[Shape | None], int]
    """Of the log-probs of a batch under one more policy."""


class Logged(NamedTuple):
    """The log that a run begins with."""

    read: Callable[[], Sequence[Experience]]
    """Returns its groups, whose log-probs are NaN where it has none."""
    behavior: Callable[[Params, Batch[np.ndarray]], FloatArray]
    """Computes those of the model that drew it, which may be the first weights, its argument."""
    least: int
    """Groups that the buffer has to take in."""


@dataclass(frozen=True)
class Parts:
    """The functions, engines and bounds of one run."""

    seed: int
    schedule: Schedule
    prompts: Prompts
    collection: Collection
    make_buffer: Callable[[dict[str, Any] | None], ReplayBuffer]
    """Makes a replay buffer: a new one, or that of a checkpoint's description."""
    learner: Learner
    method: MethodInputs
    limits: Limits
    evaluator: Evaluator
    certificate: Certification | None
    """Confidence and price of the certificates; None leaves them out."""
    costs: Costs
    logged: Logged | None = None
    """What the buffer begins with; None where it begins empty."""
