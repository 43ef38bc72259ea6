"""Each option changes the numbers of a short run somewhere, or only writes, shows or speeds up.

A walk over all fields of the configuration: a new one fails here until it has its place below.
"""

import re
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ogrpo.config.method import check, title
from ogrpo.config.train import TrainConfig, WarmStart
from ogrpo.data.replay import TooFewGroups
from ogrpo.learner.update import make_update
from ogrpo.setup.build import make_buffer, make_hypers_at, make_optimizer, make_recipe
from tests.config.test_every_knob import KNOBS
from tests.data.replay.make import experience
from tests.learner import toy
from tests.loop.walk import (
    BASE,
    CHAT,
    DIFFERENCES,
    EXTRA,
    FILE,
    KL,
    STALE,
    Setting,
    annotated,
    base_of,
    differ,
    ended,
    replayed,
    stages,
)
from tests.run.rewards import ODD, VARIED

PAIRS = {"rollout.group_size": 2}
UNLIMITED = {"rollout.mismatch_limit": None}
"""A cut sampler is far from the policy of random weights."""
TESTS = Path(__file__).parents[1]
ACTS: dict[str, tuple[Setting, Any]] = {
    "algorithm": (STALE, "cispo"),
    "seed": ({}, 1),
    "task": (FILE, DIFFERENCES),
    "rewards": ({}, (VARIED,)),
    "data.prompt_column": (FILE, "asked"),
    "data.solution_column": (FILE, "worked"),
    "data.heldout": (FILE, "0.5"),
    "data.prompt": (FILE, "How much is {question}"),
    "data.system": ({**FILE, "task": CHAT}, "Be brief."),
    "data.prompt_length": ({"warm_start": WarmStart(), "model.random": "tiny"}, 20),
    "data.train": ({}, 40),
    "data.seed": ({}, 1),
    "data.limit": ({}, 5),
    "model.dtype": ({}, "bfloat16"),
    "model.compute_dtype": ({}, "bfloat16"),
    "model.tokenizer_size": ({**FILE, "data.prompt_column": "asked"}, 260),
    "lora.rank": ({}, 2),
    "lora.alpha": ({"lora.rank": 2}, 8.0),
    "lora.targets": ({"lora.rank": 2}, "mlp"),
    "warm_start.steps": ({}, 3),
    "warm_start.batch": ({}, 8),
    "warm_start.learning_rate": ({}, 1e-3),
    "warm_start.seed": ({}, 1),
    "warm_start.problems": ({}, 24),
    "warm_start.demonstrations": ({}, 2),
    "reward.weights": ({"rewards": (ODD, VARIED)}, (1.0, 3.0)),
    "rollout.group_size": ({}, 5),
    "rollout.temperature": ({}, 0.5),
    "rollout.max_tokens": ({}, 16),
    "rollout.quantize": ({}, "int8"),
    "rollout.min_p": (UNLIMITED, 0.5),
    "rollout.top_k": (UNLIMITED, 2),
    "rollout.top_p": (UNLIMITED, 0.5),
    "rollout.keep_sampling_mask": ({**STALE, **UNLIMITED, "rollout.top_p": 0.5}, True),
    "schedule.steps": ({}, 3),
    "schedule.warmup": ({}, 1),
    "schedule.reset_optimizer": ({**KL, "schedule.stages": 2}, True),
    "schedule.prompts": ({}, 5),
    "schedule.draw": ({}, 2),
    "replay.groups": ({**PAIRS, "replay.sampler": "uniform"}, 8),
    "replay.sampler": ({**PAIRS, **EXTRA, "replay.sampler": "fifo"}, "uniform"),
    "replay.refuse_zero_variance": (PAIRS, True),
    "replay.refuse_failures": (PAIRS, True),
    "replay.max_uses": ({**PAIRS, **EXTRA}, 1),
    "replay.half_life": ({**PAIRS, **EXTRA, "replay.sampler": "fresh"}, 0.05),
    "reuse.adaptive": ({**EXTRA, **STALE}, True),
    "reuse.limits.clip_step": ({**EXTRA, **STALE, "reuse.adaptive": True}, 1.0),
    "override.advantage": ({}, "positive_part"),
    "override.reduction": ({}, "sequence_sum"),
    "override.center": (STALE, "exact"),
    "override.weight": (STALE, "truncated"),
    "override.gate": (STALE, ("geometric",)),
    "override.bonus": ({}, "entropy"),
    "override.whiten": ({}, "tokens"),
    "override.kl": (KL, "importance_k3"),
    "override.centering": (STALE, 2),
    "override.mask_zero_variance": (KL, True),
    "override.count_masked": ({**KL, "override.mask_zero_variance": True}, False),
    "trust_region.kind": ({}, "penalty"),
    "trust_region.delta": ({"trust_region.kind": "mask"}, 10.0),
    "trust_region.rate": ({"trust_region.kind": "clip"}, 2.0),
    "optimizer.learning_rate": ({}, 0.01),
    "optimizer.warmup": ({}, 1),
    "optimizer.decay": ({}, 0.0),
    "optimizer.b1": ({}, 0.5),
    "optimizer.b2": ({}, 0.5),
    "optimizer.eps": ({}, 1.0),
    "optimizer.weight_decay": ({}, 0.5),
    "optimizer.moments": ({}, "factored"),
    "optimizer.max_grad_norm": ({"optimizer.eps": 1.0}, 1e-3),
    "evaluation.task": (FILE, DIFFERENCES),
    "evaluation.split": ({}, "validation"),
    "evaluation.prompts": ({}, 5),
    "evaluation.temperature": ({}, 0.3),
    "evaluation.samples": ({}, 2),
    "evaluation.batch": ({}, 3),
    "evaluation.max_tokens": ({}, 5),
}
"""Option -> (setting, value): the value changes a run of two or three steps, or a part of it."""

