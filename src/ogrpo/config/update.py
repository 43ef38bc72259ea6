"""Options of an update: what is trained and how, and the devices that do it.

`Knobs` and the words of `Override` are written out for type checkers, and as the help of a knob is
for all methods that share its name; tests hold them to the catalogue.
"""

from dataclasses import dataclass
from typing import Literal

from ogrpo.system.values import (
    Count,
    Decay,
    Index,
    NonNegative,
    OptionalCount,
    OptionalIndex,
    OptionalPositive,
    Positive,
    PositiveShare,
    Share,
)


@dataclass(frozen=True, kw_only=True)
class Lora:
    """Low-rank adapters, trained in place of the weights that they stand beside (docs/lora.md)."""

    rank: OptionalCount = None
    """Rank of each adapter. None trains every weight."""
    alpha: Positive = 32.0
    """An adapter's change counts alpha / rank times."""
    targets: Literal["all", "attention", "mlp"] = "all"
    """The projections of each layer that have an adapter."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """KL(pi||mu) <= delta around the samplers' policies, on top of the algorithm."""

    kind: Literal["none", "penalty", "mask", "clip"] = "none"
    """A penalty with a dual variable, a mask of sequences beyond delta, or a clip whose width
    follows the measured divergence."""
    delta: Positive = 0.01
    """Bound on KL(pi||mu), nats a token."""
    rate: Positive = 0.1
    """Step of the dual variable, or log-step of the clip's width, an update."""


@dataclass(frozen=True, kw_only=True)
class Override:
    """Parts of the algorithm that are exchanged; the run's title says which."""

    advantage: (
        Literal["raw", "centered", "leave_one_out", "group_standardized"]
        | Literal["group_standardized_bessel", "batch_standardized", "lowered_baseline"]
        | Literal["soft_value", "exponentially_weighted", "drop_negatives", "positive_part"]
        | Literal["successes", "leave_prompt_out", "running_baseline", "step_returns"]
        | Literal["process_standardized", "batch_centered", "mean_normalized", "pass_at_k"]
        | Literal["max_at_k", "length_weighted", "overlong_standardized", "whitened"]
        | Literal["group_whitened"]
        | None
    ) = None
    """What a completion earned beyond its siblings, beyond the batch's other prompts
    (leave_prompt_out) or beyond the mean reward so far (running_baseline); or what each token's
    steps earned from there on (step_returns and process_standardized, for tasks that judge steps).
    Of the rest, k is knobs.k, whitened counts a completion by its tokens, and overlong_standardized
    lowers the reward of long completions first: with dapo, all of arXiv:2503.14476."""
    baseline_rate: PositiveShare = 0.1
    """With advantage running_baseline: the share of a step's mean reward in the running mean."""
    reduction: Literal["token", "sequence", "sequence_sum", "fixed_length", "group"] | None = None
    """How losses of tokens become one number (docs/algebra.md, ogrpo.core.aggregate)."""
    center: Literal["unit", "exact"] | None = None
    """Centre of off_policy_grpo's clipping interval: 1, or pi_k/mu. With one update on a batch pi_k
    is where the gradient is taken, so that the exact centre never clips."""
    weight: (
        Literal["unit", "plain", "truncated", "masked", "sequence_truncated", "sequence_masked"]
        | Literal["group_normalized", "batch_normalized", "trace"]
        | None
    ) = None
    """How samples of an older policy are weighed: the algorithm's ratio becomes pi/pi_k, and
    pi_k/mu enters as this weight, without gradient (unit: not at all)."""
    gate: tuple[
        Literal["token", "sequence", "geometric", "negatives", "k3", "top_entropy"], ...
    ] = ()
    """Masks that multiply. They leave out tokens whose ratio is outside a band (token); completions
    whose product (sequence) or geometric mean of ratios is, or whose mean of k3 is above a limit;
    those of negative advantage that the policy has left (negatives, arXiv:2512.02556); or all but
    the batch's tokens of highest entropy (top_entropy, arXiv:2506.01939). The ratio is pi/mu, or
    pi_k/mu where the method reads pi_k; negatives always take pi/mu."""
    bonus: Literal["entropy"] | None = None
    """Lowers each token's loss by knobs.entropy-coef times the entropy of the policy there."""
    whiten: Literal["tokens"] | None = None
    """Whitens advantages over all tokens of the batch, whatever they are: with ppo, as trainers run
    generalised advantages. Values learn as without."""
    centering: Index = 0
    """Score centring (arXiv:2609.20807) over so many of the sampler's likeliest tokens, which are
    recorded with their log-probs (6 bytes each a token, 8 in a vocabulary above 65,535), or over
    all that could be drawn with rollout.keep-sampling-mask; 0 is none."""
    kl: (
        Literal["k1", "k2", "k3", "importance_k1", "importance_k2", "importance_k3"]
        | Literal["weighted_k1", "weighted_k2", "weighted_k3", "straight_through_k3"]
        | None
    ) = None
    """Estimator of the KL term that knobs.beta weighs: as it is, times the ratio pi/mu with its
    gradient (importance_k3 is TRL's default), or times that ratio without."""
    mask_zero_variance: bool = False
    """Leave out groups whose rewards are all equal (arXiv:2505.22257, eq. 8): their KL too."""
    count_masked: bool = True
    """Whether groups left out still count in the average."""


