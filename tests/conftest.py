"""Every test runs under strict promotion, with warnings as errors and no compilation it can avoid."""

import os

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


def pytest_report_header() -> list[str]:
    missing = [name for name in ("torch", "transformers", "trl") if find_spec(name) is None]
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"parity suites left out, no {names} here: pip install -e '.[test,parity]'"]
