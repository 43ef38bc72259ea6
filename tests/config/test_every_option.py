"""Each option changes the numbers of a short run somewhere, or only writes, shows or speeds up.

A walk over all fields of the configuration: a new one fails here until it has its place below.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ogrpo.config.method import check, title
from ogrpo.config.train import TrainConfig
from ogrpo.data.replay import TooFewGroups
from ogrpo.learner.update import make_update
from ogrpo.setup.build import make_buffer, make_hypers_at, make_optimizer, make_spec
from ogrpo.setup.model import make_model
from ogrpo.setup.prepare import prepare
from tests.config.test_every_knob import KNOBS
from tests.data.replay.make import experience
from tests.learner import toy
from tests.loop import walk
from tests.run.rewards import ODD, VARIED
from tests.run.small_run import make_parts_again

PAIRS = {"rollout.group_size": 2}
CUT = {"rollout.top_p": 0.5, "rollout.mismatch_limit": None}
"""A cut sampler is far from the policy of random weights."""
ACTS: dict[str, tuple[walk.Setting, Any]] = {
    "algorithm": (walk.STALE, "cispo"),
    "seed": ({}, 1),
    "task": (walk.FILE, walk.DIFFERENCES),
    "rewards": ({}, (VARIED,)),
    "data.prompt_column": (walk.FILE, "asked"),
    "data.solution_column": (walk.FILE, "worked"),
    "data.heldout": (walk.FILE, "0.5"),
    "data.prompt": (walk.FILE, "How much is {question}"),
    "data.system": ({**walk.FILE, "task": walk.CHAT}, "Be brief."),
    "data.prompt_length": ({}, 20),
    "data.train": ({}, 40),
    "data.seed": ({}, 1),
    "data.limit": ({}, 5),
    "model.dtype": ({}, "bfloat16"),
    "model.compute_dtype": ({}, "bfloat16"),
    "model.tokenizer_size": ({**walk.FILE, "data.prompt_column": "asked"}, 260),
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
    "rollout.min_p": ({}, 0.5),
    "rollout.top_k": ({}, 2),
    "rollout.top_p": ({}, 0.5),
    "rollout.keep_sampling_mask": ({**walk.STALE, **CUT}, True),
    "schedule.steps": ({}, 3),
    "schedule.warmup": ({}, 1),
    "schedule.draw": ({}, 2),
    "replay.groups": ({**PAIRS, **walk.EXTRA}, 4),
    "replay.sampler": ({**PAIRS, **walk.EXTRA, "replay.sampler": "fifo"}, "uniform"),
    "replay.refuse_zero_variance": (PAIRS, True),
    "replay.refuse_failures": (PAIRS, True),
    "replay.max_uses": ({**PAIRS, **walk.EXTRA}, 1),
    "replay.half_life": ({**PAIRS, **walk.EXTRA, "replay.sampler": "fresh"}, 0.05),
    "reuse.adaptive": ({**walk.EXTRA, **walk.STALE}, True),
    "reuse.limits.clip_step": ({**walk.EXTRA, **walk.STALE, "reuse.adaptive": True}, 1.0),
    "override.advantage": ({}, "positive_part"),
    "override.reduction": ({}, "sequence_sum"),
    "override.center": (walk.STALE, "exact"),
    "override.weight": (walk.STALE, "truncated"),
    "override.gate": (walk.STALE, ("geometric",)),
    "override.bonus": ({}, "entropy"),
    "override.whiten": ({}, "tokens"),
    "override.kl": (walk.KL, "importance_k3"),
    "override.centering": (walk.STALE, 2),
    "override.mask_zero_variance": (walk.KL, True),
    "override.count_masked": ({**walk.KL, "override.mask_zero_variance": True}, False),
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
    "evaluation.task": (walk.FILE, walk.DIFFERENCES),
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

SAME: tuple[walk.Setting, ...] = (
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
    {"optimizer.batching": "packed", "optimizer.microbatch_tokens": 64},
)
"""What only writes, shows, says more or speeds up: the weights of the end stay."""

ELSEWHERE = {
    "test_offline_training_collects_in_the_warm_up_alone_and_never_renews_the_server": "schedule.offline",
    "test_records_count_what_was_collected": "schedule.prompts",
    "test_each_signal_is_measured_against_its_own_limit": "reuse.limits.kl reuse.limits.ess"
    " reuse.limits.tail",
    "test_staleness_counts_where_it_is_to": "reuse.limits.staleness",
    "test_the_clip_narrows_when_data_are_used_up_and_widens_otherwise_within_its_range": "reuse.limits.clip_range",
    "test_a_log_teaches_what_the_same_groups_of_ones_own_do_to_the_bit": "logs.path",
    "test_a_model_that_is_named_computes_the_log_probs_that_a_log_lacks": "logs.behavior",
    "test_a_mix_draws_its_share_from_the_log_at_every_step": "logs.mix",
    "test_reference_is_swapped_at_the_start_of_each_stage": "schedule.stages"
    " schedule.reset_optimizer",
    "test_replay_draws_every_held_group_before_it_comes_round_again": "schedule.replay",
    "test_groups_older_than_the_limit_are_never_drawn_and_those_at_it_are": "replay.max_staleness",
    "test_i_updates_a_batch_leave_the_first_centre": "schedule.updates_per_batch",
    "test_server_weights_are_renewed_every_v_steps": "schedule.sync_interval",
    "test_collecting_ahead_makes_samples_older_by_the_lead_and_stays_deterministic": "schedule.sync_offset",
    "test_each_period_is_certified_from_samples_it_never_saw": "certificate.delta"
    " certificate.completions",
    "test_pairs_certify_without_a_log_prob_and_leave_training_as_it_is": "certificate.pairs",
    "test_the_run_directory_holds_what_was_promised": "run_dir",
    "test_a_finished_run_is_not_overwritten_but_can_be_resumed": "resume",
    "test_a_run_goes_back_to_the_step_that_is_asked_for": "resume_from",
    "test_adapters_are_trained_told_of_saved_and_resumed": "resume_anyway",
    "test_a_reward_is_named_that_decides": "by",
    "test_a_guard_rail_warns_and_ends_a_run_that_asks_for_it": "strict stop_when_worse",
    "test_a_run_that_could_not_push_is_refused_before_it_begins": "push_to_hub",
    "test_a_loop_over_the_steps_may_be_left_and_gone_on_with": "track",
    "test_the_official_data_and_a_random_model": "model.random data.path",
    "test_variables_reach_the_chat_template": "data.chat",
    "test_imitation_lowers_the_validation_loss_and_goes_on_where_it_was_stopped": "warm_start.solutions"
    " warm_start.save_every",
    "test_a_saved_model_is_trained_further": "model.path",
    "test_answers_are_found_where_the_option_says": "reward.extraction",
    "test_comparisons_get_the_time_that_is_asked_for": "reward.seconds",
    "test_a_reward_that_overruns_is_ended_in_time": "reward.call_seconds",
    "test_training_is_flipped_and_evaluation_is_not": "reward.flip",
    "test_a_running_baseline_is_the_mean_reward_of_the_steps_before": "override.baseline_rate",
    "test_a_reward_gets_the_memory_that_is_asked_for": "reward.memory_gib",
    "test_another_task_is_evaluated_on_from_its_files": "evaluation.path",
    "test_the_trainers_own_sampler_can_evaluate": "evaluation.engine",
    "test_a_run_that_diverges_counts_stops_and_says_how_to_look_and_go_on": "optimizer.max_skipped",
    "test_an_update_on_eight_devices_is_that_on_one_or_skipped_on_all": "mesh.data mesh.fsdp"
    " mesh.tensor",
    "test_a_run_of_two_processes_stops_and_goes_on_and_is_that_of_one": "processes.auto"
    " processes.coordinator processes.count processes.id",
    "test_a_run_says_how_to_start_its_server_and_of_two_processes_the_first_talks_to_it": "rollout.url",
    "test_pushes_are_proven_one_after_the_other": "rollout.transport",
    "test_a_release_appears_whole_and_old_ones_go": "rollout.folder",
    "test_a_pull_needs_the_token_the_announced_manifest_and_a_place_that_may_be_read": "rollout.listen",
    "test_a_server_that_is_not_there_ends_the_command_which_can_be_tried_again": "rollout.wait",
    "test_shifted_log_probs_end_a_run_which_is_saved_and_without_the_limit_train_it": "rollout.mismatch_limit",
    "test_a_push_pauses_servers_as_the_option_says": "rollout.in_flight",
    "test_servers_pull_from_the_address_that_is_advertised": "rollout.advertise",
    "test_options_of_the_command_line_reach_the_engine": "rollout.timeout rollout.patience"
    " rollout.attempts rollout.per_server rollout.tolerance",
    "test_what_is_drawn_depends_neither_on_timing_nor_on_the_number_of_workers": "rollout.prompts_per_call",
}
"""A test -> the options that it shows to act: with a server, several devices, files or a resumed run,
or at less cost than here."""


def test_every_option_has_its_place():
    knobs = {f"knobs.{name}" for name in KNOBS}
    same = {path for changes in SAME for path in changes}
    places = [set(ACTS), knobs, same, {*" ".join(ELSEWHERE.values()).split()}]
    assert sum(map(len, places)) == len(set.union(*places))
    assert set.union(*places) == {path for path, _ in walk.annotated(walk.BASE)}


def test_what_is_shown_elsewhere_is_tested_there():
    tests = "".join(file.read_text() for file in Path(__file__).parents[1].rglob("test_*.py"))
    assert [name for name in ELSEWHERE if f"def {name}(" not in tests] == []


@cache
def updated(config: TrainConfig) -> tuple[np.ndarray, ...]:
    """The toy policy after each of two updates as the run takes them, on a batch of another's."""
    spec, hypers_at = make_spec(config, toy.policy_fn), make_hypers_at(config)
    optimizer, weights = make_optimizer(config), []
    update = make_update(optimizer, spec)
    state = toy.make_state(optimizer, region_fn=spec.region_fn)
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


