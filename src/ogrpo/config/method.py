"""The method that a config names: its algorithm with exchanged parts, its knobs, what fits it."""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ogrpo.config.train import AlgorithmName, TrainConfig
from ogrpo.config.update import Knobs, Override
from ogrpo.core.algorithms import (
    ADVANTAGES,
    ALGORITHMS,
    BEHAVIOR,
    GROUPS,
    LOSS,
    PROXIMAL,
    REFERENCE,
    STEPS,
    VALUES,
    Advantage,
    Algorithm,
    LooksAt,
    with_parts,
)
from ogrpo.system.terminal import nearest
from ogrpo.system.values import INERT, Conditions, check_conditions, dashed

BASELINE = "baseline"
"""The knob that a run sets itself before each step: the mean reward of those before."""


def algorithm(config: TrainConfig) -> Algorithm:
    """Returns the algorithm by its name, with the parts that the config exchanges."""
    return _composed(config.algorithm, config.override)


@cache
def _composed(name: AlgorithmName, override: Override) -> Algorithm:
    if isinstance(name, str) and name not in ALGORITHMS:
        raise ValueError(
            f"there is no algorithm {name!r}.{nearest(name, ALGORITHMS)}"
            f" Algorithms: {', '.join(ALGORITHMS)}"
        )
    method = ALGORITHMS[name] if isinstance(name, str) else name
    assert isinstance(method, Algorithm)
    parts = ("advantage", "reduction", "center", "weight", "kl", "gate", "bonus", "whiten")
    return with_parts(method, **{part: getattr(override, part) for part in parts})


def knobs(config: TrainConfig) -> dict[str, float]:
    """Returns the value of each knob: the config's, or as published; `length` is the run's."""
    length = config.rollout.max_tokens
    return dict(_settings(config.algorithm, config.override, config.knobs, length))


@cache  # a method's parts judge their knobs by being traced, which takes a while
def _settings(
    name: AlgorithmName, override: Override, values: Knobs, length: int | None
) -> Mapping[str, float]:
    method = _composed(name, override)
    of_run = {"length": float(length or 1), BASELINE: 0.0}
    numbers = {knob: value for knob, value in of_run.items() if knob in method.knobs}
    return method.settings({**vars(values), **numbers})


def title(config: TrainConfig) -> str:
    """Returns the algorithm's name and all that is not as it is published."""
    masked = ["zero-variance groups left out"] if config.override.mask_zero_variance else []
    masked += [f"score centring {n}"] if (n := config.override.centering) else []
    masked += [] if config.override.count_masked else ["and not counted"]
    region = config.trust_region.kind
    around = [] if region == "none" else [f"trust region {region}"]
    return ", ".join([algorithm(config).title(knobs(config)), *masked, *around])


def listed() -> str:
    """Returns every algorithm, a line each, in groups."""
    parts = []
    for group, methods in GROUPS.items():
        parts += [f"- {group}:", *(f"{a.name}: {a.summary}" for a in methods)]
    return "\n\n".join(parts)


def ignores_zero_variance(config: TrainConfig) -> bool:
    """Whether groups of equal rewards carry no loss even if they are not left out."""
    method = algorithm(config)
    if knobs(config).get("beta") or config.trust_region.kind == "penalty" or method.whiten:
        return False
    zero = isinstance(method.advantage, Advantage) and method.advantage.zero_when_equal
    return zero and method.ignores_zero_advantage


def acts(config: TrainConfig, knob: str) -> bool:
    """Whether the gradient of the loss depends on this knob in the run's schedule.

    With one update on a batch pi_k is the policy that is differentiated, so that a ratio pi/pi_k is
    1 and an exact centre is the ratio itself: whatever acts on their distance does nothing.
    """
    method = algorithm(config)
    if PROXIMAL not in method.reads or config.schedule.updates_per_batch > 1:
        return True
    return method.knobs[knob].at_one or method.knobs[knob].parts != (LOSS,)


