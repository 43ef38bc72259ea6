"""`ogrpo env` describes the machine for a bug report and prints no secret."""

import importlib.metadata
from pathlib import Path

import ogrpo
from ogrpo.cli import env

VARIABLES = {
    "OGRPO_API_KEY": "s3cret",
    "VLLM_API_KEY": "s4cret",
    "OGRPO_PROXY": "http://me:s5cret@host:1/",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "HOME_ADDRESS": "nobody asked",
}


def test_a_report_says_what_runs_here_and_hides_keys(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    lines = env.environment().splitlines()
    assert lines[0].endswith(str(Path(ogrpo.__file__).parent))
    assert "device info: cpu-1" in "\n".join(lines)
    assert f"flax: {importlib.metadata.version('flax')}" in lines
    assert {"OGRPO_API_KEY=(hidden)", "VLLM_API_KEY=(hidden)"} < {*lines}
    assert "OGRPO_PROXY=http://(hidden)@host:1/" in lines
    assert f"XLA_FLAGS={VARIABLES['XLA_FLAGS']}" in lines
    assert not any("cret" in line or "HOME_ADDRESS" in line for line in lines)
