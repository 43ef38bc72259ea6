"""XLA's plan of long completions and of presets, and the planner's beside it."""

from functools import cache

import pytest

from benchmarks.memory import Lengths, plan_preset
from ogrpo_plan.config import GIB, BatchPlan, Plan, PlanModel, PlanSchedule, Train
from ogrpo_plan.memory import train_budget

pytestmark = pytest.mark.slow


@cache
def planned_by_xla(length: int) -> int:
    """Bytes beside the state: bfloat16, full remat, 16 completions of one prompt of 256 tokens."""
    return Lengths().plan(length).temporary


def test_it_is_linear_in_the_completion():
    assert planned_by_xla(4096) < 20 * GIB
    assert planned_by_xla(8192) < 2.2 * planned_by_xla(4096)


@pytest.mark.parametrize("length", [4096, 8192])
def test_the_planner_counts_what_the_compiler_plans(length):
    rows = train_budget(
        Plan(
            model=PlanModel(shape="qwen2.5-1.5b", params="bfloat16", compute="bfloat16"),
            batch=BatchPlan(prompts=1, group_size=16, prompt_length=256, max_tokens=length),
            train=Train(devices=1, fsdp=1, microbatches=1, remat="full"),
            schedule=PlanSchedule(sync_offset=0),
        )
    ).rows
    planned_here = rows["gradients"] + rows["activations"] + rows["working"]
    assert planned_here == pytest.approx(planned_by_xla(length), rel=0.15)


def test_a_preset_fits_the_device_that_it_names_by_the_compilers_plan():
    preset = plan_preset("qwen3-4b")
    assert preset.total <= preset.capacity
    assert preset.planned == pytest.approx(preset.total, rel=0.15)
