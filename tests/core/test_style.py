"""The core's own promises: small functions, a docstring for each, no more imports than it says."""

import ast
import doctest
import importlib
import statistics
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import ogrpo.core

CORE = Path(ogrpo.core.__file__).parent
FILES = sorted(CORE.rglob("*.py"))
MODULES = [
    ".".join(p.relative_to(CORE).with_suffix("").parts) for p in FILES if p.stem != "__init__"
]


def functions():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.stem, node


def body_lines(node):
    """Lines of code from the first statement after the docstring to the last."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_function_bodies_are_short():
    sizes = {f"{module}.{node.name}": body_lines(node) for module, node in functions()}
    assert statistics.median(sizes.values()) <= 8
    assert {name: size for name, size in sizes.items() if size > 25} == {}


def test_every_public_function_says_what_it_computes():
    for module, node in functions():
        if not node.name.startswith("_") and node.col_offset == 0:
            assert ast.get_docstring(node), f"{module}.{node.name}"


def test_no_string_decides_what_is_computed():
    for module, node in functions():
        for compare in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
            for side in (compare.left, *compare.comparators):
                is_text = isinstance(side, ast.Constant) and isinstance(side.value, str)
                assert not is_text, f"{module}.{node.name}: {ast.unparse(compare)}"


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    tested = importlib.import_module(f"ogrpo.core.{module}")
    assert doctest.testmod(tested, extraglobs={"jnp": jnp}).failed == 0


def test_importing_the_package_brings_in_the_core_and_nothing_else():
    heavy = [
        "flax",
        "optax",
        "orbax",
        "tokenizers",
        "httpx",
        "requests",
        "transformers",
        "math_verify",
    ]
    code = f"import sys; from ogrpo import *; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
