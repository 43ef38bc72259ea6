"""Every one of the twenty-eight properties names at least one test."""

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def docstrings():
    for path in Path(__file__).parent.glob("test_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield ast.get_docstring(node) or ""


def test_the_properties_are_all_here():
    numbers = {int(n) for doc in docstrings() for n in re.findall(r"^Property (\d+)", doc)}
    assert numbers == set(range(1, 29))
