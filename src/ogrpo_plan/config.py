"""Options of a plan: those of the run that is planned, and the machines and speeds."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from ogrpo.config.method import algorithm, check, knobs
from ogrpo.config.train import TrainConfig
from ogrpo.core.algorithms import REFERENCE
from ogrpo.policy.config import SHAPES, DecoderConfig
from ogrpo.policy.flops import Adapter
from ogrpo.policy.lora import TARGETS
from ogrpo.setup.presets import make_preset
from ogrpo.system.files import read_object
from ogrpo.system.values import (
    Conditions,
    Count,
    NonNegative,
    OptionalPositive,
    Positive,
    PositiveShare,
    check_conditions,
    require,
)

GIB = 2**30
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
USUAL_MEAN = 400.0


@dataclass(frozen=True, kw_only=True)
class Train:
    """The accelerators that train, as many as --mesh has."""

    memory_gib: Positive = 64.0
    """Of one device."""
    tflops: Positive = 100.0
    """Useful 10^12 FLOP/s of one device, as reached and not as advertised."""


@dataclass(frozen=True, kw_only=True)
class Serve:
    """The accelerators that draw completions."""

    devices: Count = 8
    memory_gib: Positive = 64.0
    """Of one NPU."""
    tensor: Count = 1
    """NPUs of one server."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What is sent to the servers, and their keys and values."""
    tokens_per_second: Positive = 2500.0
    """Completion tokens of one server when its calls are all under way."""
    calls: Count = 8
    """Calls that a server works on at a time."""
    groups_per_call: Count = 1
    utilisation: PositiveShare = 0.9
    """Share of an NPU's memory that the server may use."""

    @property
    def servers(self) -> int:
        """Number of copies of the weights that draw completions."""
        return self.devices // self.tensor


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Lengths that completions are expected to have: log-normal, cut at --rollout.max-tokens."""

    mean: OptionalPositive = None
    """Tokens of a completion, before the longest are cut. Default: half of the longest, at most
    400."""
    spread: NonNegative = 0.6
    """Standard deviation of the length over its mean."""


VALID_IF: Conditions = (
    (
        "serve.tensor",
        lambda p: p.serve.devices % p.serve.tensor == 0,
        "which does not divide serve.devices = {c.serve.devices}: give whole servers",
    ),
    (
        "serve.groups-per-call",
        lambda p: p.schedule.prompts % p.serve.groups_per_call == 0,
        "which does not divide schedule.prompts = {c.schedule.prompts}: give a divisor",
    ),
    (
        "measure",
        lambda p: p.optimizer.microbatch_tokens is None,
        "but it updates padded batches: leave optimizer.microbatch-tokens out",
    ),
    (
        "measure",
        lambda p: p.rollout.group_size > 1,
        "but it compares the completions of a group: give rollout.group-size 2 or more",
    ),
)
"""When options of a plan fit the others."""


@dataclass(frozen=True, kw_only=True)
class Plan(TrainConfig):
    """A run's options, and the machines that it is planned on.

    Its `model.path` may also be a config.json, or a known shape whose weights are not there.
    """

    train: Train = field(default_factory=Train)
    serve: Serve = field(default_factory=Serve)
    link: Link = field(default_factory=Link)
    lengths: Lengths = field(default_factory=Lengths)
    measure: bool = False
    """Measure train.tflops and serve.tokens-per-second here, with the embedded sampler and the
    update of this model and batch at random weights, instead of taking them as given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_conditions(self, VALID_IF)

    def decoder(self) -> DecoderConfig:
        """Returns the decoder's shape, read from the model's config.json where there is one.

        Raises:
          ValueError: there is none, and the model's name is no known shape's.
        """
        path = Path(self.model.path or self.model.random)
        file = path / "config.json" if path.is_dir() else path
        if file.suffix == ".json" and file.is_file():
            return DecoderConfig.from_hf(read_object(file), f"model.path {file}")
        require(
            str(path) in SHAPES,
            f"model.path {self.model.path} has no config.json: give one, or a folder with one, or"
            f" for a model that is not there a known shape: {', '.join(SHAPES)}",
        )
        return SHAPES[str(path)]

    @property
    def adapter(self) -> Adapter | None:
        """Returns the adapters' sizes, or None where all weights are trained."""
        lora = self.lora
        return None if lora.rank is None else Adapter(lora.rank, TARGETS[lora.targets])

    @property
    def compute(self) -> str:
        """Returns the dtype that the trainer computes in."""
        return self.model.compute_dtype or self.model.dtype

    @property
    def reference(self) -> bool:
        """Whether a reference policy is kept and scored."""
        return REFERENCE in algorithm(self).inputs(knobs(self))

    @property
    def keys(self) -> int:
        """The keys of a query in the longest completion, its prompt's included."""
        return self.longest_prompt + self.longest_completion

    @property
    def mean_tokens(self) -> float:
        """Mean length of a completion, before the longest are cut."""
        return self.lengths.mean or min(USUAL_MEAN, self.longest_completion / 2)

    @property
    def shape(self) -> dict[str, int]:
        """Returns n, g, p and t of the batch of an update, as `ogrpo.policy.flops` takes them."""
        lengths = {"p": self.longest_prompt, "t": self.longest_completion}
        return {"n": self.schedule.draw_size, "g": self.rollout.group_size, **lengths}


def check_plan(plan: Plan) -> None:
    """Holds a plan to its method, its lengths and its model.

    Raises:
      ValueError: they are not known, or do not fit each other.
    """
    check(plan)
    longest, positions = plan.longest_completion, plan.decoder().max_positions
    require(
        1 <= plan.mean_tokens <= longest,
        f"lengths.mean is {plan.mean_tokens}: give between 1 and rollout.max-tokens = {longest}",
    )
    require(
        plan.keys <= positions,
        f"data.prompt-length + rollout.max-tokens = {plan.keys} passes the model's {positions}"
        " positions: shorten one of them",
    )


class _Named(NamedTuple):
    """The figures that a preset's docstring names."""

    shape: str
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


def plan_of(name: str, *, on_files: bool = False) -> Plan:
    """Returns the preset, with the model and the device of one that is for a real model.

    An embedded sampler draws a batch in one call, which lasts as long as its longest
    completion, and its weights are copied in memory.

    Raises:
      ValueError: there is no such preset.
    """
    run = make_preset(name, on_files=on_files)
    if name not in DEVICES:
        return Plan(**vars(run))
    named, values = DEVICES[name], dict(vars(run))
    length, memory = run.data.prompt_length or named.prompt_length, named.gigabytes * 1e9 / GIB
    values |= {
        "data": replace(run.data, prompt_length=length),
        "model": replace(run.model, path=Path(named.shape)),
        "train": Train(memory_gib=memory),
    }
    if named.embedded:
        size = run.schedule.prompts
        serve = Serve(
            devices=1, memory_gib=memory, dtype=run.model.dtype, calls=1, groups_per_call=size
        )
        lengths = Lengths(mean=run.longest_completion, spread=0.0)
        values |= {"serve": serve, "link": Link(latency=0.0), "lengths": lengths}
    return Plan(**values)
