"""A whole run on eight devices, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ogrpo.report.run_dir import RunDir

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SMALL = (
    "--data.train=64 --model.random=tiny --rollout.group-size=4 --rollout.max-tokens=6"
    " --schedule.prompts=8 --schedule.steps=2 --schedule.updates-per-batch=2 --optimizer.microbatches=2"
    " --knobs.beta=0.1 --override.mask-zero-variance --certificate.delta=0.05 --certificate.completions=1"
    " --evaluation.prompts=6"
    " --mesh.data=2 --mesh.fsdp=2 --mesh.tensor=2"
).split()


def test_a_run_on_eight_devices_samples_updates_certifies_and_saves(tmp_path):
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "gsm8k", *SMALL, f"--run-dir={tmp_path / 'run'}"],
        env={**os.environ, "XLA_FLAGS": flags, "OGRPO_CACHE_DIR": str(tmp_path / "cache")},
        cwd=ROOT, capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    params, moments, total = map(
        float, re.findall(r"([\d.]+) MiB", done.stdout[done.stdout.index("mesh data 2") :])[:3]
    )
    assert params + moments < 0.3 * total
    assert "repeated, layers.self_attn.k_proj.weight: 1 kv_heads cannot be cut" in done.stdout
    records = RunDir(tmp_path / "run").read_metrics()
    assert [record["step"] for record in records] == [0, 1, 2]
    assert records[-1]["mismatch"] < 1e-4 < records[-1]["entropy"]
    assert (tmp_path / "run" / "model" / "config.json").is_file()
