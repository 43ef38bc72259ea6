"""The method that a config names: the algorithm, its parts and knobs, its trust region, and whether
every option that was given has something to act on."""

import difflib
from collections.abc import Mapping
from functools import cache, partial

import jax
import jax.numpy as jnp

from ogrpo.config.train import TrainConfig
from ogrpo.config.update import Knobs, Override, dashed, only_with, require
from ogrpo.core.algorithms import (
    ALGORITHMS,
    GROUPS,
    PROXIMAL,
    REFERENCE,
    VALUES,
    Algorithm,
    LooksAt,
    with_parts,
)
from ogrpo.core.objectives import TokenBatch
from ogrpo.core.returns import Along
from ogrpo.core.trust_region import adaptive_clip, dual_penalty, negatives_mask, sequence_mask
from ogrpo.learner.update import RegionFn

CLIP_RANGE = (0.01, 1.0)
BASELINE = "baseline"
"""The knob that a run sets itself before each step: the mean reward of those before."""


def algorithm(config: TrainConfig) -> Algorithm:
    """The algorithm by its name, with the parts that the config exchanges."""
    return _composed(config.algorithm, config.override)


@cache
def _composed(chosen: str | Algorithm, wanted: Override) -> Algorithm:
    return with_parts(
        chosen if isinstance(chosen, Algorithm) else _named(chosen),
        advantage=wanted.advantage,
        reduction=wanted.reduction,
        center=wanted.center,
        weight=wanted.weight,
        kl=wanted.kl,
        gate=wanted.gate,
    )


def _named(name: str) -> Algorithm:
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no algorithm {name!r}.{hint} Algorithms: {', '.join(ALGORITHMS)}"
        )
    return ALGORITHMS[name]


def knobs(config: TrainConfig) -> dict[str, float]:
    """The value of each knob: as given, or as published; `length` is the run's."""
    own = (config.algorithm, config.override, config.knobs, config.rollout.max_tokens)
    return dict(_settled(*own))


@cache  # a method's parts judge their knobs by being traced, which takes a while
def _settled(
    name: str | Algorithm, wanted: Override, given: Knobs, longest: int | None
) -> Mapping[str, float]:
    chosen = _composed(name, wanted)
    runs = {"length": float(longest or 1), BASELINE: 0.0}
    own = {name: value for name, value in runs.items() if name in chosen.knobs}
    return chosen.settings({**vars(given), **own})


def title(config: TrainConfig) -> str:
    """The algorithm's name and all that is not its own."""
    wanted = config.override
    masked = ["zero-variance groups left out"] if wanted.mask_zero_variance else []
    masked += [] if wanted.count_masked else ["and not counted"]
    region = config.trust_region.kind
    around = [] if region == "none" else [f"trust region {region}"]
    return ", ".join([algorithm(config).title(knobs(config)), *masked, *around])


def listed() -> str:
    """Every algorithm, a line each, in groups."""
    parts = []
    for group, methods in GROUPS.items():
        parts += [f"- {group}:", *(f"{a.name}: {a.summary}" for a in methods)]
    return "\n\n".join(parts)


def region_fn(config: TrainConfig) -> RegionFn | None:
    """The trust region around the loss; None where there is none."""
    wanted = config.trust_region
    if wanted.kind == "none":
        return None
    if wanted.kind == "clip":
        eps = knobs(config)["eps_low"]
        width = {"initial": eps, "smallest": CLIP_RANGE[0], "largest": CLIP_RANGE[1]}
        return partial(adaptive_clip, target=wanted.delta, rate=wanted.rate, **width)
    if wanted.kind == "penalty":
        return partial(dual_penalty, delta=wanted.delta, rate=wanted.rate, initial=0.0)
    masks = {"mask": sequence_mask, "mask-negatives": negatives_mask}
    return partial(masks[wanted.kind], delta=wanted.delta)


def silent(config: TrainConfig) -> bool:
    """Whether groups of equal rewards carry no loss even if they are not left out."""
    chosen, values = algorithm(config), knobs(config)
    if (
        not chosen.silent
        or chosen.by_token
        or values["beta"]
        or config.trust_region.kind == "penalty"
    ):
        return False
    equal = jnp.asarray([[0.0, 0.0], [1.0, 1.0]])
    lengths = Along(jnp.ones((*equal.shape, 1), bool))
    return not jnp.any(chosen.credit(equal, values, jax.random.key(0), lengths))


