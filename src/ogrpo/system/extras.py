"""What each extra of the package brings; whoever misses one is told its name.

    pip install ogrpo            the algebra: JAX and NumPy, whichever versions you have
    pip install 'ogrpo[train]'   everything else: model, trainer, rollouts, rewards, command line

`pyproject.toml` says the versions; `tests/system/test_extras.py` holds the two to each other.
"""

from importlib.util import find_spec

EXTRAS = {
    "": ("jax", "numpy"),
    "train": (
        *("annotated_types", "chex", "cloudpickle", "flax", "gguf", "httpx"),
        *("huggingface_hub", "jinja2", "loky", "math_verify", "matplotlib"),
        *("ml_dtypes", "optax", "orbax", "platformdirs", "pyarrow", "rich", "safetensors"),
        *("tokenizers", "tyro", "yaml"),
    ),
    "hub": ("datasets",),
    "track": ("mlflow", "tensorboardX", "trackio", "wandb"),
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
    missing = [module for module in EXTRAS[extra] if not _is_there(module)]
    if missing:
        what = f"'ogrpo[{extra}]'" if extra else "ogrpo"
        raise MissingExtra(f"{who} needs {', '.join(missing)}: pip install {what}")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # someone has put a module without a specification, or None, in its place
        return False
