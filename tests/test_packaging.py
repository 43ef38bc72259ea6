"""The project's own files agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PIXI = tomllib.loads((ROOT / "pixi.toml").read_text())
README = (ROOT / "README.md").read_text()


def test_the_conda_recipe_is_of_this_package():
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    needs, entry = recipe["requirements"], recipe["build"]["python"]["entry_points"]
    spaced = {re.sub(r"^([\w.-]+)(?=[<>=])", r"\1 ", x) for x in PROJECT["dependencies"]}
    train = PROJECT["optional-dependencies"]["train"]
    assert recipe["context"]["version"] == PROJECT["version"]
    assert {*needs["run"]} == {f"python {PIXI['dependencies']['python']}", *spaced}
    builds = PYPROJECT["build-system"]["requires"]
    assert [x.replace(" ", "") for x in needs["host"][2:]] == builds
    assert needs["host"][:2] == [needs["run"][0], "pip"]
    assert [x.replace(" ", "") for x in needs["run_constraints"]] == train[1:]  # but for jax
    assert train[0].startswith("jax")
    scripts = dict(line.split(" = ") for line in entry)
    assert scripts == PROJECT["scripts"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()


@pytest.mark.parametrize("task", ["gsm8k", "test"])
def test_pixi_and_readme_run_the_same(task):
    tasks = {**PIXI["tasks"], **PIXI["feature"]["test"]["tasks"]}
    command = tasks[task].removeprefix("python ")
    assert f".venv/bin/python {command}" in README
    assert f"pixi run {task}" in README


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
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## {citation['version']} - {citation['date-released']}\n" in changes


def test_the_package_has_one_copy_of_the_kernels():
    link = ROOT / "src" / "ogrpo" / "kernels"
    assert link.resolve() == ROOT / "kernels"
