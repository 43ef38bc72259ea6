"""The parts of the loop, made from a config."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax

from ogrpo.config.method import BASELINE, algorithm, check, knobs, region_fn, silent
from ogrpo.config.train import TrainConfig
from ogrpo.core.algorithms import STEPS, VALUES
from ogrpo.data.packing import TOKEN_RUNGS, Shape
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.kernels import attention
from ogrpo.learner.examine import make_noise
from ogrpo.learner.hosts import fetch
from ogrpo.learner.memory import DEVICE_MEMORY, HOST_MEMORY
from ogrpo.learner.state import Hypers, adam, hypers, reset
from ogrpo.learner.update import PolicyFn, Recipe
from ogrpo.loop import Packer, Parts
from ogrpo.loop.parts import (
    Collection,
    Costs,
    Evaluator,
    Learner,
    Limits,
    MethodInputs,
    MismatchLimit,
)
from ogrpo.policy import DecoderConfig
from ogrpo.policy.flops import (
    Adapter,
    Layout,
    forward_flops,
    padded,
    sample_flops,
    update_flops,
)
from ogrpo.policy.lora import TARGETS
from ogrpo.protocol import Engine, Sampling
from ogrpo.rollout.check import Terms
from ogrpo.rollout.collection import CollectionLimits
from ogrpo.rollout.embedded import EmbeddedEngine
from ogrpo.rollout.nccl import Nccl
from ogrpo.rollout.vllm import Options, Unavailable, VllmEngine
from ogrpo.rollout.vllm.options import credentials_of_environment
from ogrpo.serving.bridge import connect_policy, embedded_engine, least_read
from ogrpo.setup.buffers import make_buffer
from ogrpo.setup.devices import Devices, make_devices, on_one_device, ways
from ogrpo.setup.prepare import Prepared


def make_recipe(config: TrainConfig, policy_fn: PolicyFn) -> Recipe:
    """The update's static half."""
    wanted, skips, chosen = config.override, config.optimizer.skip_zero_variance, algorithm(config)
    return Recipe(
        policy_fn=policy_fn,
        algorithm=chosen,
        reads=chosen.inputs(knobs(config)),
        mask_zero_variance=wanted.mask_zero_variance or (skips and silent(config)),
        count_masked=wanted.count_masked,
        microbatches=config.optimizer.microbatches,
        skip_zero_variance=skips,
        packed=config.optimizer.batching == "packed",
        together=ways(config),
        offload=config.optimizer.offloads_moments,
        region_fn=region_fn(config),
    )


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Linear warm-up, then a linear decay over the rest of the run."""
    wanted, updates = config.optimizer, config.schedule.updates
    warmup = min(wanted.warmup, updates - 1)
    peak = config.peak_rate
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / (warmup + 1), peak, warmup),
            optax.linear_schedule(peak, peak * (1 - wanted.decay), updates - warmup),
        ],
        [warmup],
    )


def make_hypers_at(config: TrainConfig) -> Callable[[int, float, int], Hypers]:
    """`(update, clip scale, seed) -> hyper-parameters`."""
    rate, own = learning_rate(config), knobs(config)

    def hypers_at(update: int, clip_scale: float, seed: int) -> Hypers:
        clip = {name: own[name] * clip_scale for name in ("eps_low", "eps_high") if name in own}
        size = float(np.asarray(rate(update)))
        return hypers(size, config.rollout.temperature, {**own, **clip}, seed=seed)

    return hypers_at


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """AdamW's direction; the step size comes with each update."""
    wanted = config.optimizer
    return adam(
        b1=wanted.b1,
        b2=wanted.b2,
        eps=wanted.eps,
        weight_decay=wanted.weight_decay,
        max_grad_norm=wanted.max_grad_norm,
        moments=wanted.moments,
    )


def find_devices(config: TrainConfig, decoder: DecoderConfig) -> Devices:
    """The functions that depend on where the train state lies; a run builds them once."""
    return make_devices(config, decoder, make_optimizer(config), first_region(config))


