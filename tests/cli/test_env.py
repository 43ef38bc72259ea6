"""What a report of a bug says about the machine, and what it keeps to itself."""

import importlib.metadata
import sys
from pathlib import Path

import pytest

import ogrpo
from ogrpo.cli import env

VARIABLES = {
    "OGRPO_API_KEY": "s3cret",
    "VLLM_API_KEY": "s4cret",
    "OGRPO_PROXY": "http://me:s5cret@host:1/",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "HOME_ADDRESS": "nobody asked",
}


@pytest.fixture(scope="module")
def facts():
    """Name -> value."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in VARIABLES.items():
            patch.setenv(name, value)
        lines = env.environment().splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_a_report_says_what_runs_here(facts):
    assert facts["ogrpo"].endswith(str(Path(ogrpo.__file__).parent))
    assert facts["python"].endswith(sys.executable)
    assert facts["jax"] == importlib.metadata.version("jax")
    assert facts["devices"] == "cpu: 1 x cpu; processes: 1"
    assert facts["cpu"].endswith("of them for this process")
    assert facts["memory"].split()[1].startswith("GiB")
    assert float(facts["memory"].split()[0]) > 0.5


def test_keys_stay_where_they_are(facts):
    assert facts["OGRPO_API_KEY"] == facts["VLLM_API_KEY"] == "(hidden)"
    assert facts["OGRPO_PROXY"] == "http://(hidden)@host:1/"
    assert facts["XLA_FLAGS"] == VARIABLES["XLA_FLAGS"]
    assert "HOME_ADDRESS" not in facts
    assert not any("cret" in value for value in facts.values())
