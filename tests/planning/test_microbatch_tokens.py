"""Parts of so many tokens: what the planner counts for them, refuses and proposes."""

from dataclasses import replace

import pytest

from ogrpo.planning.config import BatchPlan, Plan, Train
from ogrpo.planning.memory import TOKEN_STEP, device_tokens, proposed_tokens, train_budget

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
