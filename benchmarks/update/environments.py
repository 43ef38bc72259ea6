"""The interpreters of the three systems: this one, and a virtual environment for each peer."""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs

# Tunix is compiled by the same XLA as ogrpo.
SHARED = tuple(f"{name}=={version(name)}" for name in ("jax", "jaxlib", "flax", "optax", "numpy"))
PEERS = {
    "tunix": ("google-tunix==0.1.7", *SHARED),
    "trl": ("torch==2.13.0", "trl==1.16.0", "transformers==5.23.0"),
}


def default_folder() -> Path:
    """`OGRPO_CACHE_DIR`, or else the user's cache folder for this platform."""
    chosen = os.environ.get("OGRPO_CACHE_DIR")
    return (Path(chosen) if chosen else platformdirs.user_cache_path("ogrpo")) / "benchmarks"


def find_python(system: str, folder: Path) -> str:
    """The interpreter of a system; a peer's environment is made if it is not there."""
    if system not in PEERS:
        return sys.executable
    wanted = "\n".join((sys.version, *PEERS[system]))
    home = folder / f"{system}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    python, marker = home / "bin" / "python", home / "complete"
    if not marker.is_file():
        shutil.rmtree(home, ignore_errors=True)
        print(f"making {home} with {' '.join(PEERS[system])}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PEERS[system]], check=True)
        marker.touch()
    return str(python)
