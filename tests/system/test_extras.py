"""The wheel beside exactly the packages that its metadata name: the algebra alone, and with `train`.

No package is installed for it. An interpreter without site-packages (`-S`) sees one folder: the
unpacked wheel, and links to the packages of this environment that the metadata ask for.
"""

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ogrpo.system.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

ALGEBRA = """
import jax.numpy as jnp, ogrpo, sys
from ogrpo import *
log_probs = jnp.log(jnp.array([[0.5, 0.25]]))
batch = TokenBatch(jnp.ones((1, 2)), jnp.array([[True, True]]), *[log_probs] * 3)
loss = sequence_mean(OBJECTIVES["grpo"](log_probs, batch), batch.mask)
print(ogrpo.__file__, float(loss), sorted({"flax", "optax", "orbax", "chex"} & {*sys.modules}))
"""
SERVE = "import sys; from ogrpo.serving.serve import main; sys.argv[1:] = ['DIR', '--engine', 'embedded']; "
SERVE += "main()"
EVERY_MODULE = """
import importlib, json, pkgutil, sys, ogrpo
inside = "ogrpo.rollout.extension."  # what lies there runs within vLLM's processes
names = [m.name for m in pkgutil.walk_packages(ogrpo.__path__, "ogrpo.")]
for name in names:
    if not name.startswith(inside) and not name.endswith("__main__"):
        importlib.import_module(name)
print(json.dumps(names))
import importlib.util, jax.numpy as jnp
from ogrpo.kernels.log_probs import KERNELS
for name in ("reference", "chunked"):
    out = KERNELS[name](jnp.eye(2), jnp.eye(4, 2), jnp.array([[1], [1]]), jnp.float32(1))
    print(*(f"{x:.4f}" for x in out.log_probs[:, 0]))
print(importlib.util.find_spec("kernels"), importlib.util.find_spec("experiments"))
"""


def closure(requirements: list[Requirement]) -> dict[str, Distribution]:
    """Name -> what is installed of it, for the requirements and all that they require."""
    distributions: dict[tuple[str, str], Distribution] = {}
    while requirements:
        requirement = requirements.pop()
        for extra in ("", *requirement.extras):
            key = canonicalize_name(requirement.name), extra
            if key in distributions:
                continue
            distributions[key] = distribution(requirement.name)
            for line in distributions[key].requires or ():
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    requirements.append(inner)
    return {name: installed for (name, _), installed in distributions.items()}


def link(installed: Distribution, site: Path) -> None:
    """Links a package's folders and files into `site`; parts of a shared folder one by one."""
    for file in installed.files or ():
        if ".." in file.parts or "__pycache__" in file.parts:
            continue
        source, target = Path(str(installed.locate_file(file))), site / file
        if source.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            os.symlink(source, target)


def build(source: Path, folder: Path) -> Path:
    """The wheel of a checkout or of an unpacked source distribution."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "wheel")
    flags = ("--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source)
    done = subprocess.run([*pip, *map(str, flags)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("ogrpo-*.whl")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from the source distribution, with no checkout around it."""
    pytest.importorskip("hatchling", reason="no hatchling here: pip install -e '.[test]'")
    from hatchling.builders.sdist import SdistBuilder

    folder = tmp_path_factory.mktemp("wheel")
    archive = Path(next(SdistBuilder(str(ROOT)).build(directory=str(folder))))
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return build(folder / archive.name.removesuffix(".tar.gz"), folder / "built")


def site_of(wheel: Path, site: Path, *extras: str) -> Path:
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    (metadata,) = site.glob("ogrpo-*.dist-info")
    requirements = []
    for line in Distribution.at(metadata).requires or ():
        requirement = Requirement(line)
        environments = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(map(requirement.marker.evaluate, environments)):
            requirements.append(requirement)
    for installed in closure(requirements).values():
        link(installed, site)
    return site


def run(site: Path, program: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k in ("HOME", "PATH", "OGRPO_CACHE_DIR")}
    environment = {**kept, "PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-S", "-W", "error::ImportWarning", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=site)


@pytest.mark.slow
def test_the_wheel_alone_is_the_algebra_and_a_command_names_the_extra_it_misses(wheel, tmp_path):
    site = site_of(wheel, tmp_path)
    assert not (site / "flax").exists()
    done = run(site, ALGEBRA)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(site / "ogrpo" / "__init__.py"), "-1.0", "[]"]
    done = run(site, SERVE)
    assert done.returncode == 1
    assert re.fullmatch(
        r"ogrpo-serve --engine embedded needs .*cloudpickle, .*, tyro.*: pip install 'ogrpo\[train\]'\n",
        done.stderr,
    )


@pytest.mark.slow
def test_every_module_can_be_imported_beside_what_train_brings_kernels_included(wheel, tmp_path):
    done = run(site_of(wheel, tmp_path, "train"), EVERY_MODULE)
    assert done.returncode == 0, done.stderr
    names, *rows, others = done.stdout.splitlines()
    assert {"ogrpo.learner.update", "ogrpo.kernels.log_probs"} <= {*json.loads(names)}
    # log softmax of (1, 0, 0, 0) and (0, 1, 0, 0) at token 1.
    assert rows == ["-1.7437 -0.7437"] * 2
    assert others == "None None"  # no top-level name but ogrpo


def test_the_table_of_modules_is_what_the_extras_bring():
    brought = packages_distributions()
    brought["orbax"] = ["orbax-checkpoint"]  # a namespace of several packages
    declared = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    alone = {Requirement(line).name for line in declared[""]}
    for extra in ("", "train"):
        modules = {canonicalize_name(brought[module][0]) for module in EXTRAS[extra]}
        names = {Requirement(line).name for line in declared[extra]}
        assert modules == {canonicalize_name(name) for name in names - (alone if extra else set())}
    assert {*EXTRAS} <= {*declared}
