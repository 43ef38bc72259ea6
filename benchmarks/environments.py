"""Virtual environments for the peers, which are no dependencies of ogrpo."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from ogrpo.setup.cache import cache_path


def default_folder() -> Path:
    """Beside what runs keep."""
    return cache_path() / "benchmarks"


def python_with(folder: Path, name: str, packages: tuple[str, ...]) -> str:
    """The interpreter of an environment with these packages, by this Python; made if not there."""
    digest = hashlib.sha256("\n".join((sys.version, *packages)).encode()).hexdigest()
    return made(folder, name, digest, sys.executable, packages)


def made(folder: Path, name: str, digest: str, base: str, packages: tuple[str, ...]) -> str:
    """The interpreter of the environment NAME-DIGEST, made by `base` if it is not complete."""
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
