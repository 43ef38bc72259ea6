"""The planner's arithmetic against hand-worked cases and XLA, its refusals, and the whole command."""

import json
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import pytest

from benchmarks import memory as xla
from ogrpo.cli.commands import parse_plan
from ogrpo.cli.commands import plan as run_plan
from ogrpo.config.rollout import Rollout
from ogrpo.config.schedule import Schedule
from ogrpo.config.train import Data, Model
from ogrpo.config.update import Knobs, Lora, Mesh, Optimizer
from ogrpo.learner.state import adam
from ogrpo.policy.decoder import param_shapes
from ogrpo.policy.flops import parameters
from ogrpo.policy.lora import TARGETS, split
from ogrpo.setup.presets import PRESETS, REAL
from ogrpo_plan import main as study
from ogrpo_plan import memory
from ogrpo_plan.config import (
    DEVICES,
    GIB,
    SHAPES,
    Lengths,
    Link,
    Plan,
    Serve,
    Train,
    plan_of,
)
from ogrpo_plan.times import measured, times

# d 64, f 176, 2 layers, 2 heads of 32, 1 key/value head, V 176: `SHAPES["tiny"]`.
TINY = Plan(
    model=Model(path=Path("tiny"), compute_dtype="bfloat16"),
    data=Data(prompt_length=8),
    rollout=Rollout(group_size=4, max_tokens=16),
    schedule=Schedule(prompts=8, sync_offset=1),
    optimizer=Optimizer(microbatches=2),
    lengths=Lengths(mean=10.0, spread=0.0),
    train=Train(memory_gib=1.0, tflops=1e-6),
    serve=Serve(devices=2, memory_gib=1.0, tokens_per_second=100.0, calls=2),
    link=Link(gigabytes_per_second=0.001, latency=0.5, sent="each"),
)
REFERRED = Knobs(beta=0.1)
# Embedding 11,264; a layer: q 4096, k and v 2048 each, o 4096, biases 128, MLP 33,792, norms 128.
WEIGHTS = 11_264 + 2 * (12_288 + 128 + 33_792 + 128) + 64


def test_the_shapes_have_the_parameters_of_their_model_cards():
    stated = {"qwen2.5-0.5b": (0.49, 0.36), "qwen2.5-1.5b": (1.54, 1.31)}
    stated |= {"qwen2.5-3b": (3.09, 2.77), "qwen2.5-7b": (7.61, 6.53)}
    for name, (whole, without) in stated.items():
        config = SHAPES[name]
        counted = parameters(config)
        assert round(counted / 1e9, 2) == pytest.approx(whole, abs=0.011)
        tables = 1 if config.tie_embeddings else 2
        rest = counted - tables * config.vocab_size * config.hidden_size
        assert round(rest / 1e9, 2) == pytest.approx(without, abs=0.011)


def test_the_memory_of_a_training_device_worked_by_hand():
    """Microbatches of 4 prompts: 4 (8 + 4 x 16) = 288 tokens, 4 (64 + 64 x 24) = 6400 pairs."""
    rows = memory.train_budget(TINY).rows
    assert rows["weights"] == 4 * WEIGHTS
    assert rows["gradients"] == 2 * 4 * WEIGHTS  # the sum over microbatches, and one of them
    assert rows["optimizer"] == 2 * 4 * WEIGHTS
    assert rows["computing copy and its gradient"] == 2 * 2 * WEIGHTS
    assert rows["policies kept for the servers"] == 2 * 4 * WEIGHTS  # lead 1
    assert rows["gathered along fsdp"] == 0
    # x and o of 64, q of 64, k and v of 32, gate and up of 176, in bfloat16.
    assert rows["activations"] == 2 * 2 * 288 * (64 + 64 + 64 + 64 + 352)
    # Scores: 2 heads x 6400 float32, four times; MLP: 288 x 176 float32, five times.
    assert rows["working"] == 4 * 4 * 2 * 6400 + 5 * 4 * 288 * 176
    assert memory.train_budget(TINY).fits
    referred = replace(TINY, knobs=REFERRED)
    assert memory.train_budget(referred).rows["policies kept for the servers"] == 3 * 4 * WEIGHTS


