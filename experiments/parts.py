"""The parts of the loop, made from a config."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import optax

from experiments.config import Gsm8k
from experiments.devices import Devices, make_devices
from experiments.objectives import knobs, metrics_fn, objective_fn
from experiments.tasks import Prepared
from ogrpo.bridge import connect_policy, embedded_engine
from ogrpo.core import advantages, aggregate
from ogrpo.data.tokenizer import TextTokenizer
from ogrpo.loop import Parts
from ogrpo.policy import DecoderConfig
from ogrpo.rollout.embedded import EmbeddedEngine
from ogrpo.rollout.protocol import Engine, Sampling
from ogrpo.rollout.vllm import Options, VllmEngine
from ogrpo.training.state import Hypers, adam, hypers
from ogrpo.training.update import Recipe

ADVANTAGES = {
    "group_standardized": partial(advantages.group_standardized, eps_inside=1e-6),
    "centered": advantages.centered,
    "leave_one_out": advantages.leave_one_out,
}


def total_fn(config: Gsm8k) -> Callable[..., aggregate.Total]:
    """The aggregation by its name."""
    fixed = partial(aggregate.fixed_length_total, length=config.rollout.max_tokens)
    return {
        "token": aggregate.token_total,
        "sequence": aggregate.sequence_total,
        "sequence_sum": aggregate.sequence_sum_total,
        "fixed_length": fixed,
        "group": aggregate.group_total,
    }[config.objective.aggregation]


def make_recipe(config: Gsm8k, decoder: DecoderConfig) -> Recipe:
    """The update's static half."""
    wanted = config.objective
    return Recipe(
        policy_fn=find_devices(config, decoder).policy_fn,
        objective_fn=objective_fn(wanted),
        advantage_fn=ADVANTAGES[wanted.advantage],
        total_fn=total_fn(config),
        metrics_fn=metrics_fn(wanted),
        mask_zero_variance=wanted.mask_zero_variance,
        count_masked=wanted.count_masked,
        microbatches=config.optimizer.microbatches,
    )


def learning_rate(config: Gsm8k) -> optax.Schedule:
    """Linear warm-up, then a linear decay over the rest of the run."""
    wanted, updates = config.optimizer, config.schedule.steps * config.schedule.i
    warmup = min(wanted.warmup, updates - 1)
    peak = wanted.learning_rate
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / (warmup + 1), peak, warmup),
            optax.linear_schedule(peak, peak * (1 - wanted.decay), updates - warmup),
        ],
        [warmup],
    )


def make_optimizer(config: Gsm8k) -> optax.GradientTransformation:
    """AdamW's direction; the step size comes with each update."""
    wanted = config.optimizer
    return adam(
        b1=wanted.b1,
        b2=wanted.b2,
        eps=wanted.eps,
        weight_decay=wanted.weight_decay,
        max_grad_norm=wanted.max_grad_norm,
    )


def find_devices(config: Gsm8k, decoder: DecoderConfig) -> Devices:
    """The functions that depend on where the train state lies."""
    return make_devices(config, decoder, make_optimizer(config))


def make_server_engine(
    config: Gsm8k, decoder: DecoderConfig, tokenizer: TextTokenizer
) -> VllmEngine:
    """Servers at `rollout.url` behind the engine interface."""
    wanted = config.rollout
    options = Options(
        folder=wanted.folder,
        transport=wanted.transport,
        listen=wanted.listen,
        in_flight=wanted.in_flight,
    )
    return connect_policy(
        wanted.url,
        decoder,
        eos_id=tokenizer.eos_id,
        max_length=config.data.prompt_length + wanted.max_tokens,
        texts=tokenizer.sample_texts(),
        options=options,
    )


def make_engine(config: Gsm8k, decoder: DecoderConfig, eos_id: int) -> EmbeddedEngine:
    """The trainer's own sampler, a batch of prompts at a time."""
    return embedded_engine(
        decoder,
        eos_id=eos_id,
        batch_size=config.schedule.prompts,
        prompt_length=config.data.prompt_length,
        place_fn=find_devices(config, decoder).place_prompts,
    )


def make_parts(
    config: Gsm8k, prepared: Prepared, decoder: DecoderConfig, engine: Engine | None = None
) -> Parts:
    """Everything that the loop composes; without an engine, it samples with the embedded one."""
    recipe, rate = make_recipe(config, decoder), learning_rate(config)
    eos_id, wanted = prepared.tokenizer.eos_id, config.rollout
    devices = find_devices(config, decoder)

    def hypers_at(update: int) -> Hypers:
        return hypers(float(np.asarray(rate(update))), wanted.temperature, knobs(config.objective))

    sampling = Sampling(
        temperature=wanted.temperature,
        max_tokens=wanted.max_tokens,
        group_size=wanted.group_size,
    )
    return Parts(
        task=prepared.task,
        engine=engine or make_engine(config, decoder, eos_id),
        evaluator=make_engine(config, decoder, eos_id),
        update=devices.make_update(recipe),
        score=devices.make_score(recipe.policy_fn),
        hypers_at=hypers_at,
        sampling=sampling,
        evaluation_sampling=replace(
            sampling,
            temperature=config.evaluation.temperature,
            group_size=config.evaluation.samples or wanted.group_size,
        ),
        exact_center=config.objective.center == "exact",
        uses_reference=config.objective.beta > 0,
        certificate_delta=config.certificate.delta,
        seed=config.seed,
    )
