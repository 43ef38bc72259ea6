"""Every name that verl and Trinity-RFT register stands in `docs/names.md`, and no other does.

Their wheels are read and not imported: unpack them without what they depend on, and say where.

    pip install --no-deps --target PEERS verl==0.9.1 trinity-rft==0.6.0
    OGRPO_PEERS=PEERS python -m pytest tests/parity/test_registries.py
"""

import ast
import os
from pathlib import Path

import pytest

from tests import names

PEERS = Path(os.environ.get("OGRPO_PEERS", ""))
pytestmark = pytest.mark.skipif(
    "OGRPO_PEERS" not in os.environ, reason="OGRPO_PEERS does not say where the wheels are unpacked"
)
ALGOS, CORRECTION = "verl/trainer/ppo/core_algos.py", "verl/trainer/config/algorithm.py"


def tree(path):
    return ast.parse((PEERS / path).read_text())


def registered(path, decorator):
    """The names under which a file's functions are registered, enums by their values."""
    module = tree(path)
    enums = {
        node.targets[0].id: ast.literal_eval(node.value)
        for kind in ast.walk(module)
        if isinstance(kind, ast.ClassDef)
        for node in kind.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }
    calls = [
        call
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef)
        for call in node.decorator_list
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") == decorator
    ]
    return {
        arg.value if isinstance(arg := call.args[0], ast.Constant) else enums[arg.attr]
        for call in calls
    }


def mapped(path):
    """The keys of the `default_mapping` of a registry."""
    mappings = [
        keyword.value
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "default_mapping"
    ]
    return {key.value for mapping in mappings for key in mapping.keys}


def presets(path):
    """The class methods of `RolloutCorrectionConfig`."""
    kinds = [n for n in ast.walk(tree(path)) if getattr(n, "name", "") == "RolloutCorrectionConfig"]
    return {n.name for n in kinds[0].body if isinstance(n, ast.FunctionDef) and n.decorator_list}


def rows(project, table):
    """Their names in a table, but for those that are settings of another."""
    named = {r.theirs for r in names.rows() if r.project == project and r.table == table}
    return {name for name in named if "=" not in name}


VERL, TRINITY = "verl 0.9", "Trinity-RFT 0.6"
ELSEWHERE = {
    "ppo", "opmd", "dpo", "sft", "mix", "gspo", "topr", "cispo", "mix_chord", "sppo", "rec", "sapo",
}  # fmt: skip
"""Losses of Trinity-RFT that have the name of the algorithm type that takes them."""
AFTER = {"m2po", "clipb", "clipv"}
"""Of Trinity-RFT's sources after 0.6, or registered by another way."""


@pytest.mark.parametrize(
    ("project", "table", "read"),
    [
        (VERL, "loss_mode", lambda: registered(ALGOS, "register_policy_loss")),
        (VERL, "adv_estimator", lambda: registered(ALGOS, "register_adv_est")),
        (VERL, "rollout_correction", lambda: presets(CORRECTION)),
        (TRINITY, "algorithm_type", lambda: mapped("trinity/algorithm/__init__.py")),
        (TRINITY, "policy_loss_fn", lambda: mapped("trinity/algorithm/policy_loss_fn/__init__.py")),
        (TRINITY, "advantage_fn", lambda: mapped("trinity/algorithm/advantage_fn/__init__.py")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_tables_names_are_those_that_they_register(project, table, read):
    theirs = read() - (ELSEWHERE if table == "policy_loss_fn" else set())
    assert theirs
    assert rows(project, table) - AFTER == theirs - AFTER
