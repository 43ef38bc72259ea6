"""The interpreters of the engines: this one, and a virtual environment for each peer."""

import hashlib
import os
import sys
from pathlib import Path

from benchmarks.environments import made, python_with

TRANSFORMERS = ("torch==2.13.0", "transformers==5.23.0")
# The environment of the tests against real servers (tests/server/run.sh), which is shared.
VLLM = Path(__file__).parents[2] / "tests" / "server" / "requirements.txt"


def default_folder() -> Path:
    """Where tests/server/run.sh keeps its environment too."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ogrpo"


def find_python(engine: str, folder: Path) -> str:
    """The interpreter of an engine; a peer's environment is made if it is not there."""
    if engine == "ogrpo":
        return sys.executable
    if engine == "transformers":
        return python_with(folder, engine, TRANSFORMERS)
    base = os.environ.get("OGRPO_VLLM_BASE", "python3.11")
    packages = ("--no-deps", "--require-hashes", "-r", str(VLLM))
    return made(folder, "vllm", hashlib.sha256(VLLM.read_bytes()).hexdigest(), base, packages)