def reads_behavior(config: TrainConfig) -> bool:
    """Whether updates depend on the behaviour log-probs: signals of reuse and trust regions do."""
    if config.reuse.adaptive or config.trust_region.kind != "none":
        return True
    return BEHAVIOR in algorithm(config).inputs(knobs(config))


class Composed(NamedTuple):
    """A config with its method and knobs, which conditions are of."""

    config: TrainConfig
    method: Algorithm
    knobs: Mapping[str, float]
    reads: frozenset[str]

    @property
    def adapts_clip(self) -> bool:
        """Whether the clip's width follows the measured divergence, or the signals of reuse."""
        limits = self.config.reuse.limits
        return self.config.trust_region.kind == "clip" or limits.clip_step > 0


COMPARED = (
    "but rollout.group-size is 1, and it compares the completions of a prompt: give"
    " --rollout.group-size 2 or more, or leave it out"
)
ONE_UPDATE = (
    "with schedule.updates-per-batch = 1 the ratio that {title} clips is 1. Give"
    " --schedule.updates-per-batch more than 1, or --override.center unit"
)
CLIP = "reuse.limits.clip-step trust-region.kind"
"""Options that adapt a clip's width."""
CENTERED = [name for name, method in ALGORITHMS.items() if method.token_ratio_only]
"""Methods that score centring fits."""
SETS = ADVANTAGES["pass_at_k"], ADVANTAGES["max_at_k"]
"""Advantages of the sets of k that a completion is in, which leave some of the group out."""
VALID_IF: Conditions = (
    (
        "override.centering",
        lambda m: (
            m.method.token_ratio_only
            and PROXIMAL not in m.method.reads
            and {*m.config.override.gate} <= {"token"}
            and m.config.override.bonus is None
            and m.config.trust_region.kind == "none"
        ),
        "but it needs the weight of every token by itself, of which {title} has none: choose among "
        + ", ".join(CENTERED)
        + ", with no weight, no gate but token and no trust region",
    ),
    (
        "rollout.group-size knobs.k",
        lambda m: m.method.advantage not in SETS or m.knobs["k"] < m.config.rollout.group_size,
        "and {method} holds sets of {knobs[k]:g} completions against what they leave out: give a"
        " rollout.group-size above knobs.k",
    ),
    (
        "logs.path",
        lambda m: STEPS not in m.method.reads,
        "but {title} reads rewards of steps, which a log has none of",
    ),
    (
        "schedule.stages",
        lambda m: REFERENCE in m.reads or m.config.schedule.reset_optimizer,
        "but nothing reads the reference policy that a stage swaps: give --knobs.beta more than 0,"
        " or --schedule.reset-optimizer",
    ),
    (
        "override.kl",
        lambda m: m.knobs.get("beta", 0) > 0,
        "but the KL term has the weight 0: give --knobs.beta",
    ),
    (
        "override.baseline-rate",
        lambda m: BASELINE in m.knobs,
        INERT + "give --override.advantage running_baseline",
    ),
    (
        "mesh.data mesh.fsdp mesh.tensor lora.rank optimizer.batching",
        lambda m: VALUES not in m.method.reads,
        "but {title} learns values, whose head is not made for that: leave it out",
    ),
    (
        "trust-region.kind",
        lambda m: m.config.trust_region.kind != "clip" or m.config.reuse.limits.clip_step == 0,
        "and reuse.limits.clip-step sets the clip's width too: leave one out",
    ),
    (
        CLIP,
        lambda m: not m.adapts_clip or "eps_low" in m.knobs,
        "which adapts eps, which {method} does not have: leave it out, or choose another algorithm",
    ),
    (
        "trust-region.kind",
        lambda m: m.config.trust_region.kind != "clip" or m.knobs["eps_low"] == m.knobs["eps_high"],
        "with one width for both sides, but eps-low is {knobs[eps_low]:g} and eps-high"
        " {knobs[eps_high]:g}: give both the same, or choose penalty or mask",
    ),
    (
        CLIP,
        lambda m: not m.adapts_clip or acts(m.config, "eps_low") or acts(m.config, "eps_high"),
        "which adapts a clip that never binds: " + ONE_UPDATE,
    ),
    (
        "override.mask-zero-variance",
        lambda m: not m.config.override.count_masked or not ignores_zero_variance(m.config),
        INERT + "groups of equal rewards have no advantage, and knobs.beta is 0. Give --knobs.beta,"
        " or --override.no-count-masked to average over the other groups",
    ),
    (
        "optimizer.skip-zero-variance",
        lambda m: m.config.override.mask_zero_variance or ignores_zero_variance(m.config),
        "which leaves out groups that carry no loss, but under {title} groups of equal rewards"
        " may carry one: give --override.mask-zero-variance",
    ),
    (
        "optimizer.skip-zero-variance",
        lambda m: m.config.optimizer.microbatches > 1 or m.config.optimizer.batching == "packed",
        "a part of the batch at a time: give --optimizer.microbatches, or .batching packed",
    ),
    (
        "optimizer.microbatches optimizer.batching",
        lambda m: m.method.adds_up,
        "but {title} looks at the whole batch, so that parts of it do not add up: give"
        " --optimizer.microbatches 1 and --optimizer.batching padded",
    ),
    (
        "optimizer.microbatch-tokens",
        lambda m: m.method.looks_at == LooksAt.COMPLETION,
        "but {title} looks at a whole {subject.method.looks_at}, which such parts may split: give"
        " --optimizer.microbatches instead",
    ),
    (
        "override.mask-zero-variance optimizer.skip-zero-variance replay.refuse-zero-variance",
        lambda m: m.config.rollout.group_size > 1,
        COMPARED,
    ),
    (
        "replay.sampler",
        lambda m: (
            m.config.rollout.group_size > 1
            or m.config.replay.sampler not in ("advantage", "positives")
        ),
        COMPARED,
    ),
    (
        "override.weight",
        lambda m: m.config.rollout.group_size > 1 or m.config.override.weight != "group_normalized",
        COMPARED,
    ),
)
"""When options fit the method that the others name."""