AT_RATIO_ONE = {
    "": ("eps_low", "eps_high", "outer_low", "outer_high"),
    "vespo": ("power_pos", "power_neg", "rate_pos", "rate_neg"),
    "cispo": ("low",),
    "m2po": ("threshold",),
    "m2po_released": ("threshold",),
    "dppo_tv": ("low", "high", "cap"),
    "dppo_kl": ("low", "high", "cap"),
    "prime_rl": ("low", "high", "coef"),
}
"""Knobs without effect on the gradient where a method's ratio is 1: of all methods, and by name."""


def acts(config: TrainConfig, knob: str) -> bool:
    """Whether the gradient of the loss depends on this knob in the run's schedule.

    With one update on a batch pi_k is the policy that is differentiated, so that a ratio pi/pi_k is
    1 and an exact centre is the ratio itself: whatever acts on their distance does nothing.
    """
    method = algorithm(config)
    if PROXIMAL not in method.reads or config.schedule.updates_per_batch > 1:
        return True
    return knob not in (*AT_RATIO_ONE[""], *AT_RATIO_ONE.get(method.name, ()))


def _check_offload(config: TrainConfig, reads: frozenset[str]) -> None:
    """Refuses to keep a reference policy elsewhere where there is none of its own."""
    wanted, other = config.optimizer, "leave the option out, or let it be moments"
    if not wanted.offloads_reference:
        return
    given = f"optimizer.offload is {wanted.offload}"
    require(
        REFERENCE in reads,
        f"{given}, but nothing reads the reference policy: give --knobs.beta > 0, or {other}",
    )
    require(
        config.lora.rank is None,
        f"{given}, but with lora.rank the reference policy is adapters beside the frozen weights"
        f" that the trained policy has too: {other}",
    )


def check(config: TrainConfig) -> None:
    """Refuses what is unknown and what would be without effect, naming what to turn instead."""
    chosen, values = algorithm(config), knobs(config)
    for name, value in vars(config.knobs).items():
        require(
            value is None or acts(config, name),
            f"knobs.{dashed(name)} is {value}, which changes nothing here: with"
            f" schedule.updates-per-batch = 1 the ratio that {title(config)} clips is 1. Give"
            " --schedule.updates-per-batch more than 1, or --override.center unit without a weight",
        )
    reads = chosen.inputs(values)
    stages = config.schedule.stages
    require(
        stages == 1 or REFERENCE in reads or config.schedule.reset_optimizer,
        f"schedule.stages is {stages}, but nothing reads the reference policy that a stage swaps:"
        " give --knobs.beta more than 0, or --schedule.reset-optimizer",
    )
    require(
        config.override.kl is None or values["beta"] > 0,
        f"override.kl is {config.override.kl}, but the KL term has the weight 0: give --knobs.beta",
    )
    _check_offload(config, reads)
    wanted = config.override
    remedy = "give --override.advantage running_baseline"
    only_with(wanted, "override", "baseline_rate", BASELINE in values, remedy)
    if VALUES in chosen.reads:
        _check_values(config, chosen)
    _check_widths(config, chosen, values)
    _check_groups(config, chosen)
    _check_company(config, chosen, values)
    if config.rollout.group_size == 1:
        _check_alone(config)


def _check_widths(config: TrainConfig, chosen: Algorithm, values: dict[str, float]) -> None:
    by_region = config.trust_region.kind == "clip"
    by_signals = config.reuse.adaptive and config.reuse.limits.clip_step > 0
    require(
        not (by_region and by_signals),
        "trust-region.kind clip and reuse.limits.clip-step both set the clip's width: leave one"
        " out",
    )
    if not (by_region or by_signals):
        return
    option = "trust-region.kind clip" if by_region else "reuse.limits.clip-step"
    require(
        "eps_low" in values,
        f"{option} adapts eps, which {chosen.name} does not have: leave it out, or choose another"
        " algorithm",
    )
    low, high = values["eps_low"], values["eps_high"]
    require(
        by_signals or low == high,
        f"{option} has one width for both sides, but eps-low is {low:g} and eps-high {high:g}: give"
        " both the same, or choose penalty or mask",
    )
    require(
        acts(config, "eps_low") or acts(config, "eps_high"),
        f"{option} adapts a clip that never binds: with schedule.updates-per-batch = 1 the ratio"
        f" that {title(config)} clips is 1. Give --schedule.updates-per-batch more than 1, or"
        " --override.center unit",
    )


