"""Memory that XLA plans for updates: lowered from shapes and compiled for the CPU; nothing runs.

    python -m benchmarks.memory lengths --completions 512 1024 2048 4096 8192 16384 32768
    python -m benchmarks.memory layouts --tokens 4608 8192 16384
    python -m benchmarks.memory presets
    python -m benchmarks.memory devices --data 1 --fsdp 8 --tensor 1 --microbatches 8

`lengths` takes one prompt with its completions; `layouts` a batch with one long completion among
short ones, padded, packed, and cut by tokens; `presets` the updates of the presets of real models
with full completions, beside what `ogrpo plan` counts; `devices` a mesh of so many devices of this
host, per device. The figures are XLA's own (`compiled.memory_analysis()`):

    state      weights and the optimizer's moments, given and returned in place
    temporary  all that lives between: gradient, gathered weights, activations, logits
    peak       arguments + temporary + outputs that alias nothing
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ogrpo.batch import Batch, tokens_only
from ogrpo.config.method import knobs
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Model, Rollout, TrainConfig
from ogrpo.config.update import Kernels, Lora, Mesh, Optimizer
from ogrpo.learner import sharding
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.learner.update import jit_step
from ogrpo.loop.batches import Made, make_batch
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.config import SHAPES
from ogrpo.policy.decoder import param_shapes
from ogrpo.setup.build import find_devices, make_optimizer, make_packer, make_recipe
from ogrpo.setup.devices import DTYPES, options_of_compiler, state_layout, trained_and_frozen
from ogrpo.setup.presets import PRESETS, main_study
from ogrpo_plan.memory import train_budget
from ogrpo_plan.presets import DEVICES, plan_of

GIB = 2**30
BETWEEN = ("gradients", "computing copy and its gradient", "activations", "working")
"""Rows of `ogrpo plan` that live while an update runs."""


class Planned(NamedTuple):
    """XLA's plan of one update, in bytes on each device."""

    state: int
    analysis: Any

    @property
    def temporary(self) -> int:
        """Bytes that live between inputs and outputs."""
        return self.analysis.temp_size_in_bytes

    @property
    def peak(self) -> int:
        """All that is there at once."""
        sizes = self.analysis
        outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        return sizes.argument_size_in_bytes + sizes.temp_size_in_bytes + outputs


def plan_update(
    config: TrainConfig, decoder: DecoderConfig, batch: Batch[Any], *, meshed: bool = False
) -> Planned:
    """Compiles a run's update on a batch of this shape; on its mesh, or on one device.

    Memory is planned before machine code is made, which nobody will run: half of the compiler's
    time is saved there, to the same figures.
    """
    optimizer, dtype = make_optimizer(config), DTYPES[config.model.dtype]
    params = jax.tree.map(lambda x: x.update(dtype=dtype), param_shapes(decoder))

    def first_state(params: Params) -> TrainState:
        trained, frozen = trained_and_frozen(config, params)
        return init_state(trained, optimizer, frozen=frozen)

    state = jax.eval_shape(first_state, params)
    numbers = jax.tree.map(jnp.asarray, hypers(1e-6, 1.0, knobs(config)))
    recipe = make_recipe(config, find_devices(config, decoder).policy_fn)
    if meshed:
        to = state_layout(config, decoder, optimizer)
        state = jax.tree.map(placed_shape, state, to.state)
        batch = jax.tree.map(partial(placed_shape, where=to.batch), batch)
        numbers = jax.tree.map(partial(placed_shape, where=to.everywhere), numbers)
        step: Any = sharding.shard_step(optimizer, recipe, to, options=options_of_compiler(config))
        held = state
    else:
        step = jit_step(optimizer, recipe, compiler_options=options_of_compiler(config))
        there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        held = jax.tree.map(partial(placed_shape, where=there), state)
    lowered = step.lower(replace(state, frozen=()), state.frozen, batch, numbers)
    fast = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    analysis = lowered.compile(compiler_options=fast).memory_analysis()
    return Planned(sharding.bytes_per_device(held), analysis)


