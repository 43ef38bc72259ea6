"""Measurements: the speeds of this machine, and a run read back to hold the simulation against it.

`measured`   times the embedded sampler and the update of the planned model and batch
`read_run`   when the calls and steps of a run began and ended, from its metrics.jsonl
`compare`    its step rate against the simulation, fed with the times of its parts

What is compared is how the parts interlock. Their times come from the run itself, because on a
machine that draws and trains on the same cores either is slower while the other is at work.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch
from ogrpo.core.algorithms import ALGORITHMS
from ogrpo.data.batching import pad_groups
from ogrpo.kernels import attention
from ogrpo.learner.state import TrainState, adam, hypers, init_state
from ogrpo.learner.update import Recipe, UpdateFn, compute_in, make_update
from ogrpo.policy import DecoderConfig, Params, init_params
from ogrpo.policy.lora import merge, split
from ogrpo.protocol import Engine, Group, Sampling
from ogrpo.report.run_dir import RunDir
from ogrpo.rollout.collection import Request
from ogrpo.serving.bridge import embedded_engine
from ogrpo.setup.devices import DTYPES, REMAT, make_policy_fn
from ogrpo_plan.config import Plan
from ogrpo_plan.schedule import update_work
from ogrpo_plan.simulation import (
    Floats,
    Pipeline,
    Summary,
    measured_service,
    simulate,
    summarize,
    window,
)

HYPERS = hypers(1e-6, 1.0, {"eps_low": 0.2, "eps_high": 0.2, "beta": 0.0})
REPEATS = 3


class Measured(NamedTuple):
    """Times of a run: when each call and each step began and ended."""

    pipeline: Pipeline
    calls: int
    """In a batch."""
    train_seconds: Floats
    """Of each step, from having its batch to asking for the next one, copying weights included."""
    call_seconds: Floats
    trained: Floats
    """When each step ended and the next batch was asked for."""
    waited: float
    """Share of its time that the trainer waited for a batch."""


class Workshop(NamedTuple):
    """The planned model and batch on this machine, at random weights."""

    decoder: DecoderConfig
    engine: Engine
    update: UpdateFn
    state: TrainState
    sampling: Sampling
    plan: Plan

    def first_state(self) -> TrainState:
        """Returns a copy of the first state, as an update takes over what it gets."""
        return jax.tree.map(jnp.copy, self.state)

    def request(self, step: int) -> Request:
        """Returns random prompts."""
        batch, rng = self.plan.batch, np.random.default_rng([self.plan.seed, step])
        shape = (batch.prompts, batch.prompt_length)
        prompts = list(rng.integers(1, self.decoder.vocab_size, shape, dtype=np.int32))
        return Request(step, range(len(prompts)), prompts, seed=step)

    def train(self, state: TrainState, groups: Sequence[Group]) -> TrainState:
        """Runs the plan's update, and returns when it has finished."""
        state, _ = self.update(state, self.batch(groups), HYPERS)
        return jax.block_until_ready(state)

    def batch(self, groups: Sequence[Group]) -> Batch[jax.Array]:
        """Returns groups whose rewards differ, so that there is something to learn."""
        sizes = self.plan.batch
        rewards = np.tile(np.arange(sizes.group_size, dtype=np.float32) % 2, (sizes.prompts, 1))
        padded = pad_groups(groups, sizes.prompt_length, sizes.max_tokens, rewards=rewards)
        return jax.tree.map(jnp.asarray, padded)


def make_workshop(plan: Plan) -> Workshop:
    """Builds the parts; the first call of each compiles."""
    decoder, sizes = plan.model.decoder(), plan.batch
    mix = attention.kernel(plan.train.attention)
    policy_fn = make_policy_fn(decoder, keep_fn=REMAT[plan.train.remat], attention_fn=mix)
    if plan.model.compute != plan.model.params:
        policy_fn = compute_in(policy_fn, DTYPES[plan.model.compute])
    optimizer = adam(b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0, max_grad_norm=1.0)
    recipe = Recipe(
        policy_fn=policy_fn,
        algorithm=ALGORITHMS["off_policy_grpo"],
        reads=frozenset(),
        metrics_fn=lambda *_: {},
        microbatches=plan.train.parts,
    )
    params, frozen = (
        init_params(decoder, jax.random.key(plan.seed), DTYPES[plan.model.params]),
        None,
    )
    if plan.model.adapter is not None:  # which alone is trained
        key, (rank, targets) = jax.random.key(plan.seed + 1), plan.model.adapter
        params, frozen = split(params, key, rank=rank, alpha=1.0, targets=targets)
    return Workshop(
        decoder,
        embedded_engine(
            decoder,
            eos_id=0,
            batch_size=plan.serve.groups_per_call,
            prompt_length=sizes.prompt_length,
        ),
        make_update(optimizer, recipe),
        init_state(params, optimizer, frozen=frozen),
        Sampling(temperature=1.0, max_tokens=sizes.max_tokens, group_size=sizes.group_size),
        plan,
    )


