"""What an update is asked for: the part of `config` that says what is trained, and how.

Values are checked where they are declared, as there.
"""

from dataclasses import dataclass
from typing import Literal

from ogrpo.kernels.log_probs import KEPT_BYTES


def require(condition: bool, message: str) -> None:
    """Refuses a value with a message that names it and the remedy."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters, trained in place of the weights that they stand beside (docs/lora.md)."""

    rank: int | None = None
    """Rank of each adapter. None trains every weight."""
    alpha: float = 32.0
    """An adapter's change counts alpha / rank times."""
    targets: Literal["all", "attention", "mlp"] = "all"
    """The projections of each layer that have an adapter."""

    def __post_init__(self) -> None:
        rank = self.rank
        require(rank is None or rank >= 1, f"lora.rank is {rank}: give at least 1, or None")
        require(self.alpha > 0, f"lora.alpha is {self.alpha}: give a number > 0")
        chosen = (self.alpha, self.targets)
        require(
            rank is not None or chosen == (Lora.alpha, Lora.targets),
            f"lora.alpha and lora.targets are {chosen}, but there are no adapters: give lora.rank",
        )


@dataclass(frozen=True)
class TrustRegion:
    """KL(pi||mu) <= delta around the samplers' policies, on top of the objective."""

    kind: Literal["none", "penalty", "mask", "clip"] = "none"
    """A penalty with a dual variable, a mask of sequences beyond delta, or a clip whose width
    follows the measured divergence."""
    delta: float = 0.01
    """Nats a token."""
    rate: float = 0.1
    """Step of the dual variable, or log-step of the clip's width, an update."""

    def __post_init__(self) -> None:
        require(self.delta > 0, f"trust-region.delta is {self.delta}: give nats a token > 0")
        require(self.rate > 0, f"trust-region.rate is {self.rate}: give a step > 0")


@dataclass(frozen=True)
class Objective:
    """The loss of one token, and how tokens add up."""

    name: str = "off_policy_grpo"
    """A key of `ogrpo.core.objectives.OBJECTIVES`."""
    eps_low: float | None = None
    """How far below its centre a ratio still counts; default: the objective's own, .2 mostly."""
    eps_high: float | None = None
    """How far above; default: the objective's own."""
    beta: float = 0.0
    """Weight of the KL term to the reference policy."""
    center: Literal["exact", "unit"] = "exact"
    """Centre of the clipping interval: pi_k / alpha, or 1."""
    weight: Literal[
        "none",
        "plain",
        "truncated",
        "masked",
        "sequence_truncated",
        "sequence_masked",
        "group_normalized",
    ] = "none"
    """How samples of an older policy are weighed. None: by the objective's own ratio pi/alpha.
    Otherwise its ratio is pi/pi_k, and pi_k/alpha enters as this weight, without gradient."""
    weight_cap: float = 2.0
    """Largest weight, and the inverse of the smallest that a mask keeps."""
    advantage: Literal["group_standardized", "centered", "leave_one_out", "positive_part"] = (
        "group_standardized"
    )
    aggregation: Literal["token", "sequence", "sequence_sum", "fixed_length", "group"] = "sequence"
    mask_zero_variance: bool = True
    """Leave out groups whose rewards are all equal (eq. 8 of the paper): their KL term too."""
    count_masked: bool = True
    """Whether groups left out still count in the average."""

    def __post_init__(self) -> None:
        require(
            self.weight_cap > 1,
            f"objective.weight-cap is {self.weight_cap}: give more than 1, the weight of a fresh "
            "sample",
        )
        for name in ("eps_low", "eps_high", "beta"):
            value = getattr(self, name)
            require(
                value is None or value >= 0,
                f"objective.{name.replace('_', '-')} is {value}: give at least 0",
            )


@dataclass(frozen=True)
class Optimizer:
    """AdamW with a linear warm-up and a linear decay."""

    learning_rate: float = 5e-4
    warmup: int = 10
    """Updates until the full learning rate is reached."""
    decay: float = 0.9
    """Share of the learning rate that is gone by the last update."""
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    microbatches: int = 1
    """Parts that a batch's prompts are cut into, to save memory; the gradient stays the same. A
    packed batch is cut into as few as need no more tokens at a time."""
    batching: Literal["padded", "packed"] = "padded"
    """Compute every place of a padded batch, or its tokens alone; the gradient stays the same. A
    packed batch has one of several shapes, each compiled once (docs/ragged.md). Not on a mesh."""
    skip_zero_variance: bool = False
    """Do not compute groups that carry no loss, which needs microbatches of such groups alone, or
    packed batches; the gradient stays the same. Metrics, and so the signals of --reuse.adaptive,
    are of the groups that were computed."""

    def __post_init__(self) -> None:
        require(
            self.learning_rate > 0, f"optimizer.learning-rate is {self.learning_rate}: give > 0"
        )
        require(0 <= self.decay <= 1, f"optimizer.decay is {self.decay}: give a share in [0, 1]")
        require(self.microbatches > 0, f"optimizer.microbatches is {self.microbatches}: give >= 1")
        choices = ("padded", "packed")
        require(
            self.batching in choices,
            f"optimizer.batching is {self.batching}: choose one of {choices}",
        )


@dataclass(frozen=True)
class Mesh:
    """The devices that the train state and each batch are cut over: data * fsdp * tensor of them.

    On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N devices.
    """

    data: int = 1
    """Parts of a batch; every part has all the parameters."""
    fsdp: int = 1
    """Parts of a batch, whose devices share the parameters and the optimizer's moments too."""
    tensor: int = 1
    """Parts of the heads, the MLP and the vocabulary."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            require(value >= 1, f"mesh.{name} is {value}: give at least 1")


@dataclass(frozen=True)
class Kernels:
    """Which version of an operation computes it; every one gives the same numbers."""

    log_probs: Literal["auto", "reference", "chunked", "pallas"] = "auto"
    """Log-probs in the update: with all logits at once, or a slice of the vocabulary at a time, in
    XLA or in GPU kernels. Auto takes slices where the vocabulary is more than one."""
    kept_mib: int = KEPT_BYTES >> 20
    """MiB a device for logits that the backward pass need not compute again (chunked alone)."""

    def __post_init__(self) -> None:
        require(self.kept_mib >= 0, f"kernels.kept-mib is {self.kept_mib}: give 0 or more")