def check(config: TrainConfig) -> None:
    """Holds a config to what its method needs and reads.

    Raises:
      ValueError: the algorithm or a knob is unknown or out of its range, or an option would change
        nothing; names it and what to turn instead.
    """
    method, values, name = algorithm(config), knobs(config), title(config)
    for knob, value in vars(config.knobs).items():
        if value is not None and not acts(config, knob):
            raise ValueError(
                f"knobs.{dashed(knob)} is {value}, {INERT}{ONE_UPDATE.format(title=name)} without a"
                " weight"
            )
    composed = Composed(config, method, values, method.inputs(values))
    check_conditions(
        config, VALID_IF, subject=composed, title=name, method=method.name, knobs=values
    )
    prompt, longest = config.data.prompt_length, config.rollout.max_tokens
    tokens = config.optimizer.microbatch_tokens
    if tokens and prompt and longest and tokens < prompt + longest:
        raise ValueError(
            f"optimizer.microbatch-tokens is {tokens}, and no completion is split: a prompt of"
            f" data.prompt-length = {prompt} with a completion of rollout.max-tokens = {longest}"
            f" needs {prompt + longest}; give at least that, or lower one of the two"
        )
    prompts, group = config.schedule.draw_size, config.rollout.group_size
    try:
        method.trace(values, prompts=min(prompts, 2), group=min(group, 2))
    except ValueError as error:
        raise ValueError(
            f"{name} cannot be computed with batches of {prompts} prompts and rollout.group-size ="
            f" {group}, as it compares them ({error}): give more, or for one completion a prompt"
            " --override.advantage leave_prompt_out, running_baseline, raw or successes"
        ) from error
