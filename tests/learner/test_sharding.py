"""Meshes, in processes of their own: the devices of a process are counted when JAX starts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from ogrpo.learner.sharding import check_prompts, make_mesh, part_spec, whole_axes
from ogrpo.policy.params import param_axes
from tests.policy.tiny import make_config

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_an_update_on_eight_devices_is_that_on_one_or_skipped_on_all():
    """Checkpoints of theirs come back onto a mesh, another one and one device; kernels are alike."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.learner.mesh_worker"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "equal"


def mesh(data: int, fsdp: int, tensor: int) -> AbstractMesh:
    return AbstractMesh((data, fsdp, tensor), ("data", "fsdp", "tensor"))


def test_every_tensor_is_cut_along_its_own_axes():
    axes = param_axes(make_config("Llama"))
    specs = jax.tree.map(lambda leaf: tuple(part_spec(leaf, mesh(2, 2, 2))), axes)
    layers = specs["layers"]
    assert specs["embed_tokens"]["weight"] == (None, "fsdp")  # 11 words do not halve
    assert specs["norm"]["weight"] == (None,)
    assert layers["self_attn"]["q_proj"]["weight"] == (None, "tensor", "fsdp")
    assert layers["self_attn"]["k_proj"]["weight"] == (None, "tensor", "fsdp")
    assert layers["self_attn"]["o_proj"]["weight"] == (None, "fsdp", "tensor")
    assert layers["mlp"]["up_proj"]["weight"] == (None, "tensor", "fsdp")
    assert layers["mlp"]["down_proj"]["weight"] == (None, "fsdp", "tensor")
    assert layers["input_layernorm"]["weight"] == (None, None)
    # Biases are cut like the outputs that they are added to.
    attention = param_axes(make_config("Qwen2"))["layers"]["self_attn"]
    assert part_spec(attention["q_proj"]["bias"], mesh(1, 2, 4)) == PartitionSpec(None, "tensor")
    assert part_spec(attention["k_proj"]["bias"], mesh(1, 2, 4)) == PartitionSpec(None, None)


def test_what_cannot_be_cut_is_named():
    lines = whole_axes(param_axes(make_config("Qwen3", vocab_size=16)), mesh(1, 1, 4))
    assert lines == [
        f"layers.self_attn.{name}.weight: 2 kv_heads cannot be cut into tensor = 4"
        for name in ("k_proj", "v_proj")
    ]
    assert whole_axes(param_axes(make_config("Qwen3", vocab_size=16)), mesh(8, 2, 2)) == []


def test_a_mesh_that_does_not_fit_is_refused_with_the_number_of_devices():
    there = jax.device_count()
    expected = f"takes {2 * there} devices, and there are {there} .*device_count={2 * there}"
    with pytest.raises(ValueError, match=expected):
        make_mesh(data=there, fsdp=2, tensor=1)
    with pytest.raises(ValueError, match=r"fsdp 0 .* at least 1"):
        make_mesh(data=1, fsdp=0, tensor=1)


def test_prompts_that_do_not_divide_are_refused():
    check_prompts(mesh(2, 2, 2), 16, 4)
    message = "12 prompts in 2 microbatches .* = 4 devices: make the prompts a multiple of 8"
    with pytest.raises(ValueError, match=re.compile(message)):
        check_prompts(mesh(2, 2, 2), 12, 2)
