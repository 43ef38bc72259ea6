"""The parts of the loop, made from a config."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from ogrpo.config.method import BASELINE, algorithm, check, ignores_zero_variance, knobs
from ogrpo.config.train import TrainConfig
from ogrpo.core.algorithms import STEPS, VALUES
from ogrpo.core.trust_region import adaptive_clip, dual_penalty, sequence_mask
from ogrpo.data.packing import BUCKETS, OTHER_BUCKETS, Shape
from ogrpo.data.replay import (
    BufferLimits,
    Layout,
    ReplayBuffer,
    Sampler,
    advantage,
    fifo,
    mixed,
    novelty,
    positives,
    recency,
    stratified,
    uniform,
    weighted,
)
from ogrpo.kernels import attention
from ogrpo.learner.examine import make_noise
from ogrpo.learner.hosts import fetch
from ogrpo.learner.state import Hypers, adam, hypers, reset
from ogrpo.learner.update import PolicyFn, RegionFn, UpdateSpec, with_sampling_mask
from ogrpo.loop import Packer, Parts
from ogrpo.loop.parts import (
    Collection,
    Costs,
    Evaluator,
    Learner,
    Limits,
    Logged,
    MethodInputs,
    MismatchLimit,
)
from ogrpo.policy import DecoderConfig, flops
from ogrpo.policy.lora import TARGETS
from ogrpo.protocol import Engine, IntArray, Sampling
from ogrpo.rollout.check import Requirements
from ogrpo.rollout.collection import CollectionLimits
from ogrpo.serving.bridge import embedded_engine, sampler_layout
from ogrpo.setup.devices import Devices, data_shards, make_devices, on_one_device
from ogrpo.setup.logs import make_behavior
from ogrpo.setup.prepare import Prepared

CLIP_RANGE = (0.01, 1.0)
"""The least and the largest width of an adaptive clip, unless its first one needs more room."""
MOST_RECORDED = 1024
"""The largest vocabulary of which every token may be recorded, without --rollout.top-k."""
EMPTY = {
    "ids": [],
    "uses": [],
    "next_id": 0,
    "cursor": 0,
    "version": 0,
    "capacity": 64,
    "counts": {},
    "segments": {},
}
"""The state of an empty buffer: with it, segments that its folder has already are set aside."""


def make_parts(
    config: TrainConfig,
    prepared: Prepared,
    decoder: DecoderConfig,
    engine: Engine | None = None,
    *,
    devices: Devices | None = None,
    experience: Path | None = None,
) -> Parts:
    """Makes everything that the loop composes.

    Args:
      config: settled, as `prepared.config` is.
      engine: samples, and evaluates unless `evaluation.engine` says otherwise; default: embedded.
      devices: `find_devices(config, decoder)`, where they were made before.
      experience: the folder of the replay buffer. Without it the buffer is in memory alone, and a
        checkpoint of a run that holds groups is refused.

    Raises:
      ValueError: an option is unknown, or would be without effect.
    """
    check(config)
    devices = devices or find_devices(config, decoder)
    spec, eos_id = make_spec(config, devices.policy_fn), prepared.tokenizer.eos_id
    size = config.schedule.prompts
    embedded = partial(
        embedded_engine,
        decoder,
        eos_id=eos_id,
        prompt_length=config.longest_prompt,
        place_fn=devices.place_prompts,
        fetch_fn=fetch,
    )
    sampling = Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.longest_completion,
        group_size=config.rollout.group_size,
        **config.rollout.truncation,
        record=recorded(config, decoder.vocab_size),
    )
    collection = Collection(
        engine=engine or embedded(batch_size=size, quantize=config.rollout.quantize),
        sampling=sampling,
        # An engine from outside may have end tokens of its own.
        required=Requirements(sampling, decoder.vocab_size, None if engine else eos_id),
        reward_fn=prepared.judge,
        reward_metrics=prepared.judge.pool.metrics,
        limits=CollectionLimits(  # `lead` batches ahead, each a sync interval staler
            lead=config.schedule.sync_offset,
            workers=config.rollout.workers,
            judges=config.reward.processes,
            prompts_per_call=config.rollout.prompts_per_call,
            ordered=config.rollout.in_flight == "wait",
        ),
    )
    serving = None if config.evaluation.engine == "embedded" else engine
    evaluator = Evaluator(
        engine=serving or embedded(batch_size=config.evaluation.batch or size),
        sampling=Sampling(
            temperature=config.evaluation.temperature,
            max_tokens=config.longest_answer,
            group_size=config.evaluation.samples or config.rollout.group_size,
        ),
        judge=prepared.judge_heldout.heldout,
        token_samples=config.evaluation.token_samples,
    )
    several = config.schedule.draw_size > 1 and spec.algorithm.adds_up
    noisy = config.evaluation.gradient_variance and several and on_one_device(config)
    learner = Learner(
        init=devices.init,
        shapes=devices.shapes,
        packer=make_packer(config),
        place=devices.place_batch,
        score=devices.make_score(spec.policy_fn),
        values=devices.make_values(spec.policy_fn) if VALUES in spec.reads else None,
        update=devices.make_update(spec),
        noise=make_noise(spec) if noisy else None,
        tokens=devices.make_tokens(spec),
        reset_optimizer=reset(make_optimizer(config)) if config.schedule.reset_optimizer else None,
    )
    method = MethodInputs(
        reads=spec.reads,
        hypers_at=make_hypers_at(config),
        baseline_rate=config.override.baseline_rate if BASELINE in knobs(config) else None,
        judge_steps=prepared.judge_steps if STEPS in spec.reads else None,
        sampling_mask=config.rollout.keep_sampling_mask,
    )
    limits = Limits(
        skipped=config.optimizer.max_skipped,
        mismatch=MismatchLimit(config.rollout.mismatch_limit, config.rollout.url),
        reuse=config.reuse.limits if config.reuse.adaptive else None,
    )
    logged, log = None, prepared.logged
    if log is not None:
        behavior = make_behavior(config, learner, prepared.tokenizer)
        logged = Logged(log.experiences, behavior, config.least_logged)
    return Parts(
        seed=config.seed,
        schedule=config.schedule,
        prompts=prepared.prompts,
        collection=collection,
        make_buffer=partial(make_buffer, config, decoder.vocab_size, experience),
        learner=learner,
        method=method,
        limits=limits,
        evaluator=evaluator,
        certificate=None if config.certificate.delta is None else config.certificate,
        costs=count_costs(config, decoder),
        logged=logged,
    )


def recorded(config: TrainConfig, vocab_size: int) -> int:
    """Returns how many tokens are recorded at each place: all that could be drawn, k or none.

    Raises:
      ValueError: they may be too many.
    """
    rollout = config.rollout
    if not rollout.keep_sampling_mask:
        return min(config.override.centering, vocab_size)
    if not rollout.top_k and vocab_size > MOST_RECORDED:
        raise ValueError(
            f"rollout.keep-sampling-mask records each token that could be drawn, up to all"
            f" {vocab_size:,} of the vocabulary: give --rollout.top-k too, such as {MOST_RECORDED}"
        )
    return min(rollout.top_k or vocab_size, vocab_size)


def region_fn(config: TrainConfig) -> RegionFn | None:
    """Returns the trust region around the loss; None where there is none."""
    region = config.trust_region
    if region.kind == "none":
        return None
    if region.kind == "clip":
        eps = knobs(config)["eps_low"]
        low, high = min(CLIP_RANGE[0], eps / 10), max(CLIP_RANGE[1], eps)
        width = {"initial": eps, "smallest": low, "largest": high}
        return partial(adaptive_clip, target=region.delta, rate=region.rate, **width)
    if region.kind == "penalty":
        return partial(dual_penalty, delta=region.delta, rate=region.rate, initial=0.0)
    return partial(sequence_mask, delta=region.delta)


def find_devices(config: TrainConfig, decoder: DecoderConfig) -> Devices:
    """Returns the functions that depend on where the train state lies; a run makes them once."""
    region = region_fn(config)
    first = () if region is None else region(algorithm(config).loss).init()
    return make_devices(config, decoder, make_optimizer(config), first)


def make_spec(config: TrainConfig, policy_fn: PolicyFn) -> UpdateSpec:
    """Returns the update's static half."""
    override, optimizer, method = config.override, config.optimizer, algorithm(config)
    skips = optimizer.skip_zero_variance
    return UpdateSpec(
        policy_fn=with_sampling_mask(policy_fn) if config.rollout.keep_sampling_mask else policy_fn,
        algorithm=method,
        reads=method.inputs(knobs(config)),
        mask_zero_variance=override.mask_zero_variance or (skips and ignores_zero_variance(config)),
        count_masked=override.count_masked,
        microbatches=optimizer.microbatches,
        skip_zero_variance=skips,
        packed=optimizer.batching == "packed",
        together=data_shards(config),
        region_fn=region_fn(config),
        centered=config.override.centering > 0,
    )


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Returns AdamW's direction; the step size comes with each update."""
    options = config.optimizer
    return adam(
        b1=options.b1,
        b2=options.b2,
        eps=options.eps,
        weight_decay=options.weight_decay,
        max_grad_norm=options.max_grad_norm,
        moments=options.moments,
    )


