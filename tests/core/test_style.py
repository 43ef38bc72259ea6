"""The core's own promises: small functions, no string that decides, examples that run."""

import ast
import doctest
import importlib
import statistics

import jax.numpy as jnp
import pytest

from docs import house

FILES = house.modules("src/ogrpo/core")
FUNCTIONS = [(file.path.stem, node) for file in FILES for node in house.functions([file])]
MODULES = [
    ".".join(file.path.relative_to(house.ROOT / "src").with_suffix("").parts)
    for file in FILES
    if file.path.stem != "__init__"
]


def test_function_bodies_are_short():
    sizes = {f"{module}.{node.name}": house.body_lines(node) for module, node in FUNCTIONS}
    assert statistics.median(sizes.values()) <= 8
    assert {name: size for name, size in sizes.items() if size > 25} == {}


def test_no_string_decides_what_is_computed():
    for module, node in FUNCTIONS:
        for compare in (n for n in ast.walk(node) if isinstance(n, ast.Compare)):
            for side in (compare.left, *compare.comparators):
                is_text = isinstance(side, ast.Constant) and isinstance(side.value, str)
                assert not is_text, f"{module}.{node.name}: {ast.unparse(compare)}"


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_run(module):
    tested = importlib.import_module(module)
    assert doctest.testmod(tested, extraglobs={"jnp": jnp}).failed == 0
