"""The cache of compiled programs survives a process that was killed while it wrote one."""

import os
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from ogrpo.setup.cache import SWEPT, drop_torn

PROGRAM = zlib.compress(bytes(range(256)) * 40)
COMPILE = """
import jax, jax.numpy as jnp
from ogrpo.setup.cache import keep_compiled_programs
keep_compiled_programs()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
print(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((4, 4)))[0, 0])
"""


def write(folder: Path, **programs: bytes) -> None:
    folder.mkdir(exist_ok=True)
    for name, program in programs.items():
        (folder / f"{name}-cache").write_bytes(program)


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("*-cache")}


def test_programs_without_their_end_are_dropped_and_the_others_stay(tmp_path):
    flipped = bytearray(PROGRAM)
    flipped[len(PROGRAM) // 2] ^= 1
    write(
        tmp_path,
        whole=PROGRAM,
        cut=PROGRAM[:-1],
        empty=b"",
        flipped=bytes(flipped),
        other=b"\x28\xb5",
    )
    assert drop_torn(tmp_path) == 3
    assert names(tmp_path) == {"whole-cache", "other-cache"}


def test_only_what_was_written_since_is_looked_at(tmp_path):
    write(tmp_path, old=PROGRAM)
    drop_torn(tmp_path)
    write(tmp_path, old=PROGRAM[:9], new=PROGRAM[:9])
    before = (tmp_path / SWEPT).stat().st_mtime - 60
    os.utime(tmp_path / "old-cache", (before, before))
    assert drop_torn(tmp_path) == 1
    assert names(tmp_path) == {"old-cache"}


def test_there_need_be_no_cache(tmp_path):
    assert drop_torn(tmp_path / "absent") == 0
    assert not (tmp_path / "absent").exists()


@pytest.mark.skipif(
    find_spec("zstandard") is not None or sys.version_info >= (3, 14),
    reason="JAX compresses its programs with zstd here, whose ends are not looked for",
)
@pytest.mark.slow
def test_a_torn_program_costs_one_compilation_and_no_warning(tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_C")}

    def compile_again() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMPILE],
            env={**kept, "OGRPO_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )

    first = compile_again()
    sizes = {file: file.stat().st_size for file in (tmp_path / "xla").glob("*-cache")}
    assert sizes
    for file, size in sizes.items():
        os.truncate(file, size // 2)
    again = compile_again()
    assert again.stdout == first.stdout
    assert "Error reading" not in again.stderr
    assert {file: file.stat().st_size for file in sizes} == sizes
