"""The interpreters of the three systems: this one, and a virtual environment for each peer."""

import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.environments import python_with

# Tunix is compiled by the same XLA as ogrpo.
SHARED = tuple(f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
PEERS = {
    "tunix": ("google-tunix==0.1.7", *SHARED),
    "trl": ("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0", "peft==0.21.2"),
}


def find_python(system: str, folder: Path) -> str:
    """The interpreter of a system; a peer's environment is made if it is not there."""
    return python_with(folder, system, PEERS[system]) if system in PEERS else sys.executable
