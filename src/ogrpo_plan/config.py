"""Options of a plan: the model, the batch, the machines, the limits; presets as plans."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ogrpo.policy.config import SHAPES, DecoderConfig
from ogrpo.policy.flops import Adapter
from ogrpo.policy.lora import TARGETS
from ogrpo.setup.presets import PRESETS
from ogrpo.system.files import read_object
from ogrpo.system.values import (
    INERT,
    Count,
    Index,
    NonNegative,
    OptionalCount,
    Positive,
    PositiveShare,
    Seed,
    check,
    check_conditions,
    require,
)

GIB = 2**30
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
Dtype = Literal["float32", "bfloat16"]
ShapeName = Literal[
    "tiny", "smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-4b"
]


@dataclass(frozen=True)
class PlanModel:
    """The policy: its shape, its dtypes and its adapters."""

    shape: ShapeName = "qwen2.5-1.5b"
    """A known shape, where no config is given."""
    config: Path | None = None
    """A Hugging Face config.json instead."""
    params: Dtype = "float32"
    """What the trainer keeps weights, gradients and Adam's moments in."""
    compute: Dtype = "bfloat16"
    """What the trainer computes in."""
    serve: Dtype = "bfloat16"
    """What is sent to the servers, and their keys and values."""
    lora_rank: OptionalCount = None
    """Rank of adapters on every projection, which alone are trained, in float32 (docs/lora.md).
    None trains every weight."""

    def __post_init__(self) -> None:
        check(self, "model.")

    @property
    def adapter(self) -> Adapter | None:
        """Returns the adapters' sizes, or None where all weights are trained."""
        return None if self.lora_rank is None else Adapter(self.lora_rank, TARGETS["all"])

    def decoder(self) -> DecoderConfig:
        """Returns the decoder's shape, read from the file where one is named."""
        if self.config is None:
            return SHAPES[self.shape]
        require(
            self.config.is_file(),
            f"model.config {self.config} is no file: give the path of a config.json",
        )
        return DecoderConfig.from_hf(read_object(self.config), f"model.config {self.config}")


@dataclass(frozen=True)
class BatchPlan:
    """The batch of one step: prompts, completions of each, and their lengths."""

    prompts: Count = 64
    """N: prompts of a batch."""
    group_size: Count = 8
    """G: completions of a prompt."""
    prompt_length: Count = 256
    """P: tokens that prompts are padded to."""
    max_tokens: Count = 1024
    """T: longest completion."""
    mean_tokens: float = 400.0
    """Mean length of a completion, before the longest are cut."""
    spread: NonNegative = 0.6
    """Standard deviation of the length over its mean (log-normal)."""

    def __post_init__(self) -> None:
        check(self, "batch.")
        require(
            1 <= self.mean_tokens <= self.max_tokens,
            f"batch.mean-tokens is {self.mean_tokens}: give between 1 and batch.max-tokens = "
            f"{self.max_tokens}",
        )

    @property
    def keys(self) -> int:
        """The keys of a query in the longest completion, its prompt's included."""
        return self.prompt_length + self.max_tokens

    @property
    def shape(self) -> dict[str, int]:
        """Returns n, g, p and t as `ogrpo.policy.flops` takes them."""
        sizes = (self.prompts, self.group_size, self.prompt_length, self.max_tokens)
        return dict(zip("ngpt", sizes, strict=True))


@dataclass(frozen=True)
class Train:
    """The accelerators that train, as `ogrpo.learner.sharding` lays a mesh over them."""

    devices: Count = 8
    memory_gib: Positive = 64.0
    """Of one device."""
    tflops: Positive = 100.0
    """Useful 10^12 FLOP/s of one device, as reached and not as advertised."""
    fsdp: Count = 8
    """Devices that share one copy of the weights, and cut the batch."""
    tensor: Count = 1
    """Devices that share each matrix product; the rest of the devices cut the batch."""
    microbatches: Count = 8
    """Parts that a device's share of the batch is cut into."""
    microbatch_tokens: OptionalCount = None
    """Tokens of a part instead, as `--optimizer.microbatch-tokens` of the run."""
    remat: Literal["products", "full"] = "products"
    moments: Literal["full", "bfloat16", "factored"] = "full"
    """As `--optimizer.moments` of the run."""
    reference: bool = False
    """Whether there is a KL term, whose reference policy is kept and scored."""
    attention: Literal["auto", "plain", "blocked"] = "auto"
    """As `--kernels.attention` of the run: whether attention scores are held whole (plain)."""

    def __post_init__(self) -> None:
        check(self, "train.")
        remedy = "leave it or train.microbatch-tokens out"
        table = (("microbatches", lambda train: train.microbatch_tokens is None, remedy),)
        check_conditions(self, table, clause=INERT, prefix="train.")
        ways = self.fsdp * self.tensor
        require(
            self.devices % ways == 0,
            f"train.fsdp x train.tensor = {ways} does not divide train.devices = {self.devices}: "
            "choose sizes whose product does",
        )

    @property
    def parts(self) -> int:
        """Number of parts with equally many prompts; 1 where a part's tokens are set."""
        return self.microbatches if self.microbatch_tokens is None else 1

    @property
    def data(self) -> int:
        """Number of copies of the weights, each of which trains on its share of the batch."""
        return self.devices // (self.fsdp * self.tensor)