def _check_groups(config: TrainConfig, chosen: Algorithm) -> None:
    wanted, optimizer = config.override, config.optimizer
    require(
        not (wanted.mask_zero_variance and wanted.count_masked and silent(config)),
        "override.mask-zero-variance changes nothing here: groups of equal rewards have no"
        " advantage, and knobs.beta is 0. Give --knobs.beta, or --override.no-count-masked to"
        " average over the other groups",
    )
    require(
        not optimizer.skip_zero_variance or wanted.mask_zero_variance or silent(config),
        f"optimizer.skip-zero-variance leaves out groups that carry no loss, but under"
        f" {title(config)} groups of equal rewards carry one: give --override.mask-zero-variance",
    )
    parts = optimizer.microbatches
    require(
        chosen.adds_up or (parts == 1 and optimizer.batching == "padded"),
        f"{title(config)} looks at the whole batch, so that parts of it do not add up:"
        f" give --optimizer.microbatches 1 and --optimizer.batching padded, not {parts} and"
        f" {optimizer.batching}",
    )
    _check_tokens(config, chosen)


def _check_tokens(config: TrainConfig, chosen: Algorithm) -> None:
    tokens = config.optimizer.microbatch_tokens
    longest = config.data.prompt_length, config.rollout.max_tokens
    require(
        tokens is None or chosen.looks_at == LooksAt.COMPLETION,
        f"{title(config)} looks at a whole {chosen.looks_at}, which parts of"
        f" optimizer.microbatch-tokens = {tokens} may split: give --optimizer.microbatches instead",
    )
    require(
        tokens is None or None in longest or tokens >= sum(x or 0 for x in longest),
        f"optimizer.microbatch-tokens is {tokens}, and no completion is split: a prompt of"
        f" data.prompt-length = {longest[0]} with a completion of rollout.max-tokens = {longest[1]}"
        f" needs {sum(x or 0 for x in longest)}; give at least that, or lower one of the two",
    )


def _check_values(config: TrainConfig, chosen: Algorithm) -> None:
    """Refuses what a value head is not made for."""
    mesh = config.mesh
    beside = {
        "--mesh.data, .fsdp and .tensor at 1": mesh.data * mesh.fsdp * mesh.tensor > 1,
        "--lora.rank out": config.lora.rank is not None,
        "--optimizer.batching padded": config.optimizer.batching == "packed",
    }
    for remedy, given in beside.items():
        require(not given, f"{chosen.name} learns values, which needs a value head: leave {remedy}")


def _check_company(config: TrainConfig, chosen: Algorithm, values: dict[str, float]) -> None:
    """Refuses a method that compares completions, or prompts, where there is but one."""
    prompts, group = config.schedule.prompts, config.rollout.group_size
    shape = (min(prompts, 2), min(group, 2), 2)
    x = jnp.zeros(shape)
    batch, along = TokenBatch(x, x == 0, x, x, x), Along(x == 0, x, x == 0, x)
    given = jnp.zeros(shape[:2]), values, jax.random.key(0), along
    try:
        jax.eval_shape(lambda log_probs: chosen(log_probs, batch, *given, values=x), x)
    except ValueError as error:
        raise ValueError(
            f"{title(config)} cannot be computed with schedule.prompts = {prompts} and"
            f" rollout.group-size = {group}, as it compares them ({error}): give more, or for one"
            " completion a prompt --override.advantage leave_prompt_out, running_baseline, raw or"
            " successes"
        ) from error


def _check_alone(config: TrainConfig) -> None:
    """Refuses options that compare the completions of a prompt where there is but one."""
    compared = {
        "override.mask-zero-variance": config.override.mask_zero_variance,
        "optimizer.skip-zero-variance": config.optimizer.skip_zero_variance,
        "replay.refuse-zero-variance": config.replay.refuse_zero_variance,
        "replay.sampler advantage": config.replay.sampler == "advantage",
        "replay.sampler positives": config.replay.sampler == "positives",
        "override.weight group_normalized": config.override.weight == "group_normalized",
    }
    for option, given in compared.items():
        require(
            not given,
            f"rollout.group-size is 1, and {option} compares the completions of a prompt: give"
            " --rollout.group-size 2 or more, or leave it out",
        )
