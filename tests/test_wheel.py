"""What is installed is what was written: the built wheel, away from the checkout, kernels included."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="no hatchling here: pip install -e '.[test]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")

USE = """
import importlib.util, jax.numpy as jnp, ogrpo
from ogrpo.kernels.log_probs import KERNELS, choose
for name in ("reference", "chunked"):
    out = KERNELS[name](jnp.eye(2), jnp.eye(4, 2), jnp.array([[1], [1]]), jnp.float32(1))
    print(*(f"{x:.4f}" for x in out.log_probs[:, 0]))
print(ogrpo.__file__)
print(importlib.util.find_spec("kernels"), importlib.util.find_spec("experiments"))
"""


def run(*command: object, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def build(source: Path, folder: Path) -> Path:
    flags = ("--no-deps", "--no-build-isolation", "--no-index")
    run(*PIP, "wheel", *flags, "-w", folder, source)
    (wheel,) = folder.glob("ogrpo-*.whl")
    return wheel


def unpacked_sdist(folder: Path) -> Path:
    program = "import sys; from hatchling.builders.sdist import SdistBuilder as S; "
    program += "next(iter(S(sys.argv[1]).build(directory=sys.argv[2])))"
    run(sys.executable, "-c", program, ROOT, folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def test_a_wheel_of_the_source_distribution_computes_a_log_prob(tmp_path):
    wheel, site = build(unpacked_sdist(tmp_path), tmp_path / "wheel"), tmp_path / "site"
    run(*PIP, "install", "--no-deps", "--no-index", "--target", site, wheel)
    environment = {**os.environ, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    *rows, place, others = run(
        sys.executable, "-c", USE, cwd=tmp_path, env=environment
    ).splitlines()
    # log softmax of (1, 0, 0, 0) and (0, 1, 0, 0) at token 1.
    assert rows == ["-1.7437 -0.7437"] * 2
    assert Path(place).is_relative_to(site)
    assert others == "None None"  # no top-level name but ogrpo


def test_the_package_has_one_copy_of_the_kernels():
    link = ROOT / "src" / "ogrpo" / "kernels"
    assert link.resolve() == ROOT / "kernels"