def served(state: TrainState, plan: Plan) -> Params:
    """Returns a copy for the sampler, which the next update does not overwrite."""
    kind, policy = DTYPES[plan.model.serve], merge(state.whole())
    return jax.block_until_ready(jax.tree.map(lambda x: jnp.array(x, kind, copy=True), policy))


def measured(shop: Workshop) -> Plan:
    """Returns the plan with the speeds of this machine, the best of a few runs."""
    plan, state = shop.plan, shop.first_state()
    shop.engine.publish(served(state, plan), 0)
    best_draw, best_update, groups = np.inf, np.inf, []
    for repeat in range(1 + REPEATS):  # the first one compiles
        request, begun = shop.request(repeat), time.perf_counter()
        groups = shop.engine.generate(request.prompts, shop.sampling, request.seed)
        drawn = time.perf_counter()
        state = shop.train(state, groups)
        if repeat:
            best_draw = min(best_draw, drawn - begun)
            best_update = min(best_update, time.perf_counter() - drawn)
    tokens = sum(len(c.token_ids) for group in groups for c in group.completions)
    return replace(
        plan,
        train=replace(plan.train, tflops=update_work(plan) / best_update / 1e12),
        serve=replace(plan.serve, tokens_per_second=tokens / best_draw),
    )


def predict(seen: Measured) -> Summary:
    """Simulates the run from its own calls, drawn anew, and its mean time of training."""
    first, end = window(seen.pipeline.steps, seen.pipeline.lead, seen.pipeline.v)
    training = float(seen.train_seconds[first:end].mean())
    service = measured_service(seen.call_seconds, calls=seen.calls, seed=0)
    trace = simulate(seen.pipeline, service, lambda _step: training)
    return summarize(trace, lead=seen.pipeline.lead, v=seen.pipeline.v)


def compare(seen: Measured) -> list[tuple[str, str]]:
    """Lists the measured and the predicted step rate, and the prediction's error."""
    lead, v = seen.pipeline.lead, seen.pipeline.v
    first, end = window(seen.pipeline.steps, lead, v)
    rate = (end - first) / (seen.trained[end - 1] - seen.trained[first - 1])
    foreseen = predict(seen)
    error = foreseen.steps_per_second / rate - 1
    return [
        ("workers, lead, v", f"{seen.pipeline.workers}, {lead}, {v}"),
        ("seconds of a call", f"{seen.call_seconds.mean():.4g}"),
        ("seconds of training", f"{seen.train_seconds[first:end].mean():.4g}"),
        ("seconds of a push", f"{seen.pipeline.sync_seconds:.4g}"),
        ("steps/s measured", f"{rate:.4g}"),
        ("steps/s predicted", f"{foreseen.steps_per_second:.4g} ({error:+.1%})"),
        ("trainer idle, measured", f"{seen.waited:.1%}"),
        ("trainer idle, predicted", f"{foreseen.trainer_idle:.1%}"),
    ]


def read_run(path: Path) -> Measured:
    """Reads a run directory from its second period on, so that compilation is left out.

    Raises:
      ValueError: too few records, or those of a run before there was a collector.
    """
    folder = RunDir.reopen(path)
    config = folder.read_config()
    v, records = config["schedule"]["sync_interval"], folder.read_metrics()
    skipped = v * -(-3 // v)
    kept = [r for r in records if r["step"] >= skipped]
    if len(kept) < 2 * v + 1:
        raise ValueError(
            f"the run in {path} has {len(kept)} records from step {skipped} on: validation needs "
            f"at least {2 * v + 1}"
        )
    if GENERATING not in kept[-1]:
        raise ValueError(f"{folder.metrics} has no {GENERATING}: validate a run of this version")
    return measured_ahead(kept, config["schedule"], config["rollout"])


GENERATING = "collect/seconds/workers/generating"
PUBLISHING = "collect/seconds/workers/publishing"
Records = Sequence[Mapping[str, Any]]


def measured_ahead(
    records: Records, schedule: Mapping[str, Any], rollout: Mapping[str, Any]
) -> Measured:
    """Reads a run whose batches were collected ahead; its totals are cumulative.

    `seconds/rollout` is what the trainer waited; the first record only says where totals stood.
    """
    v, prompts = schedule["sync_interval"], schedule["prompts"]
    calls = -(-prompts // (rollout["prompts_per_call"] or prompts))
    drawn = np.diff(_column(records, GENERATING)) / calls
    pushed = float(np.diff(_column(records, PUBLISHING)).mean() * v)
    seconds = partial(_column, records[1:])
    waited = seconds("seconds/rollout")
    phases = [
        sum(s for key, s in r.items() if key.startswith("seconds/") and key != "seconds/rollout")
        for r in records[1:]
    ]
    busy = np.array(phases)
    pipeline = Pipeline(
        steps=len(drawn),
        workers=rollout["workers"],
        lead=schedule["sync_offset"],
        v=v,
        sync_seconds=pushed,
    )
    ends = np.cumsum(busy + waited)
    return Measured(pipeline, calls, busy, drawn, ends, float(waited.sum() / ends[-1]))


def _column(records: Records, key: str) -> Floats:
    return np.array([r[key] for r in records])
