"""Runs that are killed, stormed and soaked: what a long run meets, in minutes.

python -m benchmarks.chaos kills --runs 30 --seed 0
"""

import os
import sys
from pathlib import Path

import platformdirs
import tyro

CACHE = Path(os.environ.get("OGRPO_CACHE_DIR") or platformdirs.user_cache_path("ogrpo"))
# Before JAX is imported: programs are compiled cheaply and kept, as most lives are short.
for name, value in {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    " --xla_cpu_parallel_codegen_split_count=1",
    "JAX_COMPILATION_CACHE_DIR": str(CACHE / "chaos"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}.items():
    os.environ.setdefault(name, value)

from benchmarks.chaos import kills, soak, storm  # noqa: E402

if __name__ == "__main__":
    studies = {"kills": kills.study, "storm": storm.study, "soak": soak.study}
    prog = "python -m benchmarks.chaos"
    wrong = tyro.extras.subcommand_cli_from_dict(studies, prog=prog, description=__doc__)
    sys.exit(min(1, wrong))
