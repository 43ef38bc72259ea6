"""Arrows run one way: each package is imported in a fresh process, and what came along is checked.

The root loads nothing until one of its names is used.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs import house

ROOT = Path(__file__).parents[1]

OURS = (
    *("core", "policy", "learner", "rollout", "rewards", "tasks", "data", "kernels", "evaluation"),
    *("models", "report", "system", "serving", "config", "loop", "setup", "run", "cli"),
)
HEAVY = ("jax", "flax", "optax", "orbax", "httpx", "tokenizers", "math_verify", "matplotlib")

ALLOWED = {
    "ogrpo.batch": set(),
    "ogrpo.system.extras": set(),
    "ogrpo.system.files": set(),
    "ogrpo.system.lock": set(),
    "ogrpo.system.terminal": set(),
    "ogrpo.system.worker": set(),
    "ogrpo.core": {"jax", "core"},
    "ogrpo.core.algorithms": {"jax", "core"},
    "ogrpo.policy": {"jax", "flax", "optax", "orbax", "policy"},  # flax itself brings optax, orbax
    "ogrpo.learner": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.update": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.warm_start": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.learner.checkpoint": {"jax", "flax", "optax", "orbax", "core", "learner"},
    "ogrpo.rollout": {"rollout"},
    "ogrpo.protocol": set(),
    "ogrpo.rollout.embedded": {"rollout"},
    "ogrpo.rollout.collection": {"rollout"},
    "ogrpo.rollout.vllm": {"rollout", "httpx"},
    "ogrpo.serving.serve": {"rollout", "serving"},
    "ogrpo.rewards": {"rewards", "math_verify"},
    "ogrpo.rewards.math": {"rewards", "math_verify"},
    "ogrpo.rewards.judge": {"rewards"},
    "ogrpo.rewards.reward": {"rewards"},
    "ogrpo.rewards.pool": {"rewards"},
    "ogrpo.data": {"data", "rollout", "tokenizers"},
    "ogrpo.data.batching": {"data", "rollout", "tokenizers"},
    "ogrpo.data.replay": {"data", "rollout", "tokenizers"},
    "ogrpo.data.tokenizer": {"data", "rollout", "tokenizers"},
    "ogrpo.tasks": {"tasks", "rewards"},
    "ogrpo.tasks.gsm8k": {"tasks", "rewards", "math_verify"},
    "ogrpo.tasks.registry": {"tasks", "rewards", "math_verify", "config", "rollout"},
    "ogrpo.tasks.encode": {"tasks", "rewards", "data", "rollout", "tokenizers"},
    "ogrpo.evaluation": {"rollout", "rewards", "evaluation"},
    "ogrpo.report.run_dir": {"report"},
    "ogrpo.report.run_page": {"report", "rewards"},
    "ogrpo.cli.main": {"cli"},
    "ogrpo.cli.env": {"cli"},
    # Kernels know the policy's interface; nothing but experiments knows them.
    "ogrpo.kernels.log_probs": {"jax", "flax", "optax", "orbax", "policy", "kernels"},
}

ARROWS = {
    "system": set(),
    "core": set(),
    "policy": {"system", "batch"},
    "learner": {"system", "batch", "core", "policy"},
    "rollout": {"system", "protocol"},
    "rewards": {"system"},
    "data": {"system", "batch", "protocol"},
    "tasks": {"system", "protocol", "rewards", "data", "config"},
    "evaluation": {"system", "protocol", "rewards"},
    "report": {"system", "rewards"},
    "kernels": {"batch", "policy"},
    "models": {"system", "policy", "data"},
    "serving": {"system", "protocol", "data", "policy", "rollout"},
    "config": {"core", "learner", "rollout", "system"},
}
"""Package -> all others that its files name; what is not here may use those, and they it not."""
ABOVE = {
    "loop": {"setup", "run", "cli", "report"},
    "setup": {"run", "cli"},
    "run": {"cli"},
    "cli": set(),
}
"""Package -> those that its files may not name."""

SCRIPT = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""
NO_JAX = """
import importlib, sys
sys.modules["jax"] = None
for module in ("ogrpo", *sys.argv[1:]):
    importlib.import_module(module)
import ogrpo
try:
    ogrpo.token_loss
except ImportError as error:
    print(error)
"""


def imported(module: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, module], capture_output=True, text=True, check=True
    )
    names = set(json.loads(done.stdout))
    heavy = {name for name in HEAVY if name in names}
    return heavy | {name for name in OURS if f"ogrpo.{name}" in names and name != "system"}


def named(package: str) -> set[str]:
    """Returns the modules that a package's files import, inside functions too."""
    names = set().union(*map(house.imports, house.modules(f"src/ogrpo/{package}")))
    return {name.split(".")[1] for name in names} - {package}


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_names_only_what_lies_below_it(package):
    assert named(package) <= ARROWS[package]


@pytest.mark.parametrize("package", ABOVE)
def test_nothing_names_what_lies_above_it(package):
    assert named(package)
    assert not named(package) & ABOVE[package]


def test_the_command_alone_names_the_planner():
    sources = (ROOT / "src" / "ogrpo").rglob("*.py")
    names = {path.name for path in sources if "ogrpo_plan" in path.read_text()}
    assert names == {"commands.py"}


def test_every_package_has_its_place():
    folders = {path.parent.name for path in (ROOT / "src" / "ogrpo").glob("*/__init__.py")}
    assert folders == {*ARROWS, *ABOVE} == {*OURS}


@pytest.mark.parametrize("module", ALLOWED)
def test_a_package_pulls_in_only_what_lies_below_it(module):
    assert imported(module) <= ALLOWED[module]


def test_the_top_level_loads_nothing_until_a_name_is_used():
    assert imported("ogrpo") == set()


def test_what_needs_no_jax_works_where_there_is_none():
    modules = [module for module, allowed in ALLOWED.items() if "jax" not in allowed]
    assert {"ogrpo.rollout.vllm", "ogrpo.rewards.math", "ogrpo.data.replay"} <= {*modules}
    done = subprocess.run(
        [sys.executable, "-c", NO_JAX, *modules], capture_output=True, text=True, check=True
    )
    assert done.stdout == "ogrpo.token_loss needs jax: pip install ogrpo\n"


def test_the_top_level_offers_the_core():
    import ogrpo
    import ogrpo.core.objectives

    assert ogrpo.token_loss is ogrpo.core.objectives.token_loss
    assert ogrpo.objectives is ogrpo.core.objectives
    assert all(getattr(ogrpo, name) is vars(ogrpo)[name] for name in ogrpo.__all__)
    assert {*ogrpo.__all__} <= {*dir(ogrpo)}
    with pytest.raises(AttributeError, match="no attribute 'token_los'"):
        ogrpo.token_los  # noqa: B018


def test_its_names_are_those_that_a_type_checker_sees():
    tree = ast.parse((ROOT / "src/ogrpo/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and len(node.body) > 1)
    seen = {alias.name for node in block.body for alias in node.names}
    import ogrpo

    assert seen == {*ogrpo.__all__, *ogrpo._TRAINING}
