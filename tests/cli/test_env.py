"""What a report of a bug says about the machine, and what it keeps to itself."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import ogrpo
from ogrpo.cli import env
from ogrpo.system.extras import commit_of

VARIABLES = {
    "OGRPO_API_KEY": "s3cret",
    "VLLM_API_KEY": "s4cret",
    "OGRPO_PROXY": "http://me:s5cret@host:1/",
    "XLA_FLAGS": "--xla_cpu_use_fusion_emitters=false",
    "HOME_ADDRESS": "nobody asked",
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache of 1.5 GiB with a link to itself in it."""
    folder = tmp_path_factory.mktemp("cache")
    (folder / "xla").mkdir()
    with open(folder / "xla" / "program", "wb") as program:
        program.truncate(3 << 29)  # a hole, not bytes
    (folder / "self").symlink_to(folder)
    return folder


@pytest.fixture(scope="module")
def facts(cache):
    """Name -> value."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**VARIABLES, "OGRPO_CACHE_DIR": str(cache)}.items():
            patch.setenv(name, value)
        lines = env.environment().splitlines()
    return {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}


def test_a_report_says_what_runs_here(facts, cache):
    assert facts["ogrpo"].endswith(str(Path(ogrpo.__file__).parent))
    assert facts["python"].endswith(sys.executable)
    assert facts["jax"] == importlib.metadata.version("jax")
    assert facts["devices"] == "cpu: 1 x cpu; processes: 1"
    assert facts["cpu"].endswith("of them for this process")
    assert facts["memory"].split()[1].startswith("GiB")
    assert float(facts["memory"].split()[0]) > 0.5
    assert facts["cache"] == f"{cache}, 1.50 GiB"


def test_keys_stay_where_they_are(facts):
    assert facts["OGRPO_API_KEY"] == facts["VLLM_API_KEY"] == "(hidden)"
    assert facts["OGRPO_PROXY"] == "http://(hidden)@host:1/"
    assert facts["XLA_FLAGS"] == VARIABLES["XLA_FLAGS"]
    assert "HOME_ADDRESS" not in facts
    assert not any("cret" in value for value in facts.values())


def test_a_backend_that_fails_is_told_and_the_rest_is_printed(monkeypatch, capsys):
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_thing")
    assert env.main([]) == 0
    (line,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("devices")]
    assert "jax failed: " in line
    assert "no_such_thing" in line


def test_it_needs_nothing_but_the_package(tmp_path):
    """An interpreter without site-packages sees the sources alone, and no git."""
    source = Path(ogrpo.__file__).parents[1]
    program = "from ogrpo.cli.env import main; main([])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(source), "PATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "jax is not installed" in done.stdout
    assert "no checkout" in done.stdout
    (missing,) = [x for x in done.stdout.splitlines() if x.startswith("not installed")]
    assert {*env.PACKAGES} == {name.strip(",") for name in missing.split()[2:]}


def test_only_a_tracked_file_has_a_commit(tmp_path):
    run = {"check": True, "cwd": tmp_path, "capture_output": True}
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "-q"], **run)
    (tmp_path / "__init__.py").write_text("")
    assert commit_of(tmp_path) == "no checkout"
    subprocess.run(["git", "add", "."], **run)
    subprocess.run(["git", *identity, "commit", "-qm", "first"], **run)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], **run).stdout.decode()
    assert commit_of(tmp_path) == f"commit {commit[:12]}"
    (tmp_path / "__init__.py").write_text("changed")
    assert commit_of(tmp_path).endswith(" with changes")


def test_an_option_is_refused(capsys):
    with pytest.raises(SystemExit):
        env.main(["--verbose"])
    assert "ogrpo env" in capsys.readouterr().err
