"""A training device: what the planner counts for parts of tokens and moments, and proposes."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import pytest

from ogrpo.learner.state import adam
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.lora import TARGETS, split
from ogrpo_plan.config import BatchPlan, Plan, PlanModel, Train
from ogrpo_plan.memory import TOKEN_STEP, device_tokens, proposed_tokens, train_budget

TRAIN = Train(devices=1, fsdp=1, memory_gib=80.0, remat="full")
PLAN = Plan(
    batch=BatchPlan(prompts=8, group_size=16, prompt_length=256, max_tokens=4096),
    train=TRAIN,
)


def cut(tokens, plan=PLAN):
    return replace(plan, train=replace(plan.train, microbatch_tokens=tokens))


def test_a_microbatch_of_one_groups_tokens_costs_what_the_group_does():
    group = device_tokens(PLAN) // 8
    padded, rows = (train_budget(plan).rows for plan in (PLAN, cut(group)))
    for name in rows:
        assert rows[name] == pytest.approx(padded[name], rel=0.01), name


def test_half_the_tokens_keep_half_the_activations():
    long, short = (train_budget(cut(tokens)).rows for tokens in (16384, 8192))
    assert long["activations"] == 2 * short["activations"]
    assert long["working"] > short["working"]


@pytest.mark.parametrize("gib", [60.0, 80.0])
def test_the_most_tokens_that_leave_a_tenth_are_proposed(gib):
    plan = replace(PLAN, train=replace(TRAIN, memory_gib=gib))
    tokens = proposed_tokens(plan)
    assert tokens is not None
    assert tokens % TOKEN_STEP == 0
    filled = [train_budget(cut(n, plan)) for n in (tokens, tokens + TOKEN_STEP)]
    assert filled[0].total <= 0.9 * filled[0].capacity < filled[1].total


def test_all_is_proposed_where_all_fits_and_nothing_where_nothing_does():
    roomy = replace(PLAN, train=replace(TRAIN, memory_gib=10_000.0))
    assert proposed_tokens(roomy) == device_tokens(roomy)
    assert proposed_tokens(replace(PLAN, train=replace(TRAIN, memory_gib=8.0))) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"microbatch_tokens": 4000}, "microbatch-tokens is 4000.*at least .* = 4352"),
        ({"microbatch_tokens": 0}, "microbatch-tokens is 0"),
        ({"microbatch_tokens": 5000, "microbatches": 2}, "microbatches is 2, .*microbatch-tokens"),
    ],
)
def test_what_no_run_would_take_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PLAN, train=replace(TRAIN, **change))


@pytest.mark.parametrize("params", ["float32", "bfloat16"])
@pytest.mark.parametrize("moments", ["full", "bfloat16", "factored"])
@pytest.mark.parametrize("rank", [None, 16])
def test_moments_are_counted_as_the_optimizer_makes_them(moments, params, rank):
    model = PlanModel(shape="qwen2.5-0.5b", params=params, lora_rank=rank)
    plan = replace(PLAN, model=model, train=replace(TRAIN, moments=moments))
    decoder = plan.model.decoder()
    shapes = jax.tree.map(lambda x: x.update(dtype=params), param_shapes(decoder))
    if rank is not None:
        draw = partial(split, key=jax.random.key(0), rank=rank, alpha=1.0, targets=TARGETS["all"])
        shapes = jax.eval_shape(draw, shapes).trained
    rest: Any = {"b1": 0.9, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0}
    state = jax.eval_shape(adam(**rest, moments=moments).init, shapes)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert train_budget(plan).rows["optimizer"] == pytest.approx(held, rel=1e-3)