def placed_shape(leaf: Any, where: Any) -> jax.ShapeDtypeStruct:
    """The shape of an array that lies there."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def batch_shapes(n: int, g: int, p: int, t: int) -> Batch[Any]:
    """The shapes of `n` prompts of `p` tokens, with `g` completions of `t` tokens each."""
    of = jax.ShapeDtypeStruct
    return Batch(
        prompt_ids=of((n, p), jnp.int32),
        prompt_mask=of((n, p), jnp.bool_),
        completion_ids=of((n, g, t), jnp.int32),
        completion_mask=of((n, g, t), jnp.bool_),
        loss_mask=of((n, g, t), jnp.bool_),
        behavior_log_probs=of((n, g, t), jnp.float32),
        rewards=of((n, g), jnp.float32),
        policy_versions=of((n, g), jnp.int32),
    )


def plan_length(options: argparse.Namespace, length: int) -> Planned:
    """The plan of one prompt with completions of this length; otherwise the defaults."""
    config = main_study(
        model=Model(dtype=options.dtype, remat=options.remat, compute_dtype=options.compute_dtype),
        lora=Lora(rank=options.lora_rank),
        kernels=Kernels(
            attention=options.attention, log_probs=options.log_probs, kept_mib=options.kept_mib
        ),
        rollout=Rollout(group_size=options.group, max_tokens=length),
        schedule=Schedule(prompts=1),
        optimizer=Optimizer(microbatches=1, moments=options.moments),
    )
    decoder = SHAPES[options.shape]
    decoder = replace(decoder, max_positions=max(decoder.max_positions, options.prompt + length))
    return plan_update(config, decoder, batch_shapes(1, options.group, options.prompt, length))


def lengths(options: argparse.Namespace) -> Iterator[list[str]]:
    """A line for each length of the completions."""
    yield ["completion", "state GiB", "temporary GiB", "a token, KiB", "compiled in s"]
    for length in options.completions:
        began = time.perf_counter()
        planned = plan_length(options, length)
        tokens = options.prompt + options.group * length
        yield [
            str(length),
            f"{planned.state / GIB:.2f}",
            f"{planned.temporary / GIB:.2f}",
            f"{planned.temporary / 2**10 / tokens:.0f}",
            f"{time.perf_counter() - began:.0f}",
        ]


def plan_groups(
    config: TrainConfig, decoder: DecoderConfig, groups: Batch[np.ndarray]
) -> tuple[Planned, Made]:
    """The plan of a run's update on groups as its packer lays them out, and that batch."""
    made = make_batch(groups, make_packer(config), for_update=True)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), made.batch)
    return plan_update(config, decoder, shapes), made


