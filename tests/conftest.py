"""Every test runs under strict promotion, with warnings as errors and no compilation it can avoid."""

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import platformdirs
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# XLA's threads wait for work by spinning, which takes the cores from the other workers.
if (worker := os.environ.get("PYTEST_XDIST_WORKER")) and hasattr(os, "sched_setaffinity"):
    cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.sched_setaffinity(0, cores[int(worker.removeprefix("gw")) :: workers] or cores)

# Nearly all of the time would be spent on code that runs once: these compile in a fifth of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

# Most of the suite's time is compilation: every program is kept, for all modules, workers, commands
# and Pythons. To write one takes a millisecond, to compile the smallest ten.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(Path(os.environ.get("OGRPO_CACHE_DIR") or platformdirs.user_cache_path("ogrpo")) / "tests"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("ogrpo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ogrpo")


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs():
    """Keeps a long session within a laptop's memory."""
    yield
    jax.clear_caches()


def pytest_collection_finish():
    """A seventh of the suite's time went into looking for garbage among what stays."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_report_header() -> list[str]:
    missing = [name for name in ("torch", "transformers", "trl") if find_spec(name) is None]
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"parity suites left out, no {names} here: pip install -e '.[test,parity]'"]
