"""The examples in the docstrings are true."""

import doctest
import importlib
from pkgutil import walk_packages

import jax.numpy as jnp
import pytest

PLACES = "data tasks rewards evaluation core policy policy.flops policy.params".split()
"""Packages with all that they hold, and modules, each of which has an example."""


@pytest.mark.parametrize("place", [f"ogrpo.{name}" for name in PLACES])
def test_examples(place):
    outer = importlib.import_module(place)
    inner = walk_packages(getattr(outer, "__path__", ()), f"{place}.")
    modules = [outer, *(importlib.import_module(module.name) for module in inner)]
    results = [doctest.testmod(module, extraglobs={"jnp": jnp}) for module in modules]
    assert sum(result.attempted for result in results) > 0
    assert sum(result.failed for result in results) == 0