def make_server_engine(
    config: TrainConfig,
    decoder: DecoderConfig,
    tokenizer: TextTokenizer,
    nccl: Nccl | None = None,
    start_patience: float | None = None,
) -> VllmEngine:
    """Servers at `rollout.url` behind the engine interface; `nccl` goes with that transport."""
    wanted, who = config.rollout, credentials_of_environment()
    options = Options(
        folder=wanted.folder,
        transport=wanted.transport,
        push=wanted.push,
        listen=wanted.listen,
        advertise=wanted.advertise,
        in_flight=wanted.in_flight,
        timeout=wanted.timeout,
        patience=wanted.patience,
        start_patience=start_patience,
        attempts=wanted.attempts,
        per_server=wanted.per_server,
        tolerance=wanted.tolerance,
        **who._asdict(),
    )
    return connect_policy(
        wanted.roots,
        decoder,
        eos_id=tokenizer.eos_id,
        max_length=config.longest_prompt + config.longest_answer,
        texts=tokenizer.sample_texts(),
        options=options,
        nccl=nccl,
    )


def make_engine(
    config: TrainConfig,
    decoder: DecoderConfig,
    eos_id: int,
    devices: Devices,
    *,
    quantize: Literal["none", "int8"] = "none",
) -> EmbeddedEngine:
    """The trainer's own sampler, a batch of prompts at a time."""
    return embedded_engine(
        decoder,
        eos_id=eos_id,
        batch_size=config.schedule.prompts,
        prompt_length=config.longest_prompt,
        place_fn=devices.place_prompts,
        fetch_fn=fetch,
        quantize=quantize,
    )


def first_region(config: TrainConfig) -> Any:
    """The trust region's state before the first update; () where it has none."""
    wanted = region_fn(config)
    return () if wanted is None else wanted(algorithm(config).loss).init()


def adapter(config: TrainConfig) -> Adapter | None:
    """What adapters cost, if there are any."""
    if config.lora.rank is None:
        return None
    return Adapter(config.lora.rank, TARGETS[config.lora.targets])


def count_costs(config: TrainConfig, decoder: DecoderConfig) -> Costs:
    """FLOPs of a step's parts, from their shapes."""
    shapes = {
        "n": config.schedule.prompts,
        "g": config.rollout.group_size,
        "p": config.longest_prompt,
        "t": config.longest_completion,
    }
    beside, parts = adapter(config), config.optimizer.microbatches
    name, keys = config.kernels.attention, shapes["p"] + shapes["t"]
    step = attention.step_of(name, keys, jax.default_backend())

    def layout(shape: Shape | None, microbatches: int) -> Layout:
        if shape is None:
            return padded(**shapes, microbatches=microbatches, step=step)
        return Layout(**shape.sizes, blocked=step is not None)

    def update(shape: Shape | None) -> int:
        how = {"remat": config.model.remat, "adapter": beside}
        return update_flops(decoder, layout(shape, parts), **how).total

    def score(shape: Shape | None) -> int:
        return forward_flops(decoder, layout(shape, 1), adapter=beside).total

    one_cpu = on_one_device(config) and jax.default_backend() == "cpu"
    read = None if config.rollout.url else least_read(shapes["t"], one_cpu=one_cpu)

    def rollout(longest: int) -> int:
        lengths = [longest] * (shapes["n"] * shapes["g"])
        return sample_flops(decoder, **shapes, lengths=lengths, least_read=read).total

    return Costs(rollout, update, score)


def make_packer(config: TrainConfig) -> Packer | None:
    """How batches are packed, if they are."""
    wanted = config.optimizer
    if wanted.batching == "padded":
        return None
    skips, together = wanted.skip_zero_variance, ways(config)
    return Packer(wanted.microbatches, skips, together, wanted.microbatch_tokens)


def batching_line(config: TrainConfig) -> str:
    """How the updates' batches are laid out, and what they can cost."""
    wanted, rollout = config.optimizer, config.rollout
    places = config.longest_prompt + rollout.group_size * config.longest_completion
    each = config.schedule.prompts * places // wanted.microbatches
    shared = ways(config)
    spread = "" if shared == 1 else f" over {shared} devices"
    cut = f"{wanted.microbatches} x {each:,} tokens{spread}"
    if wanted.batching == "padded":
        return f"batches: padded to {cut}"
    if wanted.microbatch_tokens is not None:
        each = f"{wanted.microbatch_tokens:,} tokens{' a device' if shared > 1 else ''}"
        return f"batches: packed, in parts of at most {each}; each shape compiled once"
    ladder = f"at most {4 * TOKEN_RUNGS} row lengths, each shape compiled once"
    return f"batches: packed, at most {cut}; {ladder}"


def measures_noise(config: TrainConfig) -> bool:
    """Whether the noise of an update's gradient can be measured, and is wanted."""
    several = config.schedule.prompts > 1
    return config.evaluation.gradient_variance and several and on_one_device(config)


