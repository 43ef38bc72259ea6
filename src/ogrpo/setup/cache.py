"""The cache of results that are costly to make again: compiled programs and warm starts."""

import os
import time
import zlib
from pathlib import Path

import jax
import platformdirs

from ogrpo.models.convert import Show, silent
from ogrpo.models.known import model_folder

SWEPT = ".swept"
"""Its time is that of the last look at the compiled programs."""
ZLIB = b"\x78"


def cache_path() -> Path:
    """Returns `OGRPO_CACHE_DIR`, or else the user's cache folder for this platform."""
    folder = os.environ.get("OGRPO_CACHE_DIR")
    return Path(folder) if folder else platformdirs.user_cache_path("ogrpo")


def weights_folder(path: Path, show: Show = silent) -> Path:
    """Returns the folder of a model: itself, or what a GGUF file or a known name is made into."""
    return model_folder(path, cache_path(), show=show)


def keep_compiled_programs() -> None:
    """Keeps XLA's programs between runs, unless JAX already has a folder for them."""
    if jax.config.values["jax_compilation_cache_dir"] is None:
        folder = cache_path() / "xla"
        drop_torn(folder)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def drop_torn(folder: Path) -> int:
    """Deletes programs that a process was killed in the middle of writing; returns how many.

    JAX writes them in place and never again: it would warn of each at every start, and compile it
    anew. Looked at is what was written since the last look.
    """
    marker, begun = folder / SWEPT, time.time()
    try:
        since = marker.stat().st_mtime if marker.exists() else 0.0
        recent = [file for file in folder.glob("*-cache") if file.stat().st_mtime >= since]
        torn = [file for file in recent if not is_whole(file.read_bytes())]
        for file in torn:
            file.unlink(missing_ok=True)
        if folder.is_dir():
            marker.touch()
            os.utime(marker, (begun, begun))
    except OSError:  # somebody else's cache, or one that is being swept: JAX says what it lacks
        return 0
    return len(torn)


def is_whole(program: bytes) -> bool:
    """Whether a compressed program has its end; one in another format than zlib's is believed."""
    if not program.startswith(ZLIB):
        return bool(program)
    stream = zlib.decompressobj()
    try:
        stream.decompress(program)
    except zlib.error:
        return False
    return stream.eof
