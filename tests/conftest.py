"""Every test runs under strict promotion, with warnings as errors and no compilation it can avoid."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=1")

import hypothesis
import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("ogrpo", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ogrpo")