def adapted(rank):
    return replace(TINY, lora=Lora(rank=rank))


def test_adapters_leave_the_weights_without_gradients_and_moments():
    """A layer's sides: q, o 128 each, k, v 96 each, MLP 3 x 240: 1168 numbers a rank."""
    rows, full = memory.train_budget(adapted(2)).rows, memory.train_budget(TINY).rows
    trained = 4 * 2 * 2 * 1168
    assert rows["weights"] == 4 * WEIGHTS + trained
    assert rows["gradients"] == rows["optimizer"] == 2 * trained
    assert rows["computing copy and its gradient"] == 2 * WEIGHTS
    assert rows["policies kept for the servers"] == 2 * trained
    assert rows["activations"] == full["activations"] + 2 * 2 * 288 * 2 * 7
    assert rows["a matrix merged for a push"] == 4 * 2 * 64 * 176
    assert full["a matrix merged for a push"] == 0
    assert rows["working"] == full["working"]
    # fsdp cuts the side of the hidden size: q, k, v, gate, up and o, down on the other one.
    whole = 2 * (64 + 32 + 32 + 176 + 176 + 64 + 176)
    cut = replace(adapted(2), mesh=Mesh(fsdp=4), optimizer=Optimizer())
    assert memory.trained_bytes(cut) == 4 * 2 * (whole + 2 * 7 * 64 // 4)
    more, less = times(TINY), times(adapted(2))
    assert less["score a batch"] > more["score a batch"]  # the adapters' own products
    assert less["one update"] < 0.85 * more["one update"]
    assert less["push weights"] == more["push weights"]  # merged


def test_fsdp_cuts_every_matrix_and_tensor_what_divides():
    config = SHAPES["tiny"]
    matrices = 11_264 + 2 * (12_288 + 33_792)
    small = WEIGHTS - matrices  # norms and biases
    assert memory.cut_weight_bytes(config, 2, fsdp=1, tensor=1) == 2 * WEIGHTS
    assert memory.cut_weight_bytes(config, 2, fsdp=4, tensor=1) == 2 * (matrices // 4 + small)
    # Two heads divide, with q's bias; the one key/value head does not.
    kv = 2 * 2 * 2048
    halves = matrices - kv + 2 * 64
    assert memory.cut_weight_bytes(config, 2, fsdp=1, tensor=2) == 2 * (
        halves // 2 + kv + small - 2 * 64
    )


def test_what_fsdp_gathers_is_the_largest_piece_and_the_gradient_of_the_table():
    config, sizes = SHAPES["tiny"], {"computed": 2, "kept": 4}
    layer = 12_288 + 128 + 33_792 + 128 + 32  # and its share of the last norm
    assert memory.gathered_bytes(config, **sizes, fsdp=1, tensor=1) == 0
    assert memory.gathered_bytes(config, **sizes, fsdp=2, tensor=1) == 2 * layer + 4 * 11_264
    assert memory.gathered_bytes(config, **sizes, fsdp=2, tensor=2) == layer + 2 * 11_264


def test_the_memory_of_an_npu_worked_by_hand():
    """2 calls of 1 group: 8 + 4 x 16 = 72 tokens, each 2 x 2 layers x 32 in bfloat16."""
    budget = memory.serve_budget(TINY)
    assert budget.rows == {"weights": 2 * WEIGHTS, "keys and values": 2 * 72 * 256}
    assert budget.capacity == int(0.9 * GIB)


LARGE = Plan(
    model=Model(path=Path("qwen2.5-1.5b"), compute_dtype="bfloat16", remat="full"),
    data=Data(prompt_length=256),
    rollout=Rollout(group_size=16, max_tokens=4096),
    schedule=Schedule(prompts=8, sync_offset=1),
    optimizer=Optimizer(microbatches=8),
    train=Train(memory_gib=80.0),
)


def cut(tokens, plan=LARGE):
    return replace(plan, optimizer=Optimizer(microbatch_tokens=tokens, batching="packed"))


def test_a_microbatch_of_one_groups_tokens_costs_what_the_group_does():
    group = memory.device_tokens(LARGE) // 8
    padded, rows = (memory.train_budget(plan).rows for plan in (LARGE, cut(group)))
    for name in rows:
        assert rows[name] == pytest.approx(padded[name], rel=0.01), name


@pytest.mark.parametrize("gib", [60.0, 80.0])
def test_the_most_tokens_that_leave_a_tenth_are_proposed(gib):
    plan = replace(LARGE, train=Train(memory_gib=gib))
    tokens = memory.proposed_tokens(plan)
    assert tokens is not None
    assert tokens % memory.TOKEN_STEP == 0
    filled = [memory.train_budget(cut(n, plan)) for n in (tokens, tokens + memory.TOKEN_STEP)]
    assert filled[0].total <= 0.9 * filled[0].capacity < filled[1].total


def test_all_is_proposed_where_all_fits_and_nothing_where_nothing_does():
    roomy = replace(LARGE, train=Train(memory_gib=10_000.0))
    assert memory.proposed_tokens(roomy) == memory.device_tokens(roomy)
    assert memory.proposed_tokens(replace(LARGE, train=Train(memory_gib=8.0))) is None


@pytest.mark.parametrize("params", ["float32", "bfloat16"])
@pytest.mark.parametrize("moments", ["full", "bfloat16", "factored"])
@pytest.mark.parametrize("rank", [None, 16])
def test_moments_are_counted_as_the_optimizer_makes_them(moments, params, rank):
    model = replace(LARGE.model, path=Path("qwen2.5-0.5b"), dtype=params)
    plan = replace(LARGE, model=model, lora=Lora(rank=rank), optimizer=Optimizer(moments=moments))
    decoder = plan.decoder()
    shapes = jax.tree.map(lambda x: x.update(dtype=params), param_shapes(decoder))
    if rank is not None:
        draw = partial(split, key=jax.random.key(0), rank=rank, alpha=1.0, targets=TARGETS["all"])
        shapes = jax.eval_shape(draw, shapes).trained
    rest: Any = {"b1": 0.9, "b2": 0.98, "eps": 1e-8, "weight_decay": 0.0, "max_grad_norm": 1.0}
    state = jax.eval_shape(adam(**rest, moments=moments).init, shapes)
    held = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    assert memory.train_budget(plan).rows["optimizer"] == pytest.approx(held, rel=1e-3)


def test_the_times_worked_by_hand():
    """A forward pass: 8 (8 + 64) = 576 tokens of 46,080 macs and layers, 12,800 pairs.

    The head sees a row for each of 8 x 64 completion tokens.
    """
    spent = times(TINY)
    macs = 12_288 + 33_792
    forward = 2 * 2 * macs * 576 + 4 * 2 * 64 * 12_800 + 2 * 64 * 176 * 8 * 64
    assert spent["score a batch"] == pytest.approx(forward / 1e6)
    again = 4 * 2 * 64 * 12_800  # attention
    assert spent["one update"] == pytest.approx((3 * forward + again) / 1e6)
    # 8 x 4 completions of 10 tokens by two servers of 100 tokens/s.
    assert spent["draw a batch"] == pytest.approx(320 / 200)
    assert spent["push weights"] == pytest.approx(0.5 + 2 * 2 * WEIGHTS / 1e6)
    once = times(replace(TINY, link=replace(TINY.link, sent="once")))
    assert once["push weights"] == pytest.approx(0.5 + 2 * WEIGHTS / 1e6)
    checked = replace(TINY, link=replace(TINY.link, seconds_per_gigabyte=3e3))
    assert times(checked)["push weights"] == pytest.approx(0.5 + (2 * 2 + 3 * 2) * WEIGHTS / 1e6)
    cut_off = replace(TINY, lengths=Lengths(mean=16.0, spread=0.8))
    assert times(cut_off)["draw a batch"] < 0.9 * 512 / 200  # what is above 16 is not drawn
    again = replace(TINY, schedule=Schedule(prompts=8, replay=3, draw=4))
    assert times(again)["a step's training"] == pytest.approx(1.5 * spent["one update"])


@pytest.mark.parametrize(
    ("dials", "knobs", "scored", "step"),
    [
        ((1, 1, 1), Knobs(), 0, max),
        ((1, 4, 2), Knobs(), 1, max),
        ((1, 1, 1), REFERRED, 1, max),
        ((0, 2, 3), REFERRED, 2, sum),
    ],
)
def test_a_step_is_the_slower_side_or_in_turn_the_sum(dials, knobs, scored, step):
    """Scoring is paid where a batch has several updates, and for a reference."""
    names = ("sync_offset", "sync_interval", "updates_per_batch")
    schedule = Schedule(prompts=8, **dict(zip(names, dials, strict=True)))
    spent = times(replace(TINY, schedule=schedule, knobs=knobs))
    drawing = spent["draw a batch"] + spent["push weights"] / schedule.sync_interval
    training = schedule.updates_per_batch * spent["one update"] + scored * spent["score a batch"]
    both = spent["a step's drawing, with its share of a push"], spent["a step's training"]
    assert both == pytest.approx((drawing, training))
    assert spent["a step"] == pytest.approx(step((drawing, training)))


SMALL = """--model.path tiny --schedule.prompts 4 --schedule.sync-offset 1 --rollout.group-size 2
--data.prompt-length 4 --rollout.max-tokens 4 --lengths.mean 3 --serve.devices 1 --serve.calls 2
""".split()


def test_a_plan_from_the_command_line(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(SHAPES["tiny"].to_hf()))
    folder = tmp_path / "plan"
    options = [*SMALL, "--model.path", str(config), "--run-dir", str(folder)]
    assert run_plan(options) == 0
    shown = capsys.readouterr().out
    assert "Memory of one training device" in shown
    values = json.loads((folder / "plan.json").read_text())
    spent, tokens = values["seconds"], values["microbatch_tokens"]
    assert tokens == memory.device_tokens(parse_plan(options, program="plan"))
    drawing = spent["draw a batch"] + spent["push weights"]
    assert spent["a step"] == max(drawing, spent["one update"])
    rate = 4 * 2 / spent["a step"]
    assert shown.splitlines()[-1] == (
        f"verdict: all of it fits; {spent['a step']:.3g} s a step, {rate:.4g} completions/s"
    )
    assert {*values["memory"]} == {"training device", "NPU"}


def test_what_does_not_fit_is_said_with_the_remedy(tmp_path, capsys):
    options = [*SMALL, "--train.memory-gib", "0.0001", "--run-dir", str(tmp_path / "plan")]
    assert run_plan(options) == study.DOES_NOT_FIT
    shown = " ".join(capsys.readouterr().out.split())
    assert "the training device lacks memory: raise optimizer.microbatches" in shown
    assert "verdict: the training device lacks memory; " in shown


@pytest.mark.parametrize("name", DEVICES)
def test_a_preset_fits_the_device_that_it_names(name):
    budget = memory.train_budget(plan_of(name))
    assert budget.fits
    text = " ".join((PRESETS[name].__doc__ or "").split())
    assert DEVICES[name].device in text
    assert f"planned are {budget.total / GIB:.1f} GiB" in text
    assert f"ogrpo plan --preset {name}" in text


def test_each_preset_of_a_real_model_is_planned_and_from_the_command_line(capsys):
    assert set(DEVICES) == {*REAL, "smollm2-135m"}
    options = ["--preset", "r1-distill-1.5b", "--train.memory-gib", "50", "--print-config"]
    with pytest.raises(SystemExit):
        run_plan(options)
    shown = capsys.readouterr().out
    for line in ("preset: r1-distill-1.5b", "max_tokens: 4096", "remat: full", "memory_gib: 50"):
        assert line in shown
    lengths = "--data.prompt-length 32 --rollout.max-tokens 14".split()
    with pytest.raises(
        ValueError, match=r"model.path None has no config.json.* tiny, smollm2-135m"
    ):
        run_plan(["--preset", "v1-i1", *lengths])
    with pytest.raises(ValueError, match=r"rollout.max-tokens is not known"):
        run_plan(["--preset", "v1-i1", "--model.path", "tiny"])


def test_a_machine_that_does_both_is_told_of_itself_alone(tmp_path, capsys):
    small = ["--preset", "smollm2-135m", "--train.memory-gib", "3", "--run-dir"]
    assert run_plan([*small, str(tmp_path / "plan")]) == 1
    shown = capsys.readouterr().out
    assert "verdict: the training device lacks memory\n" in shown
    assert "--measure times" in shown
    assert "NPU" not in shown
    kept = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert kept["seconds"] == {}
    assert sum(kept["memory"]["training device"].values()) > 3 * 2**30


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--schedule.prompts 6 --optimizer.microbatches 4", "a batch of 6 groups cannot be cut"),
        ("--mesh.fsdp 3", "but schedule.prompts = 4 and batches of 4 in"),
        ("--serve.groups-per-call 3", "3, which does not divide schedule.prompts = 4"),
        ("--serve.tensor 2", "serve.tensor is 2, which does not divide serve.devices = 1"),
        ("--lengths.mean 5", "lengths.mean is 5.0: give between 1 and rollout.max-tokens = 4"),
        ("--data.prompt-length 65536", "65540 passes the model's"),
        ("--serve.tokens-per-second 0", "serve.tokens-per-second is 0.0: give a number above 0"),
        ("--schedule.sync-interval 0", "schedule.sync-interval is 0: give at least 1"),
        ("--model.path nowhere.json", "model.path nowhere.json has no config.json: give one"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, message, capsys):
    with pytest.raises((SystemExit, ValueError)) as stop:  # tyro's, in a box, or once all is known
        run_plan([*SMALL, *options.split()])
    boxed = capsys.readouterr().err.replace("│", " ")
    assert message in " ".join([str(stop.value), *boxed.split()])


@pytest.mark.parametrize("rank", [None, 2])
def test_measured_speeds_take_the_place_of_the_assumed_ones(rank):
    options = ["--serve.dtype", "float32", "--measure"]
    adapters = [] if rank is None else ["--lora.rank", f"{rank}"]
    plan = parse_plan([*SMALL, *options, *adapters], program="plan")
    here = measured(plan)
    assert here.train.tflops != plan.train.tflops
    assert here.serve.tokens_per_second != plan.serve.tokens_per_second
    assert replace(here, train=plan.train, serve=plan.serve) == plan


@cache
def planned_by_xla(length: int) -> int:
    """Bytes beside the state: bfloat16, full remat, 16 completions of one prompt of 256 tokens."""
    return xla.Lengths().plan(length).temporary


@pytest.mark.slow
def test_the_compilers_plan_is_linear_in_the_completion():
    assert planned_by_xla(4096) < 20 * GIB
    assert planned_by_xla(8192) < 2.2 * planned_by_xla(4096)


@pytest.mark.slow
@pytest.mark.parametrize("length", [4096, 8192])
def test_the_planner_counts_what_the_compiler_plans(length):
    rows = memory.train_budget(
        Plan(
            model=replace(LARGE.model, dtype="bfloat16"),
            data=LARGE.data,
            rollout=Rollout(group_size=16, max_tokens=length),
            schedule=Schedule(prompts=1),
        )
    ).rows
    planned_here = rows["gradients"] + rows["activations"] + rows["working"]
    assert planned_here == pytest.approx(planned_by_xla(length), rel=0.15)


@pytest.mark.slow
def test_a_preset_fits_the_device_that_it_names_by_the_compilers_plan():
    preset = xla.plan_preset("qwen3-4b")
    assert preset.total <= preset.capacity
    assert preset.planned == pytest.approx(preset.total, rel=0.15)
