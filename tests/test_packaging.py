"""The project's own files agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())
README = (ROOT / "README.md").read_text()


def test_pixi_has_the_environments_and_platforms():
    assert set(PIXI["environments"]) == {
        "default",
        "test",
        "gpu",
        "serve",
        "serve-ascend",
        "proofs",
    }
    assert PIXI["workspace"]["platforms"] == ["linux-64", "linux-aarch64", "osx-arm64"]
    assert PIXI["workspace"]["name"] == PROJECT["name"]


def test_pixi_repeats_no_dependency_of_pyproject():
    """Every PyPI dependency is this package with an extra, so that pins live in one place."""
    tables = [PIXI["pypi-dependencies"]]
    tables += [f.get("pypi-dependencies", {}) for f in PIXI["feature"].values()]
    assert all(set(table) <= {"ogrpo"} for table in tables)
    extras = {extra for t in tables for spec in t.values() for extra in spec.get("extras", [])}
    assert extras == {"train", "test", "gpu", "serve", "serve-ascend"}
    assert extras <= set(PROJECT["optional-dependencies"])
    assert PIXI["dependencies"]["python"] == PROJECT["requires-python"]


@pytest.mark.parametrize("task", ["gsm8k", "test"])
def test_pixi_and_readme_run_the_same(task):
    tasks = {**PIXI["tasks"], **PIXI["feature"]["test"]["tasks"]}
    command = tasks[task].removeprefix("python ")
    assert f".venv/bin/python {command}" in README
    assert f"pixi run {task}" in README


def test_flaxs_bound_on_jax_is_in_the_extra_that_needs_flax():
    extras = PROJECT["optional-dependencies"]
    assert [d for d in extras["train"] if d.startswith("jax")] == ["jax>=0.10,<0.11.1"]
    assert PROJECT["dependencies"] == ["jax>=0.8", "numpy>=2.0"]
    assert not any("<" in d for d in (*PROJECT["dependencies"], *extras["gpu"]))
    assert "ogrpo[train]" in extras["test"]


def test_every_python_that_is_promised_is_named():
    versions = {c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)}
    assert versions == {"3.11", "3.12", "3.13"}
    assert all(version in README for version in versions)


def test_ci_runs_the_readmes_test_command():
    assert "README.md" in (ROOT / ".ci" / "run").read_text()
    blocks = re.findall(r"```sh\n# (.*)\n(.*)\n```", README)
    assert dict(blocks).keys() == {"the main job", "the tests"}


def test_the_metrics_table_names_what_a_run_writes():
    import numpy as np

    from ogrpo.loop import PHASES, heldout_record
    from ogrpo.loop.parts import HeldoutVerdicts

    table = (ROOT / "docs/metrics.md").read_text()
    ones = np.ones((2, 8), np.float32)
    verdicts = HeldoutVerdicts(ones, {"NAME": ones}, "NAME", 0.0, 0.0)
    for key in heldout_record(verdicts, verdicts, 1.0):
        assert key.removesuffix("/low").removesuffix("/high") in table
    assert ",".join(PHASES) in table


def test_the_usual_ci_calls_our_gate_and_nothing_else():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    steps = workflow["jobs"]["gate"]["steps"]
    assert [step["run"] for step in steps if "run" in step][-1] == ".ci/run"
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text())


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


@pytest.mark.parametrize("page", ["README.md", "llms.txt"])
def test_links_of_a_page_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text())
    local = [link for link in links if "://" not in link]
    assert len(local) > 10
    assert [link for link in local if not (ROOT / link).exists()] == []


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *ROOT.glob("docs/*.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page):
    named = re.findall(
        r"`((?:src|tests|docs|experiments|benchmarks|kernels|proofs)/[\w./-]+)`", page.read_text()
    )
    assert [file for file in named if not (ROOT / file).exists() and "NAME" not in file] == []
