"""The interpreters of the engines: this one, and a virtual environment for each peer."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

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
    if engine == "vllm":
        base = os.environ.get("OGRPO_VLLM_BASE", "python3.11")
        packages = ("--no-deps", "--require-hashes", "-r", str(VLLM))
        return _make(folder, "vllm", hashlib.sha256(VLLM.read_bytes()).hexdigest(), base, packages)
    wanted = "\n".join((sys.version, *TRANSFORMERS))
    digest = hashlib.sha256(wanted.encode()).hexdigest()
    return _make(folder, "transformers", digest, sys.executable, TRANSFORMERS)


def _make(folder: Path, name: str, digest: str, base: str, packages: tuple[str, ...]) -> str:
    short = digest[:12]
    home = folder / f"{name}-{short}"
    python, marker = home / "bin" / "python", home / ".complete"
    if not marker.is_file() or marker.read_text().strip() != short:
        shutil.rmtree(home, ignore_errors=True)
        print(f"making {home}", file=sys.stderr)
        subprocess.run([base, "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
        marker.write_text(short)
    return str(python)
