"""Memory that XLA plans for updates: lowered from shapes and compiled for the CPU; nothing runs.

    python -m benchmarks.memory lengths --completions 512 1024 2048 4096 8192 16384 32768
    python -m benchmarks.memory presets
    python -m benchmarks.memory devices --data 1 --fsdp 8 --tensor 1 --microbatches 8

The figures are XLA's own (`compiled.memory_analysis()`):

    state      weights and the optimizer's moments, given and returned in place
    temporary  all that lives between: gradient, gathered weights, activations, logits
    peak       arguments + temporary + outputs that alias nothing
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from benchmarks.rows import line
from ogrpo.batch import Batch, tokens_only
from ogrpo.config.method import knobs
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Model, Rollout, TrainConfig
from ogrpo.config.update import Kernels, Lora, Mesh, Optimizer
from ogrpo.learner import sharding
from ogrpo.learner.state import TrainState, hypers, init_state
from ogrpo.learner.update import jit_step
from ogrpo.loop.batches import make_batch
from ogrpo.policy import DecoderConfig, Params
from ogrpo.policy.config import SHAPES
from ogrpo.policy.decoder import param_shapes
from ogrpo.setup.build import find_devices, make_optimizer, make_packer, make_spec
from ogrpo.setup.devices import DTYPES, options_of_compiler, state_layout, trained_and_frozen
from ogrpo.setup.presets import PRESETS, main_study
from ogrpo_plan.config import DEVICES, plan_of
from ogrpo_plan.memory import train_budget

GIB = 2**30
Dtype = Literal["float32", "bfloat16"]
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
    spec = make_spec(config, find_devices(config, decoder).policy_fn)
    if meshed:
        to = state_layout(config, decoder, optimizer)
        state = jax.tree.map(placed_shape, state, to.state)
        batch = jax.tree.map(partial(placed_shape, where=to.batch), batch)
        numbers = jax.tree.map(partial(placed_shape, where=to.everywhere), numbers)
        step: Any = sharding.shard_step(optimizer, spec, to, options=options_of_compiler(config))
        held = state
    else:
        batch = jax.tree.map(placed_shape, batch)
        step = jit_step(optimizer, spec, compiler_options=options_of_compiler(config))
        there = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        held = jax.tree.map(partial(placed_shape, where=there), state)
    lowered = step.lower(replace(state, frozen=()), state.frozen, batch, numbers)
    fast = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    analysis = lowered.compile(compiler_options=fast).memory_analysis()
    return Planned(sharding.bytes_per_device(held), analysis)


def placed_shape(leaf: Any, where: Any = None) -> jax.ShapeDtypeStruct:
    """The shape of an array that lies there, or anywhere."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)


