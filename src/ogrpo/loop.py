"""Algorithm 1 of "Revisiting Group Relative Policy Optimization" (arXiv:2505.22257), off-policy.

    prompt -> rollout (token ids, behaviour log-probs, policy version) -> reward
           -> whole groups -> batch -> log-probs -> objective -> update -> publish

Policies and who holds them:
    pi_theta  `train.params`: differentiated
    pi_k      the trainer's own at the start of a step; its log-probs are `proximal_log_probs`
    alpha     `server`: what the engine samples from, republished every `v` steps
    pi_ref    `reference`: swapped in at the start of each of the `stages`; absent when beta = 0

A policy version is the number of the step at which its weights were published, so that
`step - version` is the staleness in steps.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ogrpo.certify import certify, period_gaps
from ogrpo.data.batching import GroupBatch, PromptStream, pad_groups
from ogrpo.evaluation import Estimate, clustered_interval, wilson_interval
from ogrpo.rollout.protocol import Engine, Group, Sampling
from ogrpo.training.state import Hypers, Params, TrainState
from ogrpo.training.update import Batch, UpdateFn

Ids = NDArray[np.int32]
Record = dict[str, Any]
RewardFn = Callable[[str, str, str], float]
ScoreFn = Callable[[Params, Batch, jax.Array], jax.Array]
PHASES = ("rollout", "reward", "update", "sync", "eval")


@dataclass(frozen=True)
class Schedule:
    """The dials of Algorithm 1."""

    steps: int = 240
    """Batches of fresh rollouts in the whole run."""
    i: int = 1
    """SGD iterations on each batch."""
    v: int = 1
    """Steps between two synchronisations of the server's weights."""
    stages: int = 1
    """S: the reference policy is replaced by the trainer's at the start of each stage."""
    prompts: int = 16
    """Prompts in a batch."""
    evaluate_every: int = 40
    """Steps between two evaluations; the first and the last step are always evaluated."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"schedule.{name} is {value}: give a whole number of at least 1")
        if self.stages > self.steps:
            raise ValueError(
                f"schedule.stages is {self.stages}, more than schedule.steps = {self.steps}"
            )

    def starts_stage(self, step: int) -> bool:
        """Whether the reference is swapped before this step."""
        return any(step == stage * self.steps // self.stages for stage in range(self.stages))


@dataclass(frozen=True)
class Split:
    """Tokenised prompts with their gold answers."""

    prompts: Sequence[Ids]
    answers: Sequence[str]


@dataclass(frozen=True)
class Task:
    """What is to be learned: prompts, and a reward for `(text, finish reason, gold answer)`."""

    train: Split
    heldout: Split
    decode: Callable[[Ids], str]
    reward: RewardFn
    prompt_length: int
    completion_length: int


@dataclass(frozen=True)
class Parts:
    """The functions and engines that the loop composes."""

    task: Task
    engine: Engine
    evaluator: Engine
    update: UpdateFn
    score: ScoreFn
    hypers_at: Callable[[int], Hypers]
    """Hyper-parameters of the update with this index."""
    sampling: Sampling
    evaluation_sampling: Sampling
    exact_center: bool
    uses_reference: bool
    certificate_delta: float | None
    """Chance of a wrong certificate; None leaves certificates out, and the copy they need."""
    seed: int


@dataclass(frozen=True)
class LoopState:
    """What a run is resumed from; `arrays` and `progress` are its checkpoint."""

    train: TrainState
    server: Params
    reference: Params | None
    previous: Params | None
    """The server's weights of the period before; None where nothing is certified."""
    step: int = 0
    server_version: int = 0
    completions: int = 0
    tokens: int = 0
    gaps: tuple[float, ...] = ()
    """What the current period's samples say of its improvement over the one before."""

    def arrays(self) -> dict[str, Any]:
        """The arrays of a checkpoint."""
        optional = {"reference": self.reference, "previous": self.previous}
        kept = {name: params for name, params in optional.items() if params is not None}
        return {"train": self.train, "server": self.server, **kept}

    def progress(self) -> dict[str, Any]:
        """The counters of a checkpoint."""
        names = ("step", "server_version", "completions", "tokens", "gaps")
        return {name: getattr(self, name) for name in names}

    def restored(self, arrays: dict[str, Any], progress: dict[str, Any]) -> "LoopState":
        """The state that a checkpoint describes."""
        absent = {"reference": None, "previous": None}
        counters = {**progress, "gaps": tuple(progress["gaps"])}
        return replace(self, **{**absent, **arrays, **counters})


def snapshot(params: Params) -> Params:
    """A copy that outlives the donation of the trainer's buffers."""
    return jax.tree.map(jnp.copy, params)


