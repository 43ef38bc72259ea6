"""Arrows run one way: packages are imported in a fresh process, and what came along is checked.

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

OURS = {path.parent.name for path in (ROOT / "src" / "ogrpo").glob("*/__init__.py")}
HEAVY = (
    *("jax", "flax", "optax", "orbax", "httpx", "tokenizers", "math_verify", "matplotlib"),
    *("requests", "transformers"),
)

OF_POLICY = {"jax", "flax", "optax", "orbax", "policy"}  # flax itself brings optax, orbax
ALLOWED = {
    # The root, which comes with each, loads nothing either.
    "batch protocol system.extras system.files system.lock system.terminal system.worker"
    " system.values": set(),
    "core core.algorithms": {"jax", "core"},
    "policy": OF_POLICY,
    "learner learner.update learner.checkpoint": (OF_POLICY - {"policy"} | {"core", "learner"}),
    "rollout rollout.embedded rollout.collection": {"rollout"},
    "rollout.vllm": {"rollout", "httpx"},
    "serving.serve": {"rollout", "serving"},
    "rewards rewards.math rewards.judge rewards.reward rewards.pool": {"rewards"},
    "data data.batching data.replay data.tokenizer": {"data", "rollout", "tokenizers"},
    "tasks tasks.gsm8k": {"tasks", "rewards"},
    "tasks.registry": {"tasks", "rewards"},
    "tasks.encode": {"tasks", "rewards", "data", "rollout", "tokenizers"},
    "evaluation": {"rollout", "rewards", "tasks", "evaluation"},
    "config.train config.conditions": {"config", "rollout"},
    "config.method": {"config", "rollout", "core", "jax"},
    "report.run_dir": {"report"},
    "report.run_page": {"report", "rewards"},
    "cli.main cli.env": {"cli"},
    # Kernels know the policy's interface; nothing but experiments knows them.
    "kernels.log_probs": OF_POLICY | {"kernels"},
}
"""Modules, imported together, and all that may come with them."""

ALL = {*OURS, "batch", "protocol"}
ARROWS: dict[str, set[str]] = {
    "system": set(),
    "core": set(),
    "policy": {"system", "batch"},
    "learner": {"system", "batch", "core", "policy"},
    "rollout": {"system", "protocol"},
    "rewards": {"system"},
    "data": {"system", "batch", "protocol"},
    "tasks": {"system", "protocol", "rewards", "data"},
    "evaluation": {"system", "protocol", "rewards", "tasks"},
    "report": {"system", "rewards"},
    "kernels": {"batch", "policy"},
    "models": {"system", "policy", "data"},
    "serving": {"system", "protocol", "data", "policy", "rollout"},
    "config": {"core", "rollout", "system"},
    "loop": ALL - {"setup", "run", "cli", "report"},
    "setup": ALL - {"run", "cli"},
    "run": ALL - {"cli"},
    "cli": ALL,
}
"""Package -> all others that its files may name."""

SCRIPT = """
import importlib, json, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
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


def python(program, *arguments):
    return subprocess.check_output([sys.executable, "-c", program, *arguments], text=True)


def imported(*modules: str) -> set[str]:
    names = set(json.loads(python(SCRIPT, *modules)))
    heavy = {name for name in HEAVY if name in names}
    return heavy | {name for name in OURS if f"ogrpo.{name}" in names and name != "system"}


def named(package: str) -> set[str]:
    """Returns the modules that a package's files import, inside functions too."""
    folder = package if package == "kernels" else f"src/ogrpo/{package}"  # behind a link
    names = set().union(*map(house.imports, house.modules(folder)))
    return {name.split(".")[1] for name in names} - {package}


@pytest.mark.parametrize("package", ARROWS)
def test_a_package_names_only_what_lies_below_it(package):
    assert named(package) <= ARROWS[package]
    assert named(package) or not ARROWS[package]


def test_the_command_alone_names_the_planner():
    sources = (ROOT / "src" / "ogrpo").rglob("*.py")
    names = {path.name for path in sources if "ogrpo_plan" in path.read_text()}
    assert names == {"commands.py"}


def test_every_package_has_its_place():
    assert {*ARROWS} == OURS


@pytest.mark.parametrize("modules", ALLOWED)
def test_a_package_pulls_in_only_what_lies_below_it(modules):
    assert imported(*(f"ogrpo.{name}" for name in modules.split())) <= ALLOWED[modules]


def test_what_needs_no_jax_works_where_there_is_none():
    free = " ".join(modules for modules, allowed in ALLOWED.items() if "jax" not in allowed)
    modules = [f"ogrpo.{name}" for name in free.split()]
    assert {"ogrpo.rollout.vllm", "ogrpo.rewards.math", "ogrpo.data.replay"} <= {*modules}
    assert python(NO_JAX, *modules) == "ogrpo.token_loss needs jax: pip install ogrpo\n"


def test_the_top_level_offers_the_core_and_what_a_type_checker_sees():
    import ogrpo
    import ogrpo.core.objectives

    assert ogrpo.token_loss is ogrpo.core.objectives.token_loss
    assert ogrpo.objectives is ogrpo.core.objectives
    assert all(getattr(ogrpo, name) is vars(ogrpo)[name] for name in ogrpo.__all__)
    assert {*ogrpo.__all__} <= {*dir(ogrpo)}
    with pytest.raises(AttributeError, match="no attribute 'token_los'"):
        ogrpo.token_los  # noqa: B018
    tree = ast.parse((ROOT / "src/ogrpo/__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and len(node.body) > 1)
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen == {*ogrpo.__all__, *ogrpo._TRAINING}