def full_batch(n: int, g: int, p: int, t: int) -> Batch[np.ndarray]:
    """`n` prompts of `p` tokens, with `g` completions of `t` tokens each."""
    return tokens_only(
        prompt_ids=np.zeros((n, p), np.int32),
        prompt_mask=np.ones((n, p), bool),
        completion_ids=np.zeros((n, g, t), np.int32),
        completion_mask=np.ones((n, g, t), bool),
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """Full completions: what is planned for one prompt, and for many on a mesh."""

    shape: str
    """Of `ogrpo.policy.config`."""
    group: int = 16
    prompt: int = 256
    remat: Literal["none", "products", "full"] = "full"
    dtype: Dtype
    compute_dtype: Dtype = "bfloat16"
    lora_rank: int | None = None
    """By default every weight is trained."""
    moments: Literal["full", "bfloat16", "factored"] = "full"

    def plan(
        self, length: int, *, prompts: int = 1, microbatches: int = 1, mesh: Mesh | None = None
    ) -> Planned:
        """The plan with completions of this length; otherwise the defaults."""
        config = main_study(
            model=Model(dtype=self.dtype, remat=self.remat, compute_dtype=self.compute_dtype),
            lora=Lora(rank=self.lora_rank),
            kernels=Kernels(log_probs="chunked"),
            rollout=Rollout(group_size=self.group, max_tokens=length),
            schedule=Schedule(prompts=prompts),
            optimizer=Optimizer(microbatches=microbatches, moments=self.moments),
            mesh=mesh or Mesh(),
        )
        decoder = SHAPES[self.shape]
        decoder = replace(decoder, max_positions=max(decoder.max_positions, self.prompt + length))
        batch = full_batch(prompts, self.group, self.prompt, length)
        return plan_update(config, decoder, batch, meshed=mesh is not None)


@dataclass(frozen=True, kw_only=True)
class Lengths(Options):
    """One prompt with its completions, at each of some lengths."""

    completions: tuple[int, ...] = (512, 1024, 2048, 4096, 8192)
    shape: str = "qwen2.5-1.5b"
    dtype: Dtype = "bfloat16"

    def __iter__(self) -> Iterator[list[str]]:
        """A line for each length of the completions."""
        yield ["completion", "state GiB", "temporary GiB", "a token, KiB", "compiled in s"]
        for length in self.completions:
            began = time.perf_counter()
            planned = self.plan(length)
            tokens = self.prompt + self.group * length
            yield [
                str(length),
                f"{planned.state / GIB:.2f}",
                f"{planned.temporary / GIB:.2f}",
                f"{planned.temporary / 2**10 / tokens:.0f}",
                f"{time.perf_counter() - began:.0f}",
            ]


@dataclass(frozen=True, kw_only=True)
class Devices(Options):
    """One update on a mesh of so many devices of this host, per device."""

    shape: str = "qwen3-4b"
    dtype: Dtype = "float32"
    prompts: int = 64
    completion: int = 1024
    data: int = 1
    fsdp: int = 8
    tensor: int = 1
    microbatches: int = 1

    def __iter__(self) -> Iterator[list[str]]:
        """The line of the update."""
        jax.config.update("jax_num_cpu_devices", self.data * self.fsdp * self.tensor)
        planned = self.plan(
            self.completion,
            prompts=self.prompts,
            microbatches=self.microbatches,
            mesh=Mesh(data=self.data, fsdp=self.fsdp, tensor=self.tensor),
        )
        yield ["state GiB", "temporary GiB", "peak GiB"]
        yield [f"{size / GIB:.2f}" for size in (planned.state, planned.temporary, planned.peak)]


class PresetPlan(NamedTuple):
    """Bytes on a preset's one training device."""

    capacity: int
    total: int
    """Of XLA's plan, and the state beside it."""
    temporary: int
    planned: int
    """By `ogrpo plan`."""


def plan_preset(name: str) -> PresetPlan:
    """The plan of a preset's update, every prompt and completion as long as it may be."""
    config, plan = PRESETS[name](), plan_of(name)
    count, group = config.schedule.prompts, config.rollout.group_size
    full = full_batch(count, group, plan.longest_prompt, plan.longest_completion)
    judged = full._replace(
        ref_log_probs=full.behavior_log_probs if config.knobs.beta else None,
        rewards=np.resize(np.float32([0, 1]), (count, group)),
    )
    made = make_batch(judged, make_packer(config), for_update=True)
    temporary = plan_update(config, plan.decoder(), made.batch).temporary
    budget = train_budget(plan)
    beside = sum(size for row, size in budget.rows.items() if row not in BETWEEN)
    return PresetPlan(budget.capacity, beside + temporary, temporary, budget.total)


def presets(names: tuple[str, ...] = tuple(DEVICES)) -> Iterator[list[str]]:
    """The updates of the presets of real models, beside what `ogrpo plan` counts."""
    yield ["preset", "device, GiB", "XLA's plan, GiB", "temporary", "ogrpo plan", "fits"]
    for name in names:
        preset = plan_preset(name)
        fits = "yes" if preset.total <= preset.capacity else "no"
        yield [name, *(f"{size / GIB:.1f}" for size in preset), fits]


def main() -> None:
    """Prints the table of a case, a line as soon as it is known."""
    jax.config.update("jax_platforms", "cpu")
    cases = {"lengths": Lengths, "presets": presets, "devices": Devices}
    prog = "python -m benchmarks.memory"
    case = tyro.extras.subcommand_cli_from_dict(cases, prog=prog, description=__doc__)
    print("#", *sys.argv[1:])
    for number, cells in enumerate(case):
        print(line(cells), flush=True)
        if number == 0:
            print(line(["---"] * len(cells)), flush=True)


if __name__ == "__main__":
    main()