OF_THE_METHOD = (
    *("algorithm", "override.advantage", "override.reduction", "override.center", "override.kl"),
    *("override.weight", "override.gate", "override.bonus", "override.whiten"),
)
"""Options that make another `Algorithm`."""

SAME: tuple[tuple[Setting, Setting], ...] = (
    (
        {},
        {
            "model.remat": "full",
            "kernels.attention": "blocked",
            "kernels.log_probs": "chunked",
            "kernels.kept_mib": 0,
            "optimizer.microbatches": 2,
            "optimizer.skip_zero_variance": True,
            "schedule.evaluate_every": 1,
            "evaluation.gradient_variance": True,
            "evaluation.token_samples": 2,
            "reward.processes": 1,
            "rollout.workers": 2,
            "checkpoint.every": 1,
            "checkpoint.keep": 1,
            "replay.keep": False,
            "warm_start.cache": True,
            "warm_start.retrain": True,
            "preset": "a name",
        },
    ),
    ({}, {"optimizer.batching": "packed", "optimizer.microbatch_tokens": 64}),
)
"""Setting, and what only writes, shows, says more or speeds up: the weights of the end stay."""

ELSEWHERE = {
    "experiments/test_gsm8k.py": "run_dir resume resume_anyway model.random model.path data.path",
    "learner/test_sharding.py": "mesh.data mesh.fsdp mesh.tensor",
    "loop/test_control.py": "reuse.limits.kl reuse.limits.ess reuse.limits.tail"
    " reuse.limits.staleness reuse.limits.clip_range",
    "loop/test_credit.py": "override.baseline_by override.baseline_rate",
    "loop/test_diverged.py": "optimizer.max_skipped",
    "loop/test_flips.py": "reward.flip",
    "loop/test_heldout.py": "by",
    "loop/test_loop.py": "schedule.offline schedule.stages schedule.replay replay.max_staleness"
    " schedule.updates_per_batch schedule.sync_interval schedule.sync_offset certificate.delta"
    " certificate.completions certificate.pairs",
    "loop/test_mismatch.py": "rollout.mismatch_limit",
    "models/test_hub.py": "push_to_hub",
    "rollout/collection/test_collector.py": "rollout.prompts_per_call",
    "rollout/test_address.py": "rollout.listen",
    "rollout/test_weights.py": "rollout.folder",
    "run/test_api.py": "track",
    "run/test_guard.py": "strict stop_when_worse",
    "run/test_logs.py": "logs.path logs.behavior logs.mix",
    "run/test_resume.py": "resume_from",
    "server/test_2_tied.py": "rollout.transport",
    "setup/test_imitation.py": "warm_start.solutions warm_start.save_every",
    "setup/test_processes.py": "processes.auto processes.coordinator processes.count processes.id"
    " rollout.url",
    "setup/test_server_options.py": "rollout.in_flight rollout.advertise rollout.timeout"
    " rollout.patience rollout.attempts rollout.per_server rollout.tolerance rollout.wait",
    "setup/test_sources.py": "data.chat reward.extraction reward.seconds reward.call_seconds"
    " reward.memory_gib evaluation.path evaluation.engine",
}
"""The file whose tests show options act that take a server, devices, files or a resumed run, or are
shown there at less cost."""