def uneven_groups(options: argparse.Namespace) -> Batch[np.ndarray]:
    """Short completions, and one of the full length."""
    rng = np.random.default_rng(0)
    low, high = options.short
    sizes = rng.integers(low, high, (options.prompts, options.group))
    sizes[options.prompts // 2, options.group // 2] = options.completion
    prompts = rng.integers(options.prompt // 4, options.prompt + 1, options.prompts)
    return as_batch(prompts, sizes, options.prompt, options.completion)


def as_batch(
    prompts: np.ndarray, sizes: np.ndarray, prompt: int, completion: int
) -> Batch[np.ndarray]:
    """Prompts [N] and completions [N, G] of these lengths, every second one rewarded."""
    batch = tokens_only(
        prompt_ids=np.zeros((len(prompts), prompt), np.int32),
        prompt_mask=np.arange(prompt) < prompts[:, None],
        completion_ids=np.zeros((*sizes.shape, completion), np.int32),
        completion_mask=np.arange(completion) < sizes[..., None],
    )
    rewards = np.arange(sizes.size, dtype=np.float32) % 2
    return batch._replace(rewards=rewards.reshape(sizes.shape))


def layouts(options: argparse.Namespace) -> Iterator[list[str]]:
    """A line for each way to lay out a batch with one long completion."""
    yield ["batch", "parts", "tokens a part", "computed tokens", "padding", "temporary GiB"]
    ways = {
        "padded": Optimizer(microbatches=options.prompts),
        "packed": Optimizer(microbatches=options.prompts, batching="packed"),
    }
    for tokens in options.tokens:
        cut = Optimizer(batching="packed", microbatch_tokens=tokens)
        ways[f"packed, cut at {tokens:,}"] = cut
    for name, optimizer in ways.items():
        config = main_study(
            data=Data(prompt_length=options.prompt),
            model=Model(dtype=options.dtype, remat=options.remat),
            rollout=Rollout(group_size=options.group, max_tokens=options.completion),
            schedule=Schedule(prompts=options.prompts),
            optimizer=optimizer,
        )
        planned, made = plan_groups(config, SHAPES[options.shape], uneven_groups(options))
        padded = options.prompt + options.group * options.completion
        parts = made.shape.parts if made.shape else options.prompts
        row = made.shape.row if made.shape else padded
        sizes = [f"{parts}", f"{row:,}", f"{parts * row:,}", f"{made.padding:.0%}"]
        yield [name, *sizes, f"{planned.temporary / GIB:.2f}"]


class PresetPlan(NamedTuple):
    """Bytes on a preset's one training device."""

    capacity: int
    total: int
    """Of XLA's plan, and the state beside it."""
    temporary: int
    planned: int
    """By `ogrpo plan`."""

    @property
    def fits(self) -> bool:
        """Whether XLA's plan has room there."""
        return self.total <= self.capacity


def plan_preset(name: str) -> PresetPlan:
    """The plan of a preset's update, every prompt and completion as long as it may be."""
    config, plan = PRESETS[name](), plan_of(name)
    count, group = config.schedule.prompts, config.rollout.group_size
    prompt, length = plan.batch.prompt_length, config.rollout.max_tokens
    assert length is not None  # presets of real models settle it
    sizes = np.full((count, group), length)
    scores = np.zeros((count, group, length), np.float32)
    full = as_batch(np.full(count, prompt), sizes, prompt, length)._replace(
        behavior_log_probs=scores,
        ref_log_probs=scores if config.knobs.beta else None,
        policy_versions=np.zeros((count, group), np.int32),
    )
    temporary = plan_groups(config, plan.model.decoder(), full)[0].temporary
    budget = train_budget(plan)
    beside = sum(size for row, size in budget.rows.items() if row not in BETWEEN)
    return PresetPlan(budget.capacity, beside + temporary, temporary, budget.total)


def presets(options: argparse.Namespace) -> Iterator[list[str]]:
    """A line for each preset of a real model."""
    yield ["preset", "device, GiB", "XLA's plan, GiB", "temporary", "ogrpo plan", "fits"]
    for name in options.presets or DEVICES:
        preset = plan_preset(name)
        sizes = (preset.capacity, preset.total, preset.temporary, preset.planned)
        yield [name, *(f"{size / GIB:.1f}" for size in sizes), "yes" if preset.fits else "no"]


def devices(options: argparse.Namespace) -> Iterator[list[str]]:
    """The figures of one update on a mesh, per device."""
    jax.config.update("jax_num_cpu_devices", options.data * options.fsdp * options.tensor)
    config = main_study(
        model=Model(dtype=options.dtype, remat=options.remat, compute_dtype=options.compute_dtype),
        lora=Lora(rank=options.lora_rank),
        kernels=Kernels(log_probs=options.log_probs),
        rollout=Rollout(group_size=options.group, max_tokens=options.completion),
        schedule=Schedule(prompts=options.prompts),
        optimizer=Optimizer(microbatches=options.microbatches),
        mesh=Mesh(data=options.data, fsdp=options.fsdp, tensor=options.tensor),
    )
    batch = batch_shapes(options.prompts, options.group, options.prompt, options.completion)
    planned = plan_update(config, SHAPES[options.shape], batch, meshed=True)
    yield ["state GiB", "temporary GiB", "peak GiB"]
    yield [f"{size / GIB:.2f}" for size in (planned.state, planned.temporary, planned.peak)]


def parser() -> argparse.ArgumentParser:
    """The command's options."""
    made = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    of = made.add_subparsers(required=True)
    sizes = {
        lengths: {"group": 16, "prompt": 256},
        layouts: {"prompts": 8, "group": 8, "prompt": 256, "completion": 4096},
        devices: {"prompts": 64, "group": 16, "prompt": 256, "completion": 1024}
        | {"data": 1, "fsdp": 8, "tensor": 1, "microbatches": 1},
    }
    shapes = {lengths: "qwen2.5-1.5b", layouts: "qwen2.5-0.5b", devices: "qwen3-4b"}
    for case, numbers in sizes.items():
        options = of.add_parser(case.__name__)
        options.set_defaults(case=case)
        for name, value in numbers.items():
            options.add_argument(f"--{name}", type=int, default=value)
        options.add_argument("--shape", default=shapes[case], help="of `ogrpo.policy.config`")
        options.add_argument("--remat", choices=("none", "products", "full"), default="full")
        types = ("float32", "bfloat16")
        options.add_argument("--dtype", choices=types, default=types[case is not devices])
        if case is layouts:
            options.add_argument("--short", type=int, nargs=2, default=(100, 500))
            options.add_argument("--tokens", type=int, nargs="+", default=[4608, 8192, 16384])
            continue
        options.add_argument("--compute-dtype", choices=types, default="bfloat16")
        options.add_argument("--lora-rank", type=int, help="default: every weight is trained")
        options.add_argument("--log-probs", choices=("reference", "chunked"), default="chunked")
        if case is lengths:
            steps = [512, 1024, 2048, 4096, 8192]
            options.add_argument("--completions", type=int, nargs="+", default=steps)
            kinds = ("auto", "plain", "blocked")
            options.add_argument("--attention", choices=kinds, default="auto")
            options.add_argument("--kept-mib", type=int, default=512, help="of logits")
            moments = ("full", "bfloat16", "factored")
            options.add_argument("--moments", choices=moments, default="full")
    options = of.add_parser("presets")
    options.add_argument("--presets", nargs="+", help="default: all of a real model")
    options.set_defaults(case=presets)
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table of a case, a line as soon as it is known."""
    jax.config.update("jax_platforms", "cpu")
    options = parser().parse_args(arguments)
    print(f"# {vars(options)}")
    for number, line in enumerate(options.case(options)):
        print(f"| {' | '.join(line)} |", flush=True)
        if number == 0:
            print(f"|{'---|' * len(line)}", flush=True)


if __name__ == "__main__":
    main()