def collection_limits(config: TrainConfig) -> CollectionLimits:
    """How far collection may run ahead: `lead` batches, each a sync interval staler at most."""
    wanted = config.rollout
    return CollectionLimits(
        lead=config.schedule.sync_offset,
        max_staleness=None,
        workers=wanted.workers,
        judges=config.reward.processes,
        prompts_per_call=wanted.prompts_per_call,
        ordered=wanted.in_flight == "wait",
    )


def make_parts(
    config: TrainConfig,
    prepared: Prepared,
    decoder: DecoderConfig,
    engine: Engine | None = None,
    *,
    devices: Devices | None = None,
    experience: Path | None = None,
) -> Parts:
    """Everything that the loop composes.

    Args:
      config: settled, as `prepared.config` is.
      prepared: the task.
      decoder: the policy's shape.
      engine: samples, and evaluates unless `evaluation.engine` says otherwise; default: embedded.
      devices: `find_devices(config, decoder)`, where they were made before.
      experience: the folder of the replay buffer. Without it the buffer is in memory alone, and a
        checkpoint of a run that holds groups is refused.
    """
    check(config)
    devices = devices or find_devices(config, decoder)
    recipe = make_recipe(config, devices.policy_fn)
    how = (config, decoder, prepared.tokenizer.eos_id, devices)
    embedded = make_engine(*how, quantize=config.rollout.quantize)
    serving = None if config.evaluation.engine == "embedded" else engine
    collection = Collection(
        engine=engine or embedded,
        sampling=training_sampling(config),
        terms=terms(config, decoder, None if engine else prepared.tokenizer.eos_id),
        reward_fn=prepared.judge,
        reward_metrics=prepared.judge.metrics,
        limits=collection_limits(config),
        retry_on=(Unavailable,),
    )
    learner = Learner(
        init=devices.init,
        shapes=devices.shapes,
        packer=make_packer(config),
        place=devices.place_batch,
        score=devices.make_score(recipe.policy_fn),
        values=devices.make_values(recipe.policy_fn) if VALUES in recipe.reads else None,
        update=devices.make_update(recipe),
        noise=make_noise(recipe) if measures_noise(config) else None,
        examine=devices.make_examine(recipe),
        reference=HOST_MEMORY if config.optimizer.offloads_reference else DEVICE_MEMORY,
        reset_optimizer=reset(make_optimizer(config)) if config.schedule.reset_optimizer else None,
    )
    method = MethodInputs(
        reads=recipe.reads,
        hypers_at=make_hypers_at(config),
        baseline_rate=config.override.baseline_rate if BASELINE in knobs(config) else None,
        judge_steps=prepared.judge_steps if STEPS in recipe.reads else None,
    )
    limits = Limits(
        skipped=config.optimizer.max_skipped,
        mismatch=MismatchLimit(config.rollout.mismatch_limit, config.rollout.url),
        reuse=config.reuse.limits if config.reuse.adaptive else None,
    )
    return Parts(
        seed=config.seed,
        schedule=config.schedule,
        prompts=prepared.prompts,
        collection=collection,
        make_buffer=partial(make_buffer, config, decoder.vocab_size, experience),
        learner=learner,
        method=method,
        limits=limits,
        evaluator=Evaluator(
            engine=serving or make_engine(*how),
            sampling=evaluation_sampling(config),
            judge=prepared.judge_heldout.heldout,
        ),
        certificate=None if config.certificate.delta is None else config.certificate,
        costs=count_costs(config, decoder),
    )


def training_sampling(config: TrainConfig) -> Sampling:
    """How the groups that are trained on are drawn."""
    return Sampling(
        temperature=config.rollout.temperature,
        max_tokens=config.longest_completion,
        group_size=config.rollout.group_size,
    )


def terms(config: TrainConfig, decoder: DecoderConfig, eos_id: int | None) -> Terms:
    """What completions have to be; an engine from outside may have end tokens of its own."""
    return Terms(training_sampling(config), decoder.vocab_size, eos_id)


def evaluation_sampling(config: TrainConfig) -> Sampling:
    """How answers to held-out prompts are drawn."""
    wanted = config.evaluation
    return Sampling(
        temperature=wanted.temperature,
        max_tokens=config.longest_answer,
        group_size=wanted.samples or config.rollout.group_size,
    )