def test_every_option_has_its_place():
    knobs = {f"knobs.{name}" for name in KNOBS}
    same = {path for _, changes in SAME for path in changes}
    places = [set(ACTS), knobs, same, {*" ".join(ELSEWHERE.values()).split()}]
    assert sum(map(len, places)) == len(set.union(*places))
    assert set.union(*places) == {path for path, _ in annotated(BASE)}


@pytest.mark.parametrize("file", ELSEWHERE)
def test_what_is_shown_elsewhere_is_tested_there(file):
    words = re.findall(r"[a-z]+(?:[-_][a-z]+)*", (TESTS / file).read_text())
    options = {path.rpartition(".")[2] for path in ELSEWHERE[file].split()}
    assert options <= {word.replace("-", "_") for word in words}


@cache
def updated(config: TrainConfig) -> tuple[np.ndarray, ...]:
    """The toy policy after each of two updates as the run takes them, on a batch of another's."""
    recipe, hypers_at = make_recipe(config, toy.policy_fn), make_hypers_at(config)
    optimizer, weights = make_optimizer(config), []
    update = make_update(optimizer, recipe)
    state = toy.make_state(optimizer, region_fn=recipe.region_fn)
    for number in range(2):
        state, _ = update(state, toy.make_batch(), hypers_at(number, 1.0, 0))
        weights.append(np.asarray(state.params["table"]))
    return tuple(weights)


@cache
def drawn(config: TrainConfig) -> tuple[np.ndarray, ...]:
    """The problems that three steps draw from the run's buffer, of failures, successes and both."""
    buffer, size, problems = make_buffer(config, 300, None, None), config.schedule.prompts, []
    rewards = ([1.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    for step in range(3):
        buffer.expire(step)
        numbers = range(step * size, (step + 1) * size)
        buffer.insert([experience(n, version=step, rewards=rewards[n % 3]) for n in numbers])
        for seed in range(config.schedule.replay):
            with suppress(TooFewGroups):
                problems.append(buffer.sample(config.schedule.draw_size, seed=seed).problems)
    return tuple(problems)


@pytest.fixture
def _made_once(tmp_path_factory, monkeypatch):
    """Runs that begin alike read the warm start of the first of them."""
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "warm"))


def based(setting: Setting) -> TrainConfig:
    return base_of(setting if "warm_start" in setting else {"warm_start.cache": True, **setting})


def look_of(path: str) -> Callable[[TrainConfig], Any] | None:
    """Returns a function of a config whose value tells two runs apart without a model."""
    if path == "override.centering":  # reads what only a sampler records
        return None
    of_update = path.startswith(("optimizer.", "override.", "trust_region."))
    return updated if of_update else drawn if path.startswith("replay.") else None


@pytest.mark.slow
@pytest.mark.usefixtures("_made_once")
@pytest.mark.parametrize("path", ACTS)
def test_an_option_changes_the_numbers(path):
    """That no two methods have the same loss is what `tests/core` shows."""
    setting, value = ACTS[path]
    one, other = based(setting), based({**setting, path: value})
    check(other)
    if path in OF_THE_METHOD:
        assert title(one) != title(other)
    elif look := look_of(path):
        assert differ(look(one), look(other))
    else:
        with closing(stages(other)) as run:
            assert any(map(differ, replayed(one), run))


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "changes"), SAME)
def test_what_only_shows_or_speeds_up_leaves_the_weights(setting, changes):
    gentle = {**setting, "optimizer.learning_rate": 1e-3}
    weights, others = (ended(base_of(x))[-1] for x in (gentle, {**gentle, **changes}))
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
