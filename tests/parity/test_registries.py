"""Every name that verl and Trinity-RFT register stands in `docs/names.md`, and no other does.

Their wheels are read and not imported: unpack them without what they depend on, and say where.

    pip install --no-deps --target PEERS verl==0.9.1 trinity-rft==0.6.0
    OGRPO_PEERS=PEERS python -m pytest tests/parity/test_registries.py
"""

import ast
import importlib.util
import os
import re
from pathlib import Path

import pytest

from tests import names

PEERS = Path(os.environ.get("OGRPO_PEERS", ""))
pytestmark = pytest.mark.skipif(
    "OGRPO_PEERS" not in os.environ, reason="OGRPO_PEERS does not say where the wheels are unpacked"
)
METRICS = Path(__file__).resolve().parents[2] / "docs/metrics.md"
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
    args = [call.args[0] for call in calls]
    return {arg.value if isinstance(arg, ast.Constant) else enums[arg.attr] for arg in args}


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


def metric_names(column):
    """The names of `docs/metrics.md`'s last table in a column: ours, TRL's, verl's."""
    table = METRICS.read_text().split("## What TRL and verl call them")[1]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {name for line in lines for name in re.findall(r"`([^`]+)`", line[column])}


def written(folder):
    """All texts of a folder's Python files, without the braces' contents of those that are made."""
    nodes = [n for path in folder.rglob("*.py") for n in ast.walk(ast.parse(path.read_text()))]
    plain = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    made = [n.values for n in nodes if isinstance(n, ast.JoinedStr)]
    said = [[v.value if isinstance(v, ast.Constant) else "NAME" for v in parts] for parts in made]
    return plain | {*map("".join, said)}


def test_the_metrics_that_verl_logs_have_the_names_of_our_table():
    """A name is written whole, or behind a prefix that is put before it elsewhere."""
    texts = written(PEERS / "verl/trainer/ppo") | written(PEERS / "verl/workers")
    known = texts | {name for text in texts for name in [text.rpartition("/")[2]]}
    missing = {n for n in metric_names(3) if n not in texts and n.partition("/")[2] not in known}
    assert len(metric_names(3)) > 12
    assert missing == set()


def test_the_metrics_that_trl_logs_have_the_names_of_our_table():
    trl = importlib.util.find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("no TRL here")
    of_transformers = {"loss", "grad_norm"}
    texts = written(Path(trl.origin).parent / "trainer")
    assert len(metric_names(2)) > 10
    assert metric_names(2) - of_transformers - texts == set()
