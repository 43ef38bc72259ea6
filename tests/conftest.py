"""Every test runs under strict promotion, with warnings as errors and no compilation it can avoid."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

from importlib.util import find_spec

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("ogrpo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ogrpo")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Keeps a long session within a laptop's memory."""
    yield
    jax.clear_caches()


# What does not depend on the Python version, or takes minutes: left out of the fast suite.
SLOW = ("exact", "properties", "proofs", "core/test_objectives", "experiments/test_gsm8k")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        place = item.path.relative_to(here).as_posix()
        if place.startswith(SLOW) or "test_bounds" in place:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> list[str]:
    missing = [name for name in ("torch", "transformers", "trl") if find_spec(name) is None]
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"parity suites left out, no {names} here: pip install -e '.[test,parity]'"]
