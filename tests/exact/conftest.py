"""Exact enumeration is float64; nothing here is random and nothing is approximate."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def float64():
    with jax.enable_x64():
        yield
