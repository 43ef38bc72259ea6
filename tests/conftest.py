"""Every test runs under strict promotion, with warnings as errors and no compilation it can avoid."""

import os
from importlib.util import find_spec
from pathlib import Path

import hypothesis
import platformdirs
import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Nearly all of the time would be spent on code that runs once: these compile in a fifth of it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
)

# Most of the suite's time is compilation: programs are kept between modules, runs and Pythons, by
# worker, as JAX does not write them atomically.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(
        Path(os.environ.get("OGRPO_CACHE_DIR") or platformdirs.user_cache_path("ogrpo"))
        / "tests"
        / os.environ.get("PYTEST_XDIST_WORKER", "alone")
    ),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
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


# The files that compile the most or run the command, beside single tests that are marked themselves.
SLOW = (
    *(
        "exact/test_*.py",
        "properties",
        "kernels",
        "core/test_objectives.py",
        "core/test_names_formulas.py",
        "trainer/test_loop_lora.py",
        "trainer/test_loss_mask.py",
    ),
    *("policy/test_flops.py", "policy/test_lora.py", "policy/test_packing.py"),
    *("policy/test_cache.py", "policy/test_sampler_halving.py", "learner/test_packed_update.py"),
    *("learner/test_precision.py", "learner/test_sharding.py", "experiments/test_bounds.py"),
    *(
        "experiments/test_gsm8k.py",
        "trainer/test_gsm8k_mesh.py",
        "experiments/test_reuse.py",
        "experiments/test_kept_rows.py",
        "experiments/test_studies.py",
        "experiments/test_ablation.py",
        "experiments/test_variance.py",
        "experiments/test_staleness.py",
        "experiments/grid/test_runner.py",
        "experiments/grid/test_train.py",
        "trainer/test_servers.py",
    ),
    *(
        f"rollout/vllm/test_{name}.py"
        for name in ("faults", "healing", "schedules", "broadcast", "adapters")
    ),
    *(f"trainer/test_{name}.py" for name in ("ppo", "credit", "kernels")),
    *("policy/test_value.py", "experiments/test_rec.py", "experiments/test_operating_points.py"),
    *("learner/test_cut_by_tokens.py", "learner/test_offload.py", "benchmarks/test_sampler.py"),
    "trainer/test_reference_offload.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    found = {pattern: {*here.glob(pattern)} for pattern in SLOW}
    assert all(found.values()), f"these match no file: {[p for p in SLOW if not found[p]]}"
    slow = set.union(*found.values())
    for item in items:
        if slow & {item.path, *item.path.parents}:
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> list[str]:
    missing = [name for name in ("torch", "transformers", "trl") if find_spec(name) is None]
    if not missing:
        return []
    names = ", ".join(missing)
    return [f"parity suites left out, no {names} here: pip install -e '.[test,parity]'"]