@cache
def collected(config: TrainConfig) -> tuple[np.ndarray, ...]:
    """The draws of a run's engine for its first prompts with its first weights, and their rewards."""
    with closing(prepare(config)) as prepared:
        decoder, params = make_model(prepared, Console(quiet=True))
        collection = make_parts_again(prepared.config, prepared, decoder).collection
        collection.engine.publish(params, 0)
        problems = range(config.schedule.prompts)
        prompts = [prepared.prompts.train[n] for n in problems]
        groups = collection.engine.generate(prompts, collection.sampling, seed=0)
        judged = prepared.judge.rewarded(problems, groups)
    completions = (one for group in groups for one in group.completions)
    draws = (x for one in completions for x in (one.token_ids, one.log_probs))
    return (*draws, *(verdict.rewards for verdict in judged))


@pytest.fixture
def _made_once(tmp_path_factory, monkeypatch):
    """Runs that begin alike read the warm start of the first of them."""
    monkeypatch.setenv("OGRPO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "warm"))


def look_of(path: str) -> Callable[[TrainConfig], Any] | None:
    """Returns a function of a config whose value tells two runs apart without a step."""
    if path in ("override.centering", "rollout.keep_sampling_mask", "model.compute_dtype"):
        return None  # of what a sampler records, or of an update of the whole model
    if path.startswith(("optimizer.", "override.", "trust_region.")):
        return updated
    if path.startswith("replay."):
        return drawn
    drawing = ("model.", "rollout.", "rewards", "reward.")
    return collected if path.startswith(drawing) else None


@pytest.mark.slow
@pytest.mark.usefixtures("_made_once")
@pytest.mark.parametrize("path", ACTS)
def test_an_option_changes_the_numbers(path):
    """That no two methods have the same loss is what `tests/core` shows."""
    setting, value = ACTS[path]
    same = {"warm_start.cache": True, **setting}
    one, other = walk.base_of(same), walk.base_of({**same, path: value})
    check(other)
    if path in OF_THE_METHOD:
        assert title(one) != title(other)
    elif look := look_of(path):
        assert walk.differ(look(one), look(other))
    else:
        with closing(walk.stages(other)) as run:
            assert any(map(walk.differ, walk.replayed(one), run))


@pytest.mark.slow
def test_the_temperature_of_the_draws_is_that_of_the_update():
    assert walk.differ(updated(walk.BASE), updated(walk.base_of({"rollout.temperature": 0.5})))


@pytest.mark.slow
@pytest.mark.parametrize("changes", SAME)
def test_what_only_shows_or_speeds_up_leaves_the_weights(changes):
    gentle = {"optimizer.learning_rate": 1e-3}
    weights, others = (walk.ended(walk.base_of(x))[-1] for x in (gentle, {**gentle, **changes}))
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
