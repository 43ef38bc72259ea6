"""Where results that are costly to make again are kept: compiled programs and warm starts."""

import os
from pathlib import Path

import jax
import platformdirs


def cache_path() -> Path:
    """`OGRPO_CACHE_DIR`, or else the user's cache folder for this platform."""
    chosen = os.environ.get("OGRPO_CACHE_DIR")
    return Path(chosen) if chosen else platformdirs.user_cache_path("ogrpo")


def keep_compiled_programs() -> None:
    """Keeps XLA's programs between runs, unless JAX was already told where."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_path() / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