def make_hypers_at(config: TrainConfig) -> Callable[[int, float, int], Hypers]:
    """Returns `(update, clip scale, seed) -> hyper-parameters`.

    The learning rate rises linearly to its peak, and decays linearly over the rest of the run.
    """
    optimizer, updates, values = config.optimizer, config.schedule.updates, knobs(config)
    warmup, peak = min(optimizer.warmup, updates - 1), config.peak_rate
    rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    fall = optax.linear_schedule(peak, peak * (1 - optimizer.decay), updates - warmup)
    rate = optax.join_schedules([rise, fall], [warmup])

    def hypers_at(update: int, clip_scale: float, seed: int) -> Hypers:
        clipped = [name for name in ("eps_low", "eps_high") if name in values]
        clip = {name: values[name] * clip_scale for name in clipped}
        size = float(np.asarray(rate(update)))
        return hypers(size, config.rollout.temperature, {**values, **clip}, seed=seed)

    return hypers_at


def make_buffer(
    config: TrainConfig, vocab_size: int, folder: Path | None, state: dict[str, Any] | None
) -> ReplayBuffer:
    """Makes a new buffer, or the one that a checkpoint describes.

    Args:
      config: of the run. Without `replay.groups` the buffer holds what a step collects or draws, or
        all of the warm-up; with a log, all that comes.
      folder: of the run's experience; None keeps it in memory alone.
      state: a checkpoint's description of the buffer.
    """
    replay, schedule = config.replay, config.schedule
    samplers: dict[str, Sampler] = {
        "fifo": fifo,
        "uniform": uniform,
        "stratified": stratified,
        "fresh": partial(weighted, weight=partial(recency, half_life=replay.half_life)),
        "unused": partial(weighted, weight=partial(novelty, exponent=1.0)),
        "advantage": partial(weighted, weight=partial(advantage, exponent=1.0, floor=0.0)),
        "positives": partial(weighted, weight=positives),
    }
    batches = max(schedule.prompts * max(schedule.warmup, 1), schedule.draw_size)
    limits = BufferLimits(
        groups=replay.groups or (batches if config.logs.path is None else None),
        staleness=replay.max_staleness,
        uses=replay.max_uses,
    )
    top, centered = recorded(config, vocab_size), config.override.centering > 0
    layout = Layout(config.rollout.group_size, vocab_size, top, centered)
    return ReplayBuffer(
        layout,
        limits,
        partial(mixed, share=mix) if (mix := config.logs.mix) else samplers[replay.sampler],
        folder=folder,
        state=state or EMPTY,
        refuse_zero_variance=replay.refuse_zero_variance,
        refuse_failures=replay.refuse_failures,
    )


