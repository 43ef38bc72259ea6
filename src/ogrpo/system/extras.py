"""The package as it is installed: what each extra brings, and the commit of its files.

    pip install ogrpo            the algebra: JAX and NumPy, whichever versions you have
    pip install 'ogrpo[train]'   everything else: model, trainer, rollouts, rewards, command line

`pyproject.toml` says the versions; `tests/system/test_extras.py` holds the two to each other.
"""

import subprocess
from functools import cache
from importlib.util import find_spec
from pathlib import Path

EXTRAS = {
    "": ("jax", "numpy"),
    "train": (
        *("annotated_types", "chex", "cloudpickle", "flax", "gguf", "httpx"),
        *("huggingface_hub", "jinja2", "loky", "math_verify", "matplotlib"),
        *("ml_dtypes", "optax", "orbax", "platformdirs", "pyarrow", "rich", "safetensors"),
        *("scipy", "tokenizers", "tyro", "yaml"),
    ),
    "hub": ("datasets",),
    "track": ("tensorboardX", "wandb"),
}
"""Extra -> the modules that it brings and that this package imports; "" is the package alone."""


class MissingExtra(ImportError):
    """An extra that is not installed; the message says who needs it and how to install it."""


def needs(who: str, extra: str) -> None:
    """Raises MissingExtra where an extra is not installed.

    Args:
      who: the command or name that needs it, such as "ogrpo train".
      extra: one of `EXTRAS`.

    Raises:
      MissingExtra: a module of the extra is not there; every such module is named.

    >>> needs("the algebra", "")
    """
    missing = [module for module in EXTRAS[extra] if not is_installed(module)]
    if missing:
        what = f"'ogrpo[{extra}]'" if extra else "ogrpo"
        raise MissingExtra(f"{who} needs {', '.join(missing)}: pip install {what}")


def is_installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    try:
        return find_spec(module) is not None
    except ValueError:  # someone has put a module without a specification, or None, in its place
        return False


SECONDS = 120
"""How long a command that is asked for a fact may take."""


@cache
def commit_of(folder: Path) -> str:
    """Returns the commit of a package's folder in words, and whether its files were changed.

    It is that at the first call: what a process has imported does not change after it.
    A wheel may lie inside somebody's repository: only where git has this file is it our commit.
    """
    if output_of("git", "-C", str(folder), "ls-files", "--error-unmatch", "__init__.py") is None:
        return "no checkout"
    commit = output_of("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    changed = output_of("git", "-C", str(folder), "status", "--porcelain", "--", ".")
    return f"commit {commit}{' with changes' if changed else ''}"


def output_of(*command: str) -> str | None:
    """Returns what a command prints, stripped; None where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