def start(train: TrainState, parts: Parts) -> LoopState:
    """The state before step 0: every policy is the initial one."""
    initial = snapshot(train.params)
    return LoopState(
        train,
        server=initial,
        reference=initial if parts.uses_reference else None,
        previous=initial if parts.certificate_delta is not None else None,
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


@dataclass(frozen=True)
class Collected:
    """One batch of judged groups."""

    groups: GroupBatch
    rewards: NDArray[np.float32]  # [N, G]
    truncated: int
    """Completions that did not end themselves."""

    @property
    def tokens(self) -> int:
        """Completion tokens drawn."""
        return int(self.groups.completion_mask.sum())


def collect(parts: Parts, schedule: Schedule, step: int, watch: Stopwatch) -> Collected:
    """Buys one batch of groups from the engine and has it judged."""
    task = parts.task
    stream = PromptStream(len(task.train.prompts), schedule.prompts, parts.seed)
    indices = [int(n) for n in stream.indices(step)]
    with watch("rollout"):
        groups = parts.engine.generate(
            [task.train.prompts[n] for n in indices],
            parts.sampling,
            stream_seed(parts.seed, "rollout", step),
        )
    with watch("reward"):
        rewards = judge(task, groups, [task.train.answers[n] for n in indices])
    truncated = sum(c.finish_reason != "stop" for group in groups for c in group.completions)
    padded = pad_groups(groups, task.prompt_length, task.completion_length)
    return Collected(padded, rewards, truncated)


def judge(task: Task, groups: Sequence[Group], answers: Sequence[str]) -> NDArray[np.float32]:
    """Rewards `[N, G]`."""
    rewards = [
        [task.reward(task.decode(c.token_ids), c.finish_reason, answer) for c in group.completions]
        for group, answer in zip(groups, answers, strict=True)
    ]
    return np.array(rewards, np.float32)


def to_batch(state: LoopState, collected: Collected, parts: Parts, schedule: Schedule) -> Batch:
    """Arrays for the update; pi_k and pi_ref are scored only where they differ from pi_theta."""
    groups = collected.groups
    batch = Batch(
        prompt_ids=jnp.asarray(groups.prompt_ids),
        prompt_mask=jnp.asarray(groups.prompt_mask),
        completion_ids=jnp.asarray(groups.completion_ids),
        completion_mask=jnp.asarray(groups.completion_mask),
        behavior_log_probs=jnp.asarray(groups.behavior_log_probs),
        rewards=jnp.asarray(collected.rewards),
    )
    temperature = jnp.float32(parts.sampling.temperature)
    proximal = ref = None
    if parts.exact_center and schedule.i > 1:
        proximal = parts.score(state.train.params, batch, temperature)
    if state.reference is not None:
        ref = parts.score(state.reference, batch, temperature)
    return batch._replace(proximal_log_probs=proximal, ref_log_probs=ref)


def improve(
    state: LoopState, collected: Collected, parts: Parts, schedule: Schedule, watch: Stopwatch
) -> tuple[LoopState, Record]:
    """`i` updates on one batch; the metrics are those of the last."""
    with watch("update"):
        batch = to_batch(state, collected, parts, schedule)
        state, certificate = certify_period(state, batch, parts, schedule)
        train, metrics = state.train, {}
        for iteration in range(schedule.i):
            hypers = parts.hypers_at(state.step * schedule.i + iteration)
            train, metrics = parts.update(train, batch, hypers)
        metrics = {name: float(value) for name, value in jax.device_get(metrics).items()}
    return replace(state, train=train), {**metrics, **certificate}


def certify_period(
    state: LoopState, batch: Batch, parts: Parts, schedule: Schedule
) -> tuple[LoopState, Record]:
    """Gathers what the period's samples say, and at its end whether the server improved."""
    if parts.certificate_delta is None or state.server_version == 0:
        return state, NOT_CERTIFIED
    mask, temperature = batch.completion_mask, jnp.float32(parts.sampling.temperature)
    before = parts.score(state.previous, batch, temperature)
    gaps = period_gaps(before, batch.behavior_log_probs, mask, batch.rewards)
    state = replace(state, gaps=(*state.gaps, *np.ravel(gaps).tolist()))
    if (state.step + 1) % schedule.v != 0:
        return state, NOT_CERTIFIED
    verdict = certify(jnp.asarray(state.gaps), parts.certificate_delta)
    return state, {
        "certificate/bound": float(verdict.certificate.bound),
        "certificate/mean": float(verdict.certificate.mean),
        "certificate/completions": verdict.completions,
    }


NOT_CERTIFIED: Record = dict.fromkeys(
    ("certificate/bound", "certificate/mean", "certificate/completions")
)


def synchronise(state: LoopState, parts: Parts, schedule: Schedule, watch: Stopwatch) -> LoopState:
    """Swaps the reference at a stage's start and republishes the weights every `v` steps."""
    with watch("sync"):
        swaps = parts.uses_reference and schedule.starts_stage(state.step)
        renews = state.step % schedule.v == 0
        if state.step > 0 and (swaps or renews):
            now = snapshot(state.train.params)
            state = replace(state, reference=now) if swaps else state
            state = renewed(state, now, parts) if renews else state
        if parts.engine.version != state.server_version:
            parts.engine.publish(state.server, state.server_version)
    return state


def renewed(state: LoopState, server: Params, parts: Parts) -> LoopState:
    """A new server period begins with weights that no sample of it has seen."""
    previous = state.server if parts.certificate_delta is not None else None
    return replace(state, previous=previous, server=server, server_version=state.step, gaps=())


@dataclass(frozen=True)
class Evaluation:
    """Pass@1 on the held-out split: sampled at a named temperature, and greedy."""

    sampled: Estimate
    greedy: Estimate
    temperature: float

    def record(self) -> Record:
        """The evaluation's lines of a metrics record."""
        return {
            "pass@1/sampled": self.sampled.mean,
            "pass@1/sampled/low": self.sampled.low,
            "pass@1/sampled/high": self.sampled.high,
            "pass@1/greedy": self.greedy.mean,
            "pass@1/greedy/low": self.greedy.low,
            "pass@1/greedy/high": self.greedy.high,
            "pass@1/temperature": self.temperature,
        }


NOT_EVALUATED: Record = dict.fromkeys(
    Evaluation(Estimate(0, 0, 0, 0), Estimate(0, 0, 0, 0), 1).record()
)


def evaluate(params: Params, parts: Parts, step: int) -> Evaluation:
    """Scores the trainer's own weights on every held-out prompt."""
    task, sampling = parts.task, parts.evaluation_sampling
    parts.evaluator.publish(params, step)
    seed = stream_seed(parts.seed, "evaluation", step)

    def rewards(chosen: Sampling) -> NDArray[np.float32]:
        groups = parts.evaluator.generate(task.heldout.prompts, chosen, seed)
        return judge(task, groups, task.heldout.answers)

    sampled = clustered_interval(rewards(sampling))
    greedy = wilson_interval(rewards(replace(sampling, greedy=True))[:, 0])
    return Evaluation(sampled, greedy, sampling.temperature)


def train(state: LoopState, parts: Parts, schedule: Schedule) -> Iterator[tuple[LoopState, Record]]:
    """Runs the remaining steps, yielding the state and a metrics record after each.

    A fresh run first yields the evaluation of the initial policy as step 0's record.
    """
    if state.step == 0:
        watch = Stopwatch()
        with watch("eval"):
            base = evaluate(state.train.params, parts, 0)
        yield state, _record(state, watch, {**NOT_CERTIFIED, **base.record()})
    while state.step < schedule.steps:
        yield (turn := advance(state, parts, schedule))
        state = turn[0]


def advance(state: LoopState, parts: Parts, schedule: Schedule) -> tuple[LoopState, Record]:
    """One step of Algorithm 1."""
    watch = Stopwatch()
    state = synchronise(state, parts, schedule, watch)
    collected = collect(parts, schedule, state.step, watch)
    staleness = state.step - collected.groups.policy_versions
    state, metrics = improve(state, collected, parts, schedule, watch)
    state = replace(
        state,
        step=state.step + 1,
        completions=state.completions + collected.rewards.size,
        tokens=state.tokens + collected.tokens,
    )
    evaluation = NOT_EVALUATED
    if state.step % schedule.evaluate_every == 0 or state.step == schedule.steps:
        with watch("eval"):
            evaluation = evaluate(state.train.params, parts, state.step).record()
    bought = {
        "reward": float(collected.rewards.mean()),
        "staleness": float(staleness.mean()),
        "staleness/max": int(staleness.max()),
        "truncated": collected.truncated / collected.rewards.size,
        "tokens/s": collected.tokens / watch.seconds["rollout"],
    }
    return state, _record(
        state, watch, {**evaluation, **bought, **metrics, **parts.engine.metrics()}
    )


def _record(state: LoopState, watch: Stopwatch, values: Record) -> Record:
    return {
        "step": state.step,
        "completions": state.completions,
        "updates": int(state.train.updates),
        "tokens": state.tokens,
        "reward": None,
        "kl": None,
        "ess": None,
        "staleness": None,
        **values,
        **{f"seconds/{phase}": spent for phase, spent in watch.seconds.items()},
    }
