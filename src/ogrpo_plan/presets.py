"""A preset of a real model as a plan: its batch and its memory on the device that it names."""

from typing import Any, NamedTuple

from ogrpo.setup.presets import PRESETS
from ogrpo_plan.config import (
    BatchPlan,
    Link,
    Plan,
    PlanModel,
    PlanSchedule,
    Serve,
    ShapeName,
    Train,
)


class _Named(NamedTuple):
    """The figures that a preset's docstring names."""

    shape: ShapeName
    gigabytes: int
    """10^9 bytes of its one training device, as devices are sold."""
    prompt_length: int | None = None
    """Tokens of the longest prompt, where the preset leaves them to its task."""
    embedded: bool = False
    """Whether the preset draws with the trainer's own sampler, on the same CPU."""

    @property
    def device(self) -> str:
        """Returns the device in words."""
        return (
            f"a machine of {self.gigabytes} GB" if self.embedded else f"one {self.gigabytes} GB GPU"
        )


DEVICES: dict[str, _Named] = {
    "smollm2-135m": _Named("smollm2-135m", 8, prompt_length=102, embedded=True),
    "qwen2.5-0.5b": _Named("qwen2.5-0.5b", 80),
    "r1-distill-1.5b": _Named("qwen2.5-1.5b", 80),
    "qwen3-4b": _Named("qwen3-4b", 141),
}


def plan_of(name: str) -> Plan:
    """Returns the preset's training on one device, its completions drawn by servers elsewhere.

    An embedded sampler draws a batch in one call, which lasts as long as its longest
    completion, and its weights are copied in memory.

    Raises:
      ValueError: a preset that is not for a real model.
    """
    if name == "none":
        return Plan()
    if name not in DEVICES:
        raise ValueError(f"there is no plan of preset {name!r}: choose {', '.join(DEVICES)}")
    named, run = DEVICES[name], PRESETS[name]()
    longest, plain, parts = run.rollout.max_tokens, BatchPlan(), run.optimizer
    memory = named.gigabytes * 1e9 / 2**30
    cut: dict[str, Any] = {"microbatch_tokens": parts.microbatch_tokens}
    if parts.microbatch_tokens is None:
        cut = {"microbatches": parts.microbatches}
    prompt = run.data.prompt_length or named.prompt_length
    assert prompt is not None  # presets of real models settle both lengths, or the table does
    assert longest is not None
    return Plan(
        preset=name,
        model=PlanModel(
            shape=named.shape,
            params=run.model.dtype,
            compute=run.model.compute_dtype or run.model.dtype,
            serve="float32" if named.embedded else PlanModel().serve,
            lora_rank=run.lora.rank,
        ),
        batch=BatchPlan(
            prompts=run.schedule.prompts,
            group_size=run.rollout.group_size,
            prompt_length=prompt,
            max_tokens=longest,
            mean_tokens=longest if named.embedded else min(plain.mean_tokens, longest / 2),
            spread=0.0 if named.embedded else plain.spread,
        ),
        train=Train(
            devices=1,
            fsdp=1,
            memory_gib=memory,
            **cut,
            moments=run.optimizer.moments,
            reference=bool(run.knobs.beta),
            remat="products" if run.model.remat == "none" else run.model.remat,
            attention=run.kernels.attention,
        ),
        serve=Serve(devices=1, memory_gib=memory, calls=1, groups_per_call=run.schedule.prompts)
        if named.embedded
        else Serve(),
        link=Link(latency=0.0) if named.embedded else Link(),
        schedule=PlanSchedule(
            sync_offset=run.schedule.sync_offset,
            sync_interval=run.schedule.sync_interval,
            updates_per_batch=run.schedule.updates_per_batch,
        ),
    )