@dataclass(frozen=True, kw_only=True)
class Knobs:
    """Numbers of the algorithm; None is the published one (docs/algebra.md has them)."""

    beta: float | None = None
    """Weight of the KL term to the reference policy."""
    eps_low: float | None = None
    """How far below its centre a ratio still counts."""
    eps_high: float | None = None
    """How far above its centre a ratio still counts."""
    outer_low: float | None = None
    """rec_ring: how far below 1 a ratio counts again."""
    outer_high: float | None = None
    """rec_ring: how far above 1 a ratio counts again."""
    low: float | None = None
    """Smallest ratio or largest divergence below (cispo, sppo; dppo)."""
    high: float | None = None
    """Largest ratio or largest divergence above (cispo, sppo; dppo)."""
    cap: float | None = None
    """Largest detached ratio (decoupled, dppo)."""
    dual: float | None = None
    """dual_clip: multiple of a negative advantage below which the objective does not fall."""
    delta: float | None = None
    """two_sided: largest ratio for negative advantages."""
    temperature_pos: float | None = None
    """sapo: of the sigmoid for positive advantages."""
    temperature_neg: float | None = None
    """sapo: of the sigmoid for negative advantages."""
    threshold: float | None = None
    """m2po: largest mean of squared log-ratios. raft: reward above which one imitates."""
    power_pos: float | None = None
    """vespo: k for positive advantages."""
    power_neg: float | None = None
    """vespo: k for negative ones."""
    rate_pos: float | None = None
    """vespo: lambda for positive advantages."""
    rate_neg: float | None = None
    """vespo: lambda for negative ones."""
    ratio_cap: float | None = None
    """vtrace: rho-bar."""
    trace_cap: float | None = None
    """vtrace: c-bar."""
    decay: float | None = None
    """lambda (vtrace, ppo)."""
    discount: float | None = None
    """ppo: gamma."""
    value_coef: float | None = None
    """ppo: weight of the values' squared error."""
    tau: float | None = None
    """Temperature (red_weight, opmd, oapl), or how far dpo may leave its reference."""
    coef: float | None = None
    """Weight of the squared log-ratio (opmd_kimi, prime_rl, distill), or of its size (kl_cov)."""
    step_weight: float | None = None
    """step_returns: weight of a step's reward beside that of the completion."""
    slope: float | None = None
    """oapl: beta_2."""
    shift: float | None = None
    """asymre: how far the baseline is lowered."""
    k: float | None = None
    """maxpo, pass_at_k: completions in a set."""
    overlong: float | None = None
    """With override.advantage overlong_standardized: the last share of the longest completion, in
    which its reward falls by up to 1."""
    share: float | None = None
    """Share of the tokens that is pulled (kl_cov), or left out (clip_cov)."""
    cov_low: float | None = None
    """clip_cov: covariance of advantage and log-prob from which a token may be left out."""
    cov_high: float | None = None
    """clip_cov: covariance of advantage and log-prob up to which a token may be left out."""
    entropy_coef: float | None = None
    """With override.bonus entropy: its weight."""
    k3_limit: float | None = None
    """With override.gate k3: largest mean of rho - 1 - log rho."""
    top_share: float | None = None
    """With override.gate top_entropy: share of the tokens that is kept."""
    token_low: float | None = None
    """With override.gate token: smallest ratio."""
    token_high: float | None = None
    """With override.gate token: largest ratio."""
    sequence_low: float | None = None
    """With override.gate sequence: smallest product of a completion's ratios."""
    sequence_high: float | None = None
    """With override.gate sequence: largest product of a completion's ratios."""
    geometric_low: float | None = None
    """With override.gate geometric: smallest geometric mean of a completion's ratios."""
    geometric_high: float | None = None
    """With override.gate geometric: largest geometric mean of a completion's ratios."""
    negatives_delta: float | None = None
    """With override.gate negatives: largest mean of log mu - log pi, nats a token."""
    weight_cap: float | None = None
    """With override.weight: largest weight, or largest ratio that a mask keeps."""
    weight_floor: float | None = None
    """With override.weight: smallest weight, or smallest ratio that a mask keeps."""
    weight_decay: float | None = None
    """With override.weight trace: lambda."""


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """AdamW with a linear warm-up and a linear decay."""

    learning_rate: OptionalPositive = None
    """Peak rate of AdamW. Default: 1e-6 for a given model, 1e-3 for one that is made here."""
    warmup: Index = 10
    """Updates, of all that the run may make, until the full learning rate is reached."""
    decay: Share = 0.9
    """Share of the learning rate that is gone after the last update."""
    b1: Decay = 0.9
    """Adam's beta_1."""
    b2: Decay = 0.98
    """Adam's beta_2."""
    eps: Positive = 1e-8
    """Adam's epsilon."""
    weight_decay: NonNegative = 0.0
    """Of AdamW: this times the learning rate of each weight goes in an update."""
    moments: Literal["full", "bfloat16", "factored"] = "full"
    """What is kept of past gradients: both moments in the parameters' dtype; the first in bfloat16;
    or that and the second as rows and columns of each matrix (docs/performance.md has the cost)."""
    max_grad_norm: Positive = 1.0
    """A gradient of a larger global norm is scaled to it."""
    microbatches: Count = 1
    """Parts that a batch's prompts are cut into, to save memory; the gradient stays the same. A
    packed batch is cut into as few as need no more tokens at a time; log-probs that an update reads
    beside its own are computed of a padded batch whole."""
    batching: Literal["padded", "packed"] = "padded"
    """Compute every place of a padded batch, or its tokens alone; the gradient stays the same. A
    packed batch has one of several shapes, each compiled once (docs/ragged.md). On a
    mesh each device packs its own groups."""
    microbatch_tokens: OptionalCount = None
    """Cut packed batches into parts of at most so many tokens a device, padding included, and not
    into equally many prompts; the gradient stays the same. A group of more tokens is split between
    its completions, each part repeating its prompt. `ogrpo plan` proposes a number."""
    skip_zero_variance: bool = False
    """Do not compute groups that carry no loss, which needs microbatches of such groups alone, or
    packed batches; the gradient stays the same. Metrics, and so the signals of --reuse.adaptive,
    are of the groups that were computed."""
    max_skipped: Index = 3
    """Updates in a row that may be skipped because the loss, the gradient or the new weights were
    NaN or infinite; one more ends the run, and leaves what `ogrpo diagnose` reads. 0 ends it at the
    first."""


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """The devices that the train state and each batch are cut over: data * fsdp * tensor of them.

    On a CPU, XLA_FLAGS=--xla_force_host_platform_device_count=N makes N devices.
    """

    data: Count = 1
    """Parts of a batch; every part has all the parameters."""
    fsdp: Count = 1
    """Parts of a batch, whose devices share the parameters and the optimizer's moments too."""
    tensor: Count = 1
    """Parts of the heads, the MLP and the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """The processes of one run, each started with the same other options (docs/processes.md)."""

    auto: bool = False
    """Find the others as JAX finds them: under Slurm, Open MPI and Kubernetes."""
    coordinator: str | None = None
    """HOST:PORT of process 0, where the others look for it."""
    count: OptionalCount = None
    """How many there are."""
    id: OptionalIndex = None
    """Which of them this is, from 0."""

    @property
    def several(self) -> bool:
        """Whether this is to be one process of several."""
        return self.auto or self.coordinator is not None


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """Versions of operations; every one gives the same numbers."""

    attention: Literal["auto", "plain", "blocked"] = "auto"
    """Attention in the update: with all scores at once, or a block of keys at a time in memory that
    is linear in the tokens. Auto takes blocks where keys are many."""
    log_probs: Literal["auto", "reference", "chunked"] = "auto"
    """Log-probs in the update: with all logits at once, or a slice of the vocabulary at a time.
    Auto takes slices where the vocabulary is more than one."""
    kept_mib: Index = 512
    """MiB a device for logits that the backward pass need not compute again (chunked alone)."""