def count_costs(config: TrainConfig, decoder: DecoderConfig) -> Costs:
    """Returns the FLOPs of a step's parts, from their shapes."""
    n, group = config.schedule.draw_size, config.rollout.group_size
    prompt, completion = config.longest_prompt, config.longest_completion
    shapes = {"n": n, "g": group, "p": prompt, "t": completion}
    lora, microbatches = config.lora, config.optimizer.microbatches
    adapter = None if lora.rank is None else flops.Adapter(lora.rank, TARGETS[lora.targets])
    backend = jax.default_backend()
    step = attention.step_of(config.kernels.attention, prompt + completion, backend)
    one_cpu = on_one_device(config) and backend == "cpu"
    sampled = {} if config.rollout.url else sampler_layout(completion, one_cpu=one_cpu)

    def layout(shape: Shape | None, microbatches: int) -> flops.Workload:
        if shape is None:
            return flops.padded(**shapes, microbatches=microbatches, step=step)
        return flops.Workload(**shape.sizes, blocked=step is not None)

    def rollout(lengths: IntArray) -> int:
        collected = {**shapes, "n": len(lengths) // group}
        return flops.sample_flops(decoder, **collected, lengths=lengths.tolist(), **sampled).total

    def update(shape: Shape | None) -> int:
        remat = {"remat": config.model.remat, "adapter": adapter}
        return flops.update_flops(decoder, layout(shape, microbatches), **remat).total

    def score(shape: Shape | None) -> int:
        return flops.forward_flops(decoder, layout(shape, 1), adapter=adapter).total

    return Costs(rollout, update, score)


def make_packer(config: TrainConfig) -> Packer | None:
    """Returns the layout of packed batches; None where they are padded."""
    options = config.optimizer
    if options.batching == "padded":
        return None
    skips, tokens = options.skip_zero_variance, options.microbatch_tokens
    return Packer(options.microbatches, skips, data_shards(config), tokens)


def batching_line(config: TrainConfig) -> str:
    """Returns how the updates' batches are laid out, and their largest size."""
    options, rollout = config.optimizer, config.rollout
    places = config.longest_prompt + rollout.group_size * config.longest_completion
    each = config.schedule.draw_size * places // options.microbatches
    shared = data_shards(config)
    spread = "" if shared == 1 else f" over {shared} devices"
    cut = f"{options.microbatches} x {each:,} tokens{spread}"
    if options.batching == "padded":
        return f"batches: padded to {cut}"
    if options.microbatch_tokens is not None:
        each = f"{options.microbatch_tokens:,} tokens{' a device' if shared > 1 else ''}"
        return f"batches: packed, in parts of at most {each}; each shape compiled once"
    buckets = f"at most {4 * BUCKETS} x {4 * OTHER_BUCKETS} row lengths, each shape compiled once"
    return f"batches: packed, at most {cut}; {buckets}"
