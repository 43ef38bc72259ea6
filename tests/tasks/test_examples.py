"""The examples in the docstrings are true."""

import doctest
import importlib
from pkgutil import walk_packages

import pytest

PACKAGES = ("data", "tasks", "rewards", "evaluation")


@pytest.mark.parametrize("package", [f"ogrpo.{name}" for name in PACKAGES])
def test_examples(package):
    folders = importlib.import_module(package).__path__
    modules = [module.name for module in walk_packages(folders, f"{package}.")]
    results = [doctest.testmod(importlib.import_module(name)) for name in modules]
    assert sum(result.attempted for result in results) > 0
    assert sum(result.failed for result in results) == 0