@dataclass(frozen=True)
class Serve:
    """The accelerators that draw completions."""

    devices: Count = 8
    memory_gib: Positive = 64.0
    """Of one NPU."""
    tensor: Count = 1
    """NPUs of one server."""
    tokens_per_second: Positive = 2500.0
    """Completion tokens of one server when its calls are all under way."""
    calls: Count = 8
    """Calls that a server works on at a time."""
    groups_per_call: Count = 1
    utilisation: PositiveShare = 0.9
    """Share of an NPU's memory that the server may use."""

    def __post_init__(self) -> None:
        check(self, "serve.")
        require(
            self.devices % self.tensor == 0,
            f"serve.tensor = {self.tensor} does not divide serve.devices = {self.devices}: "
            "give whole servers",
        )

    @property
    def servers(self) -> int:
        """Number of copies of the weights that draw completions."""
        return self.devices // self.tensor


@dataclass(frozen=True)
class Link:
    """The way of weights from the trainer to the servers."""

    gigabytes_per_second: Positive = 2.0
    """10^9 bytes a second, as reached by the trainer's network."""
    seconds_per_gigabyte: NonNegative = 0.0
    """Besides, by whatever transport: to write, digest, check and load 10^9 bytes. It is 3.35 where
    the trainer's disk writes 1 GB/s (docs/vllm.md)."""
    latency: NonNegative = 2.0
    """Seconds of a push besides the transfer: pausing, loading, clearing the prefix cache."""
    sent: Literal["once", "each"] = "each"
    """Whether the weights cross the link once for all servers or once for each."""


@dataclass(frozen=True)
class PlanSchedule:
    """The dials of a run that a step's time depends on, as its `--schedule` has them."""

    sync_offset: Index = 1
    """Batches asked for beyond the one being trained; 0: nothing overlaps."""
    sync_interval: Count = 1
    """Steps between two pushes of weights."""
    updates_per_batch: Count = 1
    """Updates on each batch."""

    def __post_init__(self) -> None:
        check(self, "schedule.")


@dataclass(frozen=True)
class Plan:
    """A capacity plan: what fits, and how long a step takes."""

    preset: str = "none"
    """A preset of a real model (`ogrpo.setup.presets`), whose model and batch are planned on the
    device that it names; other options change that."""
    model: PlanModel = field(default_factory=PlanModel)
    batch: BatchPlan = field(default_factory=BatchPlan)
    train: Train = field(default_factory=Train)
    serve: Serve = field(default_factory=Serve)
    link: Link = field(default_factory=Link)
    schedule: PlanSchedule = field(default_factory=PlanSchedule)
    measure: bool = False
    """Measure train.tflops and serve.tokens-per-second here, with the embedded sampler and the
    update of this model and batch at random weights, instead of taking them as given."""
    seed: Seed = 0
    run_dir: Path | None = None
    """Where plan.json is written; default: runs/plan-<date>-<time>."""

    def __post_init__(self) -> None:
        check(self)
        prompts, ways = self.batch.prompts, self.train.data * self.train.fsdp
        cut = ways * self.train.parts
        require(
            prompts % cut == 0,
            f"batch.prompts = {prompts} cannot be cut among {ways} devices in "
            f"train.microbatches = {self.train.parts}: give a multiple of {cut}",
        )
        require(
            prompts % self.serve.groups_per_call == 0,
            f"serve.groups-per-call = {self.serve.groups_per_call} does not divide "
            f"batch.prompts = {prompts}",
        )
        positions, longest = self.model.decoder().max_positions, self.batch.keys
        require(
            longest <= positions,
            f"batch.prompt-length + batch.max-tokens = {longest} passes the model's "
            f"{positions} positions: shorten one of them",
        )
        tokens = self.train.microbatch_tokens
        require(
            tokens is None or tokens >= longest,
            f"train.microbatch-tokens is {tokens}, and no completion is split: give at least"
            f" batch.prompt-length + batch.max-tokens = {longest}",
        )
        require(
            tokens is None or not self.measure,
            "measure updates padded batches: leave train.microbatch-tokens out",
        )
        require(
            self.batch.group_size > 1 or not self.measure,
            "measure compares the completions of a group: give batch.group-size 2 or more",
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
        size = f"{self.gigabytes} GB"
        return f"a machine of {size}" if self.embedded else f"one {size} GPU"


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
    memory = named.gigabytes * 1e9 / GIB
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
